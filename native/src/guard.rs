//! Panics end here: they are bugs, and become errors like those of Python.
//!
//! Without this they would reach Python as exceptions that are no `Exception`, which nobody between here and the event
//! loop catches: the log would not complete the rest of a block.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs `work`; a panic in it becomes a RuntimeError. What it had changed until then stays changed.
pub fn guard<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(PyRuntimeError::new_err(format!("panic: {text}")))
    })
}
