//! The block of the log: twin of `WalBlock` in `wal/block.py`, byte for byte.

use crc32c::{crc32c, crc32c_append};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::memory::Memory;

const PAGE_BYTES: usize = 4096;
pub const RECORD_HEADER_BYTES: usize = 24;
const RECORD_START_BYTES: usize = 20;
const PADDING_BYTES_MIN: usize = RECORD_HEADER_BYTES + 8;
const RECORD_MAGIC: [u8; 4] = *b"ABWR";
const PADDING_MAGIC: [u8; 4] = *b"ABWP";

static DURABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Records from one page boundary on, in the order of their offsets, sharing one completion.
#[pyclass(module = "anabranch_native", weakref)]
pub struct WalBlock {
    #[pyo3(get)]
    pub offset: u64,
    #[pyo3(get)]
    pub buffer: Py<PyAny>,
    memory: Memory,
    #[pyo3(get)]
    room_bytes: usize,
    #[pyo3(get)]
    salt: u32,
    #[pyo3(get)]
    pub opened_at: f64,
    #[pyo3(get)]
    pub length: usize,
    #[pyo3(get)]
    pub records: u64,
    #[pyo3(get)]
    pub last_offset: u64,
    #[pyo3(get)]
    pub durable: Py<PyAny>,
}

#[pymethods]
impl WalBlock {
    #[new]
    fn new(
        py: Python<'_>,
        offset: u64,
        buffer: Py<PyAny>,
        room_bytes: usize,
        salt: u32,
        opened_at: f64,
    ) -> PyResult<Self> {
        let memory = Memory::of(buffer.bind(py))?;
        if (!memory.is_writable() && memory.len() > 0) || room_bytes < PADDING_BYTES_MIN {
            return Err(PyValueError::new_err(format!("{room_bytes} bytes are no room, or cannot be written")));
        }
        let class = DURABLE.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("anabranch.wal.interface")?.getattr("Durable")?.unbind())
        })?;
        let durable = class.call0(py)?;
        let room_bytes = room_bytes - PADDING_BYTES_MIN;
        let (length, records) = (0, 0);
        Ok(Self { offset, buffer, memory, room_bytes, salt, opened_at, length, records, last_offset: offset, durable })
    }

    /// Offset just past the last byte written so far; after `seal`, the start of the next block.
    #[getter]
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }

    /// Copy one record, which must fit, into the block; return its offset.
    fn add(&mut self, py: Python<'_>, parts: &Bound<'_, PyAny>, body_bytes: usize) -> PyResult<u64> {
        if body_bytes > self.memory.len() || self.length + RECORD_HEADER_BYTES + body_bytes > self.memory.len() {
            return Err(PyValueError::new_err(format!("no room for a record of {body_bytes} bytes")));
        }
        let mut end = self.length + RECORD_HEADER_BYTES;
        let stop = end + body_bytes;
        for part in parts.try_iter()? {
            let part = Memory::of(&part?)?;
            if part.len() > stop - end {
                return Err(PyValueError::new_err(format!("parts of more than {body_bytes} bytes")));
            }
            self.memory.copy_from(py, end, &part, 0..part.len());
            end += part.len();
        }
        if end != stop {
            return Err(PyValueError::new_err(format!("parts of less than {body_bytes} bytes")));
        }
        Ok(self.end_record(py, body_bytes))
    }

    /// End the block with its padding record, which carries the offset that was durable at this time.
    pub fn seal(&mut self, py: Python<'_>, durable_offset: u64) -> PyResult<()> {
        let end = sealed_bytes(self.length);
        if end > self.memory.len() {
            return Err(PyValueError::new_err(format!("no room for padding up to {end}")));
        }
        let body = self.length + RECORD_HEADER_BYTES;
        let padding = &mut self.memory.bytes_mut(py)[body..end];
        padding.fill(0);
        padding[..8].copy_from_slice(&durable_offset.to_le_bytes());
        self.write_header(py, PADDING_MAGIC, end - body);
        self.length = end;
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.buffer)?;
        visit.call(&self.durable)
    }
}

/// Returns the length of a block with its padding record.
pub fn sealed_bytes(length: usize) -> usize {
    (length + PADDING_BYTES_MIN).next_multiple_of(PAGE_BYTES)
}

impl WalBlock {
    /// Returns how many bytes of records, headers included, still fit.
    pub fn left(&self) -> usize {
        self.room_bytes.saturating_sub(self.length)
    }

    /// Appends a record whose body is `head` and a part of another memory. It must fit.
    pub fn add_slice(&mut self, py: Python<'_>, head: &[u8], rest: &Memory, range: std::ops::Range<usize>) -> u64 {
        let body = self.length + RECORD_HEADER_BYTES;
        let body_bytes = head.len() + range.len();
        self.memory.bytes_mut(py)[body..body + head.len()].copy_from_slice(head);
        self.memory.copy_from(py, body + head.len(), rest, range);
        self.end_record(py, body_bytes)
    }

    /// Completes the record whose body is in place; returns its offset.
    fn end_record(&mut self, py: Python<'_>, body_bytes: usize) -> u64 {
        self.write_header(py, RECORD_MAGIC, body_bytes);
        self.last_offset = self.offset + self.length as u64;
        self.length += RECORD_HEADER_BYTES + body_bytes;
        self.records += 1;
        self.last_offset
    }

    /// Writes the header of the record that begins at `length`; its body is in place.
    fn write_header(&mut self, py: Python<'_>, magic: [u8; 4], body_bytes: usize) {
        let (at, body) = (self.length, self.length + RECORD_HEADER_BYTES);
        let (body_offset, salt) = (self.offset + body as u64, self.salt);
        let bytes = self.memory.bytes_mut(py);
        let body_crc = crc32c(&bytes[body..body + body_bytes]);
        let header = &mut bytes[at..body];
        header[..4].copy_from_slice(&magic);
        header[4..8].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        header[8..16].copy_from_slice(&body_offset.to_le_bytes());
        header[16..20].copy_from_slice(&body_crc.to_le_bytes());
        let header_crc = crc32c_append(salt, &header[..RECORD_START_BYTES]);
        header[20..].copy_from_slice(&header_crc.to_le_bytes());
    }
}
