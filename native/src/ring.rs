//! The queues of an io_uring: twin of `Queues` in `wal/device_ring.py`, which says what each method does.
//!
//! Little-endian, as the machines are that Python sets a ring up on. As there, at most as many operations as the ring has
//! entries may be between `push` and `take`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::memory::{Memory, Shared, enter_ring};

const SUBMISSION_BYTES: usize = 64;
const COMPLETION_BYTES: usize = 16;
const USER_DATA_AT: usize = 32;
const WRITE: u8 = 23;
const EAGAIN: i32 = 11;

/// Where heads, tails and entries are in the memory of the rings: offsets in bytes, and numbers of entries.
#[derive(FromPyObject)]
struct Layout {
    sq_head: usize,
    sq_tail: usize,
    sq_entries: u32,
    cq_head: usize,
    cq_tail: usize,
    cq_entries: u32,
    completions: usize,
}

/// One operation, in the order of the fields of `Submission`, its flags last.
type Operation = (u8, u64, u64, u32, u8, u32);

/// The queue of submissions and that of completions.
#[pyclass(module = "anabranch_native")]
pub struct Queues {
    enter: i64,
    fd: i32,
    layout: Layout,
    /// None once they are released.
    shared: Option<SharedQueues>,
}

/// Memory shared with the kernel.
struct SharedQueues {
    rings: Shared,
    entries: Shared,
}

#[pymethods]
impl Queues {
    #[new]
    fn new(enter: i64, fd: i32, rings: PyBuffer<u8>, entries: PyBuffer<u8>, layout: Layout) -> PyResult<Self> {
        let (rings, entries) = (Shared::of(rings)?, Shared::of(entries)?);
        let submissions = layout.sq_entries as usize * SUBMISSION_BYTES;
        let completions = layout.completions.saturating_add(layout.cq_entries as usize * COMPLETION_BYTES);
        let words = [layout.sq_head, layout.sq_tail, layout.cq_head, layout.cq_tail];
        let is_fitting = submissions <= entries.len()
            && completions <= rings.len()
            && words.iter().all(|&at| rings.has_word(at))
            && layout.sq_entries.is_power_of_two()
            && layout.cq_entries.is_power_of_two();
        if !is_fitting {
            return Err(PyValueError::new_err("the queues do not lie in the memory given"));
        }
        Ok(Self { enter, fd, layout, shared: Some(SharedQueues { rings, entries }) })
    }

    fn push(&self, submission: Operation, fd: i32, user_data: u64) -> PyResult<()> {
        self.add(submission, fd, user_data)
    }

    fn write(&self, fd: i32, position: u64, memory: &Bound<'_, PyAny>, user_data: u64) -> PyResult<()> {
        let memory = Memory::of(memory)?;
        self.add((WRITE, position, memory.address(), u32::try_from(memory.len())?, 0, 0), fd, user_data)
    }

    #[getter]
    fn pushed(&self) -> PyResult<u32> {
        let rings = &self.shared()?.rings;
        Ok(rings.load(self.layout.sq_tail).wrapping_sub(rings.load(self.layout.sq_head)))
    }

    fn submit(&self, py: Python<'_>) -> PyResult<()> {
        let failed = |code: i32| -> PyErr {
            match py.import("os").and_then(|os| os.call_method1("strerror", (code,))) {
                Ok(text) => PyOSError::new_err((code, text.unbind())),
                Err(error) => error,
            }
        };
        loop {
            let count = self.pushed()?;
            if count == 0 {
                return Ok(());
            }
            match enter_ring(self.enter, self.fd, count) {
                Err(code) => return Err(failed(code)),
                Ok(0) => return Err(PyOSError::new_err((EAGAIN, "the kernel accepted no operation"))),
                Ok(_) => {}
            }
        }
    }

    fn withdraw(&self) -> PyResult<Vec<u64>> {
        let SharedQueues { rings, entries } = self.shared()?;
        let (head, count) = (rings.load(self.layout.sq_head), self.pushed()?);
        rings.store(self.layout.sq_tail, head);
        let user_data = |at: u32| entries.copy_out(self.place(head.wrapping_add(at)) + USER_DATA_AT);
        Ok((0..count).map(|at| u64::from_le_bytes(user_data(at))).collect())
    }

    fn ready(&self) -> PyResult<u32> {
        let rings = &self.shared()?.rings;
        Ok(rings.load(self.layout.cq_tail).wrapping_sub(rings.load(self.layout.cq_head)))
    }

    fn take(&self) -> PyResult<(u64, i32)> {
        let rings = &self.shared()?.rings;
        let head = rings.load(self.layout.cq_head);
        let at = self.layout.completions + (head & (self.layout.cq_entries - 1)) as usize * COMPLETION_BYTES;
        let user_data = u64::from_le_bytes(rings.copy_out(at));
        let result = i32::from_le_bytes(rings.copy_out(at + 8));
        rings.store(self.layout.cq_head, head.wrapping_add(1));
        Ok((user_data, result))
    }

    fn release(&mut self) {
        self.shared = None;
    }
}

impl Queues {
    fn shared(&self) -> PyResult<&SharedQueues> {
        self.shared.as_ref().ok_or_else(|| PyValueError::new_err("the ring is closed"))
    }

    /// Returns where the entry of a submission is.
    fn place(&self, number: u32) -> usize {
        (number & (self.layout.sq_entries - 1)) as usize * SUBMISSION_BYTES
    }

    fn add(&self, operation: Operation, fd: i32, user_data: u64) -> PyResult<()> {
        let (opcode, position, address, length, flags, fsync) = operation;
        let SharedQueues { rings, entries } = self.shared()?;
        let tail = rings.load(self.layout.sq_tail);
        let mut entry = [0; SUBMISSION_BYTES];
        (entry[0], entry[1]) = (opcode, flags);
        entry[4..8].copy_from_slice(&fd.to_le_bytes());
        entry[8..16].copy_from_slice(&position.to_le_bytes());
        entry[16..24].copy_from_slice(&address.to_le_bytes());
        entry[24..28].copy_from_slice(&length.to_le_bytes());
        entry[28..32].copy_from_slice(&fsync.to_le_bytes());
        entry[USER_DATA_AT..USER_DATA_AT + 8].copy_from_slice(&user_data.to_le_bytes());
        entries.copy_in(self.place(tail), &entry);
        rings.store(self.layout.sq_tail, tail.wrapping_add(1));
        Ok(())
    }
}
