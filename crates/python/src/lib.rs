//! Tokkata's Python module `tokkata._tokkata`: models, requests, sessions and grammars over the Rust API.
//!
//! The package around it (`python/tokkata`) is what users import: it turns Python's ways of saying things into the few
//! calls here. Nothing here holds the interpreter lock while it waits: whoever waits lets go of it, looks for signals
//! every few milliseconds, and cancels its request when one came.
//!
//! Reading order: `opening`, `model`, `answer`, `session`, `speech`, `grammar`, `floats`, `notify`, `failure`.
#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments come from Python as values"
)]

mod answer;
mod failure;
mod floats;
mod grammar;
mod interpreter;
mod model;
mod notify;
mod opening;
mod session;
mod speech;

use pyo3::prelude::*;

/// The native half of the package `tokkata`.
#[pymodule]
#[pyo3(name = "_tokkata", gil_used = false)]
mod tokkata_python {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::answer::{Answer, Reply};
    #[pymodule_export]
    use crate::failure::TokkataError;
    #[pymodule_export]
    use crate::floats::Floats;
    #[pymodule_export]
    use crate::grammar::{Grammar, Matcher};
    #[pymodule_export]
    use crate::model::{Model, devices, sample};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::speech::Transcript;

    #[pymodule_export]
    use super::run_command;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::interpreter::check_is_main(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Runs the command line with these arguments (the program's name first), and gives its exit status.
#[pyfunction]
#[cfg(feature = "commands")]
fn run_command(py: Python<'_>, args: Vec<String>) -> u8 {
    py.detach(|| tokkata_cli::run(args.into_iter().map(Into::into).collect()))
}

/// Runs the command line with these arguments (the program's name first), and gives its exit status.
#[pyfunction]
#[cfg(not(feature = "commands"))]
fn run_command(_args: Vec<String>) -> PyResult<u8> {
    Err(failure::error("this build has no command line"))
}
