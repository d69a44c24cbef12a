//! The op-level suite on the first adapter of this machine, where it has one.

use tokkata_backend_wgpu::WgpuDevice;
use tokkata_conformance::ops::{Kinds, Profile, Rounding, Subject};
use tokkata_core::DType;
use tokkata_ir::LoadOptions;

fn adapter() -> Option<WgpuDevice> {
    let device = tokkata_conformance::wgpu();
    let device = device.inspect_err(|why| eprintln!("skipped: wgpu: {why}"));
    device.ok()
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

/// Cooperative matrices have rows as halves, of eleven bits, and weights of blocks too, which costs what rounding activations to ten bits does
/// at most.
fn halves(dtype: DType) -> Rounding {
    match dtype {
        DType::F32 | DType::BF16 => Rounding::None,
        DType::F16 => Rounding::Bits(11),
        _ => Rounding::Bits(10),
    }
}

/// Op by op.
fn plain() -> Option<Subject> {
    Some(Subject {
        options: LoadOptions {
            no_fuse: true,
            ..LoadOptions::default()
        },
        ..Subject::new(Box::new(adapter()?))
    })
}

/// Rows of prompts as cooperative matrices round them, those of replies as dots of bytes do, where the adapter has these.
fn of(kinds: Kinds) -> Option<Subject> {
    Some(on(adapter()?, kinds))
}

fn on(device: WgpuDevice, kinds: Kinds) -> Subject {
    let matmul = match (kinds, device.halves_prompts(), device.has_dots()) {
        (Kinds::Prompts | Kinds::Mixed, true, _) => halves,
        (Kinds::Replies | Kinds::Mixed, _, true) => bytes,
        _ => none,
    };
    let profile = Profile {
        matmul,
        ..Profile::default()
    };
    Subject {
        kinds,
        profile,
        ..Subject::new(Box::new(device))
    }
}

/// Rows of a kind without a class of kernels.
fn without(class: &str, kinds: Kinds) -> Option<Subject> {
    let mut device = adapter()?;
    device.leave_out(vec![class.to_owned()]);
    let subject = Subject::new(Box::new(device));
    Some(Subject { kinds, ..subject })
}

/// Rows of prompts without cooperative matrices, where the adapter has some.
fn tiles() -> Option<Subject> {
    let has_matrices = adapter()?.halves_prompts();
    has_matrices.then(|| without("cooperative matrices", Kinds::Prompts))?
}

/// Rows of prompts in tiles of cooperative matrices that are tall wherever rows are many enough.
fn tall() -> Option<Subject> {
    let mut device = adapter()?;
    if !device.halves_prompts() {
        return None;
    }
    assert!(device.choose("tiles=1"));
    Some(on(device, Kinds::Prompts))
}

mod own {
    tokkata_conformance::suite!(super::of(super::Kinds::Replies));
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

mod tall {
    tokkata_conformance::suite!(super::tall() => matmul: Matmul);
}
