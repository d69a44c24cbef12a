//! Tiny models of the conformance goldens. With `TOKKATA_EXPORT=FOLDER` the tests also write their models there, for
//! an oracle to run.
#![allow(dead_code, unreachable_pub, missing_docs)]

use tokkata::{Checkpoint, DType, ModelFile, OpenOptions, Value};
use tokkata_conformance::generate::gguf;
use tokkata_conformance::golden::Golden;

/// A golden, to be changed.
pub fn golden(name: &str) -> Golden {
    Golden::read(&Golden::folder(), name).expect("golden")
}

/// Adds a tensor, or gives one that is there another shape.
pub fn put(golden: &mut Golden, name: &str, shape: &[usize]) {
    golden.tensors.retain(|t| t.0 != name);
    golden.tensors.push((name.to_owned(), shape.to_vec()));
}

/// Sets a key of the architecture.
pub fn set(golden: &mut Golden, key: &str, value: Value) {
    let key = format!("{}.{key}", golden.arch());
    golden.metadata.insert(key, value);
}

/// The golden's model.
pub fn checkpoint(name: &str, golden: &Golden) -> Checkpoint {
    let bytes = gguf(golden).expect("a model");
    if let Some(folder) = std::env::var_os("TOKKATA_EXPORT") {
        let path = std::path::Path::new(&folder).join(format!("{name}.gguf"));
        std::fs::write(path, &bytes).expect("the model is written");
    }
    let file = ModelFile::from_bytes(bytes).expect("a file");
    Checkpoint::new(file, &[]).expect("no descriptor")
}

/// F32 caches, two threads.
pub fn options() -> OpenOptions {
    OpenOptions {
        kv: DType::F32,
        threads: Some(2),
        ..OpenOptions::default()
    }
}

/// Error over the power of what was wanted.
pub fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    error / want.iter().map(|&b| square(b)).sum::<f64>()
}
