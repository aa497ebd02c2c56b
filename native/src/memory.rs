//! Memory of Python objects, by the buffer protocol. All unsafe code of the crate is here.

use std::ops::Range;
use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// Contiguous bytes that a Python object lends until this is dropped: bytes, a bytearray, a memoryview.
///
/// Nobody else writes to them while a caller holds a slice of `bytes`: that takes the interpreter's lock, which the
/// caller has, and the callers here run no Python code that would. Other threads only read them (the log's writers).
pub struct Memory(PyBuffer<u8>);

impl Memory {
    /// Borrows the bytes of an object.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the bytes are not contiguous"));
        }
        Ok(Self(buffer))
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    pub fn is_writable(&self) -> bool {
        !self.0.readonly()
    }

    /// Returns the bytes, which no Python code may change while they are used.
    pub fn bytes<'a>(&'a self, _py: Python<'a>) -> &'a [u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the object keeps `len` initialized, contiguous bytes at this address until the buffer is released,
        // which is when `self` is dropped. Nobody writes to them meanwhile, see above.
        unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), self.len()) }
    }

    /// Returns the bytes to be changed. Panics if they are read-only.
    pub fn bytes_mut<'a>(&'a mut self, _py: Python<'a>) -> &'a mut [u8] {
        assert!(self.is_writable(), "the bytes are read-only");
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`. The object allows writing, and the slice is the only one: `self` is borrowed for as
        // long, and no other `Memory` of the same bytes is in use.
        unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.len()) }
    }

    /// Copies bytes of another memory to `at`. Panics if they do not fit.
    pub fn copy_from(&mut self, py: Python<'_>, at: usize, source: &Memory, range: Range<usize>) {
        let from = &source.bytes(py)[range];
        let (begin, length) = (from.as_ptr(), from.len());
        assert!(self.is_writable() && at <= self.len() && length <= self.len() - at, "the bytes do not fit");
        // SAFETY: both ranges lie inside memory that is lent, checked by the slice above and by the assertion. `copy`
        // allows that they overlap, and neither slice is used any more.
        unsafe { std::ptr::copy(begin, self.0.buf_ptr().cast::<u8>().add(at), length) }
    }
}
