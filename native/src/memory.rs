//! Memory of Python objects, by the buffer protocol, and of the kernel. All unsafe code of the crate is here.

use std::ffi::c_long;
use std::io;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

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

    pub fn address(&self) -> u64 {
        self.0.buf_ptr() as u64
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

/// Memory of a Python object that the kernel reads and writes too, so that no slice of it may exist.
///
/// What both sides write at any time are words, which are loaded and stored whole: an entry is read after the word that
/// announces it, and given back by a word that is stored after its use.
pub struct Shared(PyBuffer<u8>);

impl Shared {
    /// Borrows writable memory.
    pub fn of(buffer: PyBuffer<u8>) -> PyResult<Self> {
        if buffer.readonly() || !buffer.is_c_contiguous() || (buffer.buf_ptr() as usize) % align_of::<u64>() != 0 {
            return Err(PyBufferError::new_err("the memory is not contiguous, writable and aligned"));
        }
        Ok(Self(buffer))
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    pub fn has_word(&self, at: usize) -> bool {
        at % size_of::<u32>() == 0 && at < self.len() && self.len() - at >= size_of::<u32>()
    }

    pub fn load(&self, at: usize) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    pub fn store(&self, at: usize, word: u32) {
        self.word(at).store(word, Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(self.has_word(at), "no word at {at}");
        // SAFETY: the word lies inside memory that is lent until `self` is dropped, and is aligned, as `of` and the
        // assertion have checked. Both sides access it atomically only.
        unsafe { AtomicU32::from_ptr(self.0.buf_ptr().cast::<u8>().add(at).cast()) }
    }

    /// Copies bytes that the other side does not write now. Panics if they lie outside.
    pub fn copy_out<const SIZE: usize>(&self, at: usize) -> [u8; SIZE] {
        assert!(at <= self.len() && SIZE <= self.len() - at, "no bytes at {at}");
        let mut bytes = [0; SIZE];
        // SAFETY: the source lies inside memory that is lent, by the assertion, and the target is an array of this call.
        unsafe { self.0.buf_ptr().cast::<u8>().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), SIZE) };
        bytes
    }

    /// Stores bytes where the other side does not read or write now. Panics if they lie outside.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at, "no bytes at {at}");
        // SAFETY: the target lies inside memory that is lent and writable, by the assertion and `of`; no Rust reference
        // to it exists, so the source is elsewhere.
        unsafe { self.0.buf_ptr().cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Hands operations of an io_uring to the kernel; returns how many it took, or an errno. `number` is that of
/// `io_uring_enter`.
///
/// The interpreter's lock is kept, as in Python's twin.
pub fn enter_ring(number: c_long, fd: i32, count: u32) -> Result<c_long, i32> {
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    let none: c_long = 0;
    // SAFETY: the call only reads its numbers. What the kernel does with the memory that the operations name is up to
    // who pushed them: `wal/device_uring.py` keeps it until they are complete.
    let taken = unsafe { syscall(number, c_long::from(fd), c_long::from(count), none, none, none, none) };
    if taken < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(taken) }
}
