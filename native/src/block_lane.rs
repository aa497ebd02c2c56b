//! A block of the log on its way to the device and back, if it is like most: twin of what `BlockWriter` and `DeltaWal` do
//! together for one that is written alone and lies in one piece.
//!
//! As in the lane of Produce, all state stays in Python's objects, and Python handles what is unusual: `turn` returns
//! False before it has changed anything, and `written` leaves an error to the writer.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyString, PyTuple};

use crate::guard::guard;
use crate::wal_block::{WalBlock, sealed_bytes};

const RING_POSITION: u64 = 8192;
const IO_BYTES: u64 = 256 << 10;

/// The way between one log and its device. Only for a log without a budget, whose header is not read after each write.
#[pyclass(module = "anabranch_native", frozen)]
pub struct BlockLane {
    log: Py<PyAny>,
    writer: Py<PyAny>,
    device: Py<PyAny>,
    request: Py<PyAny>,
    write_kind: Py<PyAny>,
    partial: Py<PyAny>,
    span: Py<PyAny>,
    tuple_new: Py<PyAny>,
}

/// A block that may be handed over, and what was looked up for that.
struct Checked<'py> {
    block: Bound<'py, WalBlock>,
    window: Bound<'py, PyAny>,
    in_flight: Bound<'py, PyDict>,
    end: u64,
    durable: u64,
    position: u64,
}

#[pymethods]
impl BlockLane {
    #[new]
    fn new(log: Py<PyAny>, writer: Py<PyAny>, device: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = device.py();
        let find = |module: &str, name: &str| py.import(module)?.getattr(name);
        Ok(Self {
            log,
            writer,
            device: device.clone().unbind(),
            request: find("anabranch.wal.requests", "IoRequest")?.unbind(),
            write_kind: find("anabranch.wal.requests", "IoKind")?.getattr("WRITE")?.unbind(),
            partial: find("functools", "partial")?.unbind(),
            span: find("anabranch.wal.recovery", "BlockSpan")?.unbind(),
            tuple_new: py.get_type::<PyTuple>().getattr("__new__")?.unbind(),
        })
    }

    /// Seal the open block and hand it to the device, if nothing about it is unusual.
    ///
    /// Returns False, having changed nothing, if the writer must do so. Never raises: an error in the midst fails the log.
    fn turn(slf: &Bound<'_, Self>) -> bool {
        let (this, py) = (slf.get(), slf.py());
        let mut changed = None;
        match guard(|| this.try_turn(slf, &mut changed)) {
            Ok(taken) => taken,
            Err(error) => this.stop(py, error, changed),
        }
    }

    /// Take a write that is complete: callback of its request. Raises what a callback of its block raises.
    fn written(slf: &Bound<'_, Self>, blocks: &Bound<'_, PyTuple>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        guard(|| {
            let (this, py) = (slf.get(), slf.py());
            if request.getattr(intern!(py, "error"))?.is_none() {
                return this.complete(slf, blocks);
            }
            this.writer.call_method1(py, intern!(py, "_on_written"), (blocks, request))?;
            Ok(())
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.log)?;
        visit.call(&self.writer)?;
        visit.call(&self.device)
    }
}

impl BlockLane {
    fn try_turn<'py>(&self, slf: &Bound<'py, Self>, changed: &mut Option<Bound<'py, WalBlock>>) -> PyResult<bool> {
        let py = slf.py();
        let Some(checked) = self.check(py)? else { return Ok(false) };
        *changed = Some(checked.block.clone());
        self.seal(py, &checked)?;
        self.hand_over(slf, &checked)?;
        Ok(true)
    }

