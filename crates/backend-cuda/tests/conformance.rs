//! The op-level suite on the GPU of this machine, where it has one.

use tokkata_backend_cuda::CudaDevice;
use tokkata_conformance::ops::{Kinds, Profile, Rounding, Subject};
use tokkata_core::DType;
use tokkata_ir::LoadOptions;

/// Activations are rounded to bytes, one scale per 32, where the weights' format has a kernel of its own. To bfloats, those of
/// replies are two bfloats, which hold 17 bits.
fn matmul(dtype: DType) -> Rounding {
    use DType::{BF16, IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    match dtype {
        BF16 => Rounding::Bits(17),
        Q4_0 | Q8_0 | Q4_K | Q5_K | Q6_K | MXFP4 | IQ4_NL => Rounding::Q8 { block: 32 },
        _ => Rounding::None,
    }
}

/// The first GPU with the kernels of one architecture, or with those it likes best.
fn subject(architecture: Option<&str>) -> Option<Subject> {
    let device = match architecture {
        None => tokkata_conformance::cuda(),
        Some(_) => CudaDevice::with_kernels(0, architecture),
    };
    Some(on(device.ok()?))
}

fn on(device: CudaDevice) -> Subject {
    let mut subject = Subject::new(Box::new(device));
    subject.profile.matmul = matmul;
    subject
}

/// The kernels that serve every format, op by op.
fn plain() -> Option<Subject> {
    let subject = subject(None)?;
    Some(Subject {
        options: LoadOptions {
            no_fuse: true,
            ..LoadOptions::default()
        },
        profile: Profile::default(),
        ..subject
    })
}

/// Of prompts, where these are made halves: rows keep eleven bits beside weights of BF16 too, and of large products with F16.
fn halved(dtype: DType) -> Rounding {
    match dtype {
        DType::BF16 => Rounding::Bits(11),
        _ => matmul(dtype),
    }
}

/// The same of large products.
fn large(dtype: DType) -> Rounding {
    match dtype {
        DType::F16 => Rounding::Bits(11),
        _ => halved(dtype),
    }
}

/// Rows, scales, minima and what they make of a code keep eleven bits each, and a minimum takes off a part of what it is taken from.
fn halves_alone(dtype: DType) -> Rounding {
    match dtype {
        DType::Q4_K | DType::Q5_K => Rounding::Bits(9),
        DType::Q6_K => Rounding::Bits(10),
        _ => large(dtype),
    }
}

/// Rows of such kinds: those of prompts go to tensor cores.
fn of(kinds: Kinds) -> Option<Subject> {
    let device = tokkata_conformance::cuda().ok()?;
    let halves = device.halves_prompts();
    let mut subject = on(device);
    if halves {
        subject.profile.matmul = halved;
        subject.profile.large = Some(large);
    }
    Some(Subject { kinds, ..subject })
}

mod own {
    tokkata_conformance::suite!(super::subject(None));
}

mod prompts {
    tokkata_conformance::suite!(super::of(super::Kinds::Prompts));
}

/// Products of prompts' rows where these are made halves.
fn halves() -> Option<Subject> {
    let device = tokkata_conformance::cuda().ok()?;
    if !device.halves_prompts() {
        return None;
    }
    let mut subject = on(device);
    subject.kinds = Kinds::Prompts;
    subject.profile.matmul = halves_alone;
    Some(subject)
}

mod halves {
    tokkata_conformance::suite!(super::halves() => matmul: Matmul);
}

mod mixed {
    tokkata_conformance::suite!(super::of(super::Kinds::Mixed));
}

mod plain {
    tokkata_conformance::suite!(super::plain());
}

/// What the driver compiles for GPUs that have no image of their own.
mod compute_75 {
    tokkata_conformance::suite!(super::subject(Some("compute_75")));
}

mod compute_80 {
    tokkata_conformance::suite!(super::subject(Some("compute_80")));
}
