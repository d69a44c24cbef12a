//! The plans of some families as text: what a change to a descriptor or to the builder does to them is seen here.

use tokkata_archs::{Registry, ResolveOptions};
use tokkata_conformance::generate;
use tokkata_conformance::golden::Golden;
use tokkata_core::DType;
use tokkata_ir::Limits;

const CTX: u32 = 64;

fn dump(name: &str) -> String {
    let golden = Golden::read(&Golden::folder(), name).expect("golden");
    let file = generate::model(&golden).expect("model");
    let spec = Registry::builtin()
        .resolve(&file, &ResolveOptions { ctx: CTX })
        .expect("it resolves");
    let limits = Limits {
        rows: 16,
        seqs: 2,
        logit_rows: 2,
        ctx: CTX,
        kv_dtype: DType::F16,
        ..Limits::default()
    };
    let program = tokkata_plan::build(&spec, &limits).expect("it builds");
    tokkata_plan::dump::program(&program)
}

#[test]
fn plans_are_as_they_were() {
    for name in ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"] {
        insta::assert_snapshot!(name, dump(name));
    }
}

#[test]
fn plans_of_other_mixers_are_as_they_were() {
    for name in ["deepseek2", "falcon-h1", "mamba", "rwkv7", "qwen3next"] {
        insta::assert_snapshot!(name, dump(name));
    }
}