    /// Returns the open block if it may be handed over as it is.
    fn check<'py>(&self, py: Python<'py>) -> PyResult<Option<Checked<'py>>> {
        let (log, writer) = (self.log.bind(py), self.writer.bind(py));
        let open = log.getattr(intern!(py, "open_block"))?;
        let Ok(block) = open.cast_into::<WalBlock>() else { return Ok(None) };
        let in_flight = writer.getattr(intern!(py, "_in_flight"))?.cast_into::<PyDict>()?;
        if writer.getattr(intern!(py, "_stopped"))?.is_truthy()?
            || writer.getattr(intern!(py, "_pending"))?.len()? > 0
            || in_flight.len() >= writer.getattr(intern!(py, "_writes_max"))?.extract()?
            || writer.getattr(intern!(py, "_timeout_timer"))?.is_none()
        {
            return Ok(None);
        }
        let (start, length) = {
            let block = block.borrow();
            (block.offset, sealed_bytes(block.length) as u64)
        };
        let end = start + length;
        let window = writer.getattr(intern!(py, "window"))?;
        let number = |of: &Bound<'py, PyAny>, name| of.getattr(name)?.extract::<u64>();
        let durable = number(&window, intern!(py, "start"))?;
        let prewriter = log.getattr(intern!(py, "_prewriter"))?;
        if number(&window, intern!(py, "handed"))? != start
            || end - durable > number(&window, intern!(py, "bound"))?
            || end > number(log, intern!(py, "_limit_offset"))?
            || end > number(&prewriter, intern!(py, "limit_offset"))?
        {
            return Ok(None);
        }
        let header = writer.getattr(intern!(py, "_header"))?.getattr(intern!(py, "header"))?;
        let capacity = number(&header, intern!(py, "capacity_bytes"))?;
        let ring = capacity - RING_POSITION;
        // A log that was made larger may have a base offset past its first blocks.
        let base = number(&header, intern!(py, "base_offset"))? % ring;
        let position = RING_POSITION + (start + ring - base) % ring;
        if length > capacity - position {
            return Ok(None); // it crosses the end of the ring
        }
        Ok(Some(Checked { block, window, in_flight, end, durable, position }))
    }

    /// Twin of `DeltaWal.seal_open_block`.
    fn seal(&self, py: Python<'_>, checked: &Checked<'_>) -> PyResult<()> {
        let log = self.log.bind(py);
        log.setattr(intern!(py, "open_block"), py.None())?;
        let stats = log.getattr(intern!(py, "stats"))?;
        let mut block = checked.block.borrow_mut();
        add_to(&stats, intern!(py, "records"), block.records)?;
        add_to(&stats, intern!(py, "record_bytes"), block.length as u64)?;
        block.seal(py, checked.durable)?;
        add_to(&stats, intern!(py, "blocks"), 1)?;
        add_to(&stats, intern!(py, "block_bytes"), block.length as u64)?;
        add_to(&stats, intern!(py, "writes"), (block.length as u64).div_ceil(IO_BYTES))?;
        log.setattr(intern!(py, "_next_offset"), checked.end)
    }

    /// Twin of `BlockWriter._hand_over`.
    fn hand_over(&self, slf: &Bound<'_, Self>, checked: &Checked<'_>) -> PyResult<()> {
        let py = slf.py();
        let writer = self.writer.bind(py);
        checked.window.setattr(intern!(py, "handed"), checked.end)?;
        writer.getattr(intern!(py, "_writing"))?.call_method1(intern!(py, "append"), (&checked.block,))?;
        let blocks = PyTuple::new(py, [&checked.block])?;
        let now = writer.getattr(intern!(py, "_loop"))?.call_method0(intern!(py, "time"))?;
        checked.in_flight.set_item(&blocks, now)?;
        let memory = {
            let block = checked.block.borrow();
            block.buffer.bind(py).get_item(PySlice::new(py, 0, block.length as isize, 1))?
        };
        let done = self.partial.bind(py).call1((slf.getattr(intern!(py, "written"))?, &blocks))?;
        let segments = PyList::new(py, [(checked.position, memory)])?;
        let request = self.request.bind(py).call1((&self.write_kind, segments, done))?;
        self.device.call_method1(py, intern!(py, "submit"), (request,))?;
        Ok(())
    }

    /// Twin of `BlockWriter._on_durable`.
    fn complete(&self, slf: &Bound<'_, Self>, blocks: &Bound<'_, PyTuple>) -> PyResult<()> {
        let py = slf.py();
        let writer = self.writer.bind(py);
        let in_flight = writer.getattr(intern!(py, "_in_flight"))?.cast_into::<PyDict>()?;
        if !in_flight.contains(blocks)? {
            return Ok(()); // the log has failed in the meantime
        }
        in_flight.del_item(blocks)?;
        let (start, end) = {
            let block = blocks.get_item(0)?.cast_into::<WalBlock>()?;
            let block = block.borrow();
            (block.offset, block.offset + block.length as u64)
        };
        let window = writer.getattr(intern!(py, "window"))?;
        let is_next = window.getattr(intern!(py, "start"))?.extract::<u64>()? == start
            && window.getattr(intern!(py, "_done"))?.len()? == 0;
        let is_moved = if is_next {
            window.setattr(intern!(py, "start"), end)?;
            true
        } else {
            window.call_method1(intern!(py, "complete"), (start, end))?.is_truthy()?
        };
        if is_moved {
            self.acknowledge(py, &window)?;
        }
        let open = self.log.bind(py).getattr(intern!(py, "open_block"))?;
        if writer.getattr(intern!(py, "_pending"))?.len()? > 0 || (!open.is_none() && !Self::turn(slf)) {
            writer.call_method0(intern!(py, "pump"))?;
        }
        Ok(())
    }

    /// Twin of `BlockWriter._ack` and `DeltaWal.block_durable`.
    fn acknowledge(&self, py: Python<'_>, window: &Bound<'_, PyAny>) -> PyResult<()> {
        let (log, writer) = (self.log.bind(py), self.writer.bind(py));
        let start: u64 = window.getattr(intern!(py, "start"))?.extract()?;
        let writing = writer.getattr(intern!(py, "_writing"))?;
        while writing.len()? > 0 && !writer.getattr(intern!(py, "_stopped"))?.is_truthy()? {
            let block = writing.get_item(0)?.cast_into::<WalBlock>()?;
            let (offset, last_offset, end, records, opened_at) = {
                let block = block.borrow();
                (block.offset, block.last_offset, block.offset + block.length as u64, block.records, block.opened_at)
            };
            if end > start {
                break;
            }
            writing.call_method0(intern!(py, "popleft"))?;
            let span = self.tuple_new.bind(py).call1((&self.span, (offset, last_offset, end)))?;
            log.getattr(intern!(py, "_live"))?.call_method1(intern!(py, "append"), (span,))?;
            let (buffer, durable) = {
                let block = block.borrow();
                (block.buffer.clone_ref(py), block.durable.clone_ref(py))
            };
            log.getattr(intern!(py, "_pool"))?.call_method1(intern!(py, "give"), (buffer,))?;
            let now: f64 = log.call_method0(intern!(py, "_clock"))?.extract()?;
            log.getattr(intern!(py, "stats"))?.call_method1(intern!(py, "observe"), (now - opened_at, records))?;
            durable.call_method0(py, intern!(py, "complete"))?;
        }
        Ok(())
    }

    /// Fails the log if an error came in the midst of the change of a block; returns whether it did.
    fn stop(&self, py: Python<'_>, error: PyErr, changed: Option<Bound<'_, WalBlock>>) -> bool {
        let Some(block) = changed else {
            error.write_unraisable(py, None);
            return false;
        };
        if let Err(bug) = self.log.call_method1(py, intern!(py, "broken"), (block, error)) {
            bug.write_unraisable(py, None);
        }
        true
    }
}

fn add_to(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, count: u64) -> PyResult<()> {
    object.setattr(name, object.getattr(name)?.extract::<u64>()? + count)
}
