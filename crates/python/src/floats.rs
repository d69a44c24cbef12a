//! Rows of numbers that NumPy reads where they lie.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Rows of 32-bit floats, read-only: `numpy.asarray(floats)` is an array of shape [rows, width] without a copy.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Floats {
    values: Vec<f32>,
    shape: [ffi::Py_ssize_t; 2],
    strides: [ffi::Py_ssize_t; 2],
}

impl Floats {
    pub(crate) fn new(values: Vec<f32>, width: usize) -> Self {
        let width = width.max(1);
        let rows = values.len() / width;
        Floats {
            values,
            shape: [rows as ffi::Py_ssize_t, width as ffi::Py_ssize_t],
            strides: [4 * width as ffi::Py_ssize_t, 4],
        }
    }
}

#[pymethods]
impl Floats {
    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.shape[0] as usize, self.shape[1] as usize)
    }

    fn __len__(&self) -> usize {
        self.shape[0] as usize
    }

    /// The rows as lists.
    fn tolist(&self) -> Vec<Vec<f32>> {
        let rows = self.values.chunks(self.shape[1] as usize);
        rows.map(<[f32]>::to_vec).collect()
    }

    /// # Safety
    /// Called by the interpreter alone, with a view to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("these numbers are read-only"));
        }
        let this = slf.get();
        // SAFETY: the view is the interpreter's to fill. Values, shape and strides never change and live as long as
        // the object, of which the view holds a reference.
        unsafe {
            (*view).buf = this.values.as_ptr().cast_mut().cast::<c_void>();
            (*view).len = (this.values.len() * 4) as ffi::Py_ssize_t;
            (*view).readonly = 1;
            (*view).itemsize = 4;
            (*view).format = match flags & ffi::PyBUF_FORMAT {
                ffi::PyBUF_FORMAT => c"f".as_ptr().cast_mut(),
                _ => null_mut(),
            };
            (*view).ndim = 2;
            (*view).shape = this.shape.as_ptr().cast_mut();
            (*view).strides = this.strides.as_ptr().cast_mut();
            (*view).suboffsets = null_mut();
            (*view).internal = null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
