//! This machine: its fastest kernels, and where the time of a step goes.

use std::ffi::c_char;

use serde_json::Value;
use tokkata::options::default_threads;
use tokkata::{StepTime, tuning};

use crate::border::{fill, guard, room};
use crate::model::model;
use crate::status::{Error, UNSUPPORTED};
use crate::types::tokkata_model;

/// Room that the text of a tuning takes at most.
const TUNING_BYTES: usize = 4096;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_tune(
    threads: u32,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        if !room((out, capacity), TUNING_BYTES)? {
            return fill(&[0; TUNING_BYTES], (std::ptr::null_mut(), 0), needed);
        }
        let threads = match threads {
            0 => default_threads(),
            n => n as usize,
        };
        let found = tuning::measure(threads, &mut |_, _| {});
        let found = found.map_err(|e| Error::new(UNSUPPORTED, e.to_string()))?;
        fill(found.to_string().as_bytes(), (out.cast(), capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_profile(
    model: *const tokkata_model,
    n_past: u32,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        let label = |t: &StepTime| match t.site.layer {
            Some(layer) => format!("layer.{layer}.{}.{}", t.site.role, t.kernel),
            None => format!("{}.{}", t.site.role, t.kernel),
        };
        // Numbers of one width, so that both calls need the same room.
        let one = |t: &StepTime| {
            let (label, ns) = (Value::from(label(t)), t.run_ns + t.wait_ns);
            format!("{{\"label\": {label}, \"ns\": {ns:>13}}}")
        };
        let times = model.service()?.profile(n_past as usize)?;
        let times: Vec<String> = times.iter().map(one).collect();
        let text = format!("[{}]", times.join(", "));
        // SAFETY: the caller's buffer.
        unsafe { fill(text.as_bytes(), (out.cast(), capacity), needed) }
    })
}
