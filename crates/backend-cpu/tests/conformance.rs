//! The op-level suite on every kernel set of this machine, with one and two workers.

use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_cpu::caps::{Caps, Level};
use tokkata_conformance::ops::{Profile, Rounding, Subject};
use tokkata_core::DType;
use tokkata_ir::LoadOptions;

/// Activations are rounded to bytes, one scale per 32, where weights are in blocks.
fn matmul(dtype: DType) -> Rounding {
    if dtype.is_quantised() {
        Rounding::Q8 { block: 32 }
    } else {
        Rounding::None
    }
}

/// The set with tiles has one scale per 128 where the weights' own scales are integers. To weights of sixteen bits, an
/// activation is two bfloat16, which hold 17 bits of it; what a half leaves of its bfloat16 misses the lower one.
fn tiled(dtype: DType) -> Rounding {
    use DType::{BF16, F16, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
    match dtype {
        BF16 => Rounding::Bits(17),
        F16 => Rounding::Bits(15),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS => Rounding::Q8 { block: 128 },
        _ => matmul(dtype),
    }
}

fn subject(set: &str, threads: usize) -> Subject {
    let set = if Caps::limited_to(set).is_ok() {
        set
    } else {
        "portable"
    };
    let mut subject = Subject::new(Box::new(CpuBackend));
    subject.options = LoadOptions {
        threads,
        cpu_features: Some(set.to_owned()),
        ..LoadOptions::default()
    };
    let tiles = Caps::limited_to(set).is_ok_and(|set| set.level() == Level::Amx);
    subject.profile = Profile {
        matmul: if tiles { tiled } else { matmul },
        ..Profile::default()
    };
    subject
}

/// The best set, on weights that stay where the source has them.
fn mapped() -> Subject {
    let mut subject = subject(Caps::detect().level().name(), 2);
    subject.options.cpu_features = None;
    subject.options.no_repack = true;
    subject
}

mod mapped {
    tokkata_conformance::suite!(super::mapped());
}

mod portable {
    tokkata_conformance::suite!(super::subject("portable", 1));
}

mod avx2 {
    tokkata_conformance::suite!(super::subject("avx2", 2));
}

mod avxvnni {
    tokkata_conformance::suite!(super::subject("avxvnni", 2));
}

mod avx512bw {
    tokkata_conformance::suite!(super::subject("avx512bw", 2));
}

#[cfg(target_arch = "aarch64")]
mod neon {
    tokkata_conformance::suite!(super::subject("neon", 2));
}

#[cfg(target_arch = "aarch64")]
mod dotprod {
    tokkata_conformance::suite!(super::subject("dotprod", 2));
}

#[cfg(target_arch = "aarch64")]
mod i8mm {
    tokkata_conformance::suite!(super::subject("i8mm", 2));
}

mod avx512 {
    tokkata_conformance::suite!(super::subject("avx512", 2));
}

mod amx {
    tokkata_conformance::suite!(super::subject("amx", 2));
}
