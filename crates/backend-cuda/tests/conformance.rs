//! The op-level suite on the GPU of this machine, where it has one.

use tokkata_backend_cuda::CudaDevice;
use tokkata_conformance::ops::Subject;

/// The first GPU with the kernels of one architecture, or with those it likes best.
fn subject(architecture: Option<&str>) -> Option<Subject> {
    let device = CudaDevice::with_kernels(0, architecture).ok()?;
    Some(Subject::new(Box::new(device)))
}

mod own {
    tokkata_conformance::suite!(super::subject(None));
}

/// What the driver compiles for GPUs that have no image of their own.
mod compute_75 {
    tokkata_conformance::suite!(super::subject(Some("compute_75")));
}

mod compute_80 {
    tokkata_conformance::suite!(super::subject(Some("compute_80")));
}
