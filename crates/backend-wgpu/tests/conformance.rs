//! The op-level suite on the first adapter of this machine, where it has one.

use tokkata_conformance::ops::{Kinds, Profile, Rounding, Subject};
use tokkata_core::DType;
use tokkata_ir::LoadOptions;

fn subject() -> Option<Subject> {
    let device = tokkata_conformance::wgpu();
    let device = device.inspect_err(|why| eprintln!("skipped: wgpu: {why}"));
    Some(Subject::new(Box::new(device.ok()?)))
}

/// Rows of replies, as dots of bytes round them where there are some.
fn replies() -> Option<Subject> {
    let device = tokkata_conformance::wgpu().ok()?;
    let matmul = if device.has_dots() { bytes } else { none };
    Some(of_matmul(Subject::new(Box::new(device)), matmul))
}

fn of_matmul(subject: Subject, matmul: fn(DType) -> Rounding) -> Subject {
    Subject {
        profile: Profile {
            matmul,
            ..Profile::default()
        },
        ..subject
    }
}

fn none(_: DType) -> Rounding {
    Rounding::None
}

/// Two bytes of an activation meet codes of blocks that are vectors of words.
fn bytes(dtype: DType) -> Rounding {
    use DType::{Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    match dtype {
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K => Rounding::Q16 { block: 32 },
        _ => Rounding::None,
    }
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

/// Steps with rows of prompts, as cooperative matrices round them where there are some; those of replies beside them.
fn of(kinds: Kinds) -> Option<Subject> {
    let device = tokkata_conformance::wgpu().ok()?;
    let matmul = match (device.halves_prompts(), kinds) {
        (true, _) => halves,
        (false, Kinds::Mixed) if device.has_dots() => bytes,
        (false, _) => none,
    };
    let subject = of_matmul(Subject::new(Box::new(device)), matmul);
    Some(Subject { kinds, ..subject })
}

/// Rows of a kind without a class of kernels.
fn without(class: &str, kinds: Kinds) -> Option<Subject> {
    let mut device = tokkata_conformance::wgpu().ok()?;
    device.leave_out(vec![class.to_owned()]);
    let subject = Subject::new(Box::new(device));
    Some(Subject { kinds, ..subject })
}

/// Rows of prompts without cooperative matrices, where the adapter has some.
fn tiles() -> Option<Subject> {
    let has_matrices = tokkata_conformance::wgpu().ok()?.halves_prompts();
    has_matrices.then(|| without("cooperative matrices", Kinds::Prompts))?
}

mod own {
    tokkata_conformance::suite!(super::replies());
}

/// The same without dots of bytes, as Metal and browsers have it.
mod floats {
    tokkata_conformance::suite!(super::without("dots of bytes", super::Kinds::Replies));
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
