//! Which interpreter of a process imports the module.
#![allow(unsafe_code)]

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Refuses every interpreter but the first of the process: calls from threads of our own come back to that one.
pub(crate) fn check_is_main(_attached: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached to the interpreter that it asks about.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match id {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "tokkata cannot be used in a subinterpreter; import it in the main one, or in another process",
        )),
    }
}
