//! The op-level suite on the first adapter of this machine, where it has one.

use tokkata_conformance::ops::{Kinds, Profile, Rounding, Subject};
use tokkata_core::DType;
use tokkata_ir::LoadOptions;

fn subject() -> Option<Subject> {
    let device = tokkata_conformance::wgpu();
    let device = device.inspect_err(|why| eprintln!("skipped: wgpu: {why}"));
    Some(Subject::new(Box::new(device.ok()?)))
}

/// Cooperative matrices have weights of blocks as halves, which costs what rounding activations to ten bits does at most. Those in F16 meet
/// 22 bits of an activation, but sums are cut off rather than rounded.
fn halves(dtype: DType) -> Rounding {
    match dtype {
        DType::F32 | DType::BF16 => Rounding::None,
        DType::F16 => Rounding::Bits(18),
        _ => Rounding::Bits(10),
    }
}

/// Op by op.
fn plain() -> Option<Subject> {
    let subject = subject()?;
    Some(Subject {
        options: LoadOptions {
            no_fuse: true,
            ..LoadOptions::default()
        },
        ..subject
    })
}

/// Steps with rows of prompts, as cooperative matrices round them where there are some.
fn of(kinds: Kinds) -> Option<Subject> {
    let device = tokkata_conformance::wgpu().ok()?;
    let matmul = match device.halves_prompts() {
        true => halves,
        false => |_| Rounding::None,
    };
    let profile = Profile {
        matmul,
        ..Profile::default()
    };
    let subject = Subject::new(Box::new(device));
    Some(Subject {
        kinds,
        profile,
        ..subject
    })
}

/// Rows of prompts without cooperative matrices, where the adapter has some.
fn tiles() -> Option<Subject> {
    let mut device = tokkata_conformance::wgpu().ok()?;
    if !device.halves_prompts() {
        return None;
    }
    device.leave_out(vec!["cooperative matrices".to_owned()]);
    let subject = Subject::new(Box::new(device));
    Some(Subject {
        kinds: Kinds::Prompts,
        ..subject
    })
}

mod own {
    tokkata_conformance::suite!(super::subject());
}

mod prompts {
    tokkata_conformance::suite!(super::of(super::Kinds::Prompts));
}

mod tiles {
    tokkata_conformance::suite!(super::tiles());
}

mod mixed {
    tokkata_conformance::suite!(super::of(super::Kinds::Mixed));
}

mod plain {
    tokkata_conformance::suite!(super::plain());
}
