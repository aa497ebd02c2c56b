//! Answers to requests whose last batch is in one block of the log, all at once.
//!
//! Twin of the callback of `produce.handle`, of `Exchange.complete`, and of `Connection.completed` with what it calls.

use std::sync::Mutex;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::guard::guard;

/// Frames of this size are counted apart: see `LARGE_FRAME_BYTES` in `broker/node/net/framer.py`.
const LARGE_FRAME_BYTES: i64 = (64 << 10) + 1;
const LATENCY_BUCKETS: u32 = 26;

/// A request that waits until its batches are durable.
pub struct Waiting {
    pub connection: Py<PyAny>,
    pub exchange: Py<PyAny>,
    pub frame: Py<PyAny>,
    pub response: Py<PyBytes>,
}

/// Callback of a block of the log, for requests with no other callback between them.
#[pyclass(module = "anabranch_native", frozen)]
pub struct Acks {
    /// In the order of their appends.
    waiting: Mutex<Vec<Waiting>>,
    fail: Py<PyAny>,
}

impl Acks {
    pub fn new(first: Waiting, fail: Py<PyAny>) -> Self {
        Self { waiting: Mutex::new(vec![first]), fail }
    }

    /// Lets a request wait too. The block must not be complete.
    pub fn add(&self, request: Waiting) {
        self.waiting.lock().expect("not poisoned").push(request);
    }
}

#[pymethods]
impl Acks {
    /// Answer the requests, in their order. Never raises: a connection for which it fails is aborted.
    fn __call__(&self, error: &Bound<'_, PyAny>) {
        let py = error.py();
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("not poisoned"));
        for of_one in waiting.chunk_by(|one, next| one.connection.is(&next.connection)) {
            let answered = guard(|| if error.is_none() { answer(py, of_one) } else { self.refuse(of_one, error) });
            if let Err(bug) = answered {
                let connection = of_one[0].connection.bind(py);
                bug.write_unraisable(py, Some(connection));
                if let Err(bug) = connection.call_method0(intern!(py, "abort")) {
                    bug.write_unraisable(py, Some(connection));
                }
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.fail)?;
        if let Ok(waiting) = self.waiting.try_lock() {
            for each in waiting.iter() {
                visit.call(&each.connection)?;
                visit.call(&each.exchange)?;
                visit.call(&each.frame)?;
            }
        }
        Ok(())
    }
}

impl Acks {
    /// Answers requests whose batches were not written.
    fn refuse(&self, requests: &[Waiting], error: &Bound<'_, PyAny>) -> PyResult<()> {
        for Waiting { exchange, frame, .. } in requests {
            self.fail.bind(error.py()).call1((exchange, frame, error))?;
        }
        Ok(())
    }
}

/// Completes requests of one connection.
fn answer(py: Python<'_>, requests: &[Waiting]) -> PyResult<()> {
    let connection = requests[0].connection.bind(py);
    let is_closed = connection.getattr(intern!(py, "closed"))?.is_truthy()?;
    for each in requests {
        let exchange = each.exchange.bind(py);
        exchange.setattr(intern!(py, "done"), true)?;
        if !is_closed {
            exchange.setattr(intern!(py, "parts"), (&each.response,))?;
        }
    }
    if is_closed {
        return Ok(());
    }
    let order = connection.getattr(intern!(py, "_order"))?;
    let in_progress = order.getattr(intern!(py, "in_progress"))?;
    let manager = connection.getattr(intern!(py, "_manager"))?;
    let outgoing = connection.getattr(intern!(py, "_outgoing"))?.cast_into::<PyList>()?;
    let (mut freed, mut freed_large, mut is_any) = (0, 0, false);
    while in_progress.len()? > 0 && in_progress.get_item(0)?.getattr(intern!(py, "done"))?.is_truthy()? {
        let first = in_progress.call_method0(intern!(py, "popleft"))?;
        is_any = true;
        let size: i64 = first.getattr(intern!(py, "frame_bytes"))?.extract()?;
        *(if size >= LARGE_FRAME_BYTES { &mut freed_large } else { &mut freed }) += size;
        observe(&manager, &first)?;
        for part in first.getattr(intern!(py, "parts"))?.try_iter().into_iter().flatten() {
            outgoing.append(part?)?;
        }
        if first.is(&order.getattr(intern!(py, "_exclusive"))?) {
            order.setattr(intern!(py, "_exclusive"), py.None())?;
        }
    }
    if !is_any {
        return Ok(());
    }
    release(connection, freed, freed_large)?;
    if in_progress.len()? == 0 {
        connection.call_method0(intern!(py, "_flush"))?;
    } else if !connection.getattr(intern!(py, "_flush_scheduled"))?.is_truthy()? {
        connection.setattr(intern!(py, "_flush_scheduled"), true)?;
        let flush = connection.getattr(intern!(py, "_flush"))?;
        connection.getattr(intern!(py, "_loop"))?.call_method1(intern!(py, "call_soon"), (flush,))?;
    }
    if connection.getattr(intern!(py, "draining"))?.is_truthy()? && in_progress.len()? == 0 {
        connection.call_method0(intern!(py, "close"))?;
    } else if !connection.getattr(intern!(py, "_pumping"))?.is_truthy()? && may_go_on(connection, &order)? {
        connection.call_method0(intern!(py, "pump"))?;
    }
    Ok(())
}

/// Returns whether a request, or the rest of one, may have waited for an answer.
fn may_go_on(connection: &Bound<'_, PyAny>, order: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = connection.py();
    Ok(order.getattr(intern!(py, "waiting"))?.len()? > 0
        || connection.getattr(intern!(py, "_paused_reading"))?.is_truthy()?
        || connection.getattr(intern!(py, "_framer"))?.getattr(intern!(py, "waiting_bytes"))?.is_truthy()?)
}

/// Releases the memory of frames.
fn release(connection: &Bound<'_, PyAny>, freed: i64, freed_large: i64) -> PyResult<()> {
    let py = connection.py();
    let held: i64 = connection.getattr(intern!(py, "_bytes_held"))?.extract()?;
    connection.setattr(intern!(py, "_bytes_held"), held - freed)?;
    let budget = connection.getattr(intern!(py, "_budget"))?;
    if budget.getattr(intern!(py, "crowded"))?.is_truthy()? {
        budget.call_method1(intern!(py, "release_small"), (freed,))?;
    } else {
        let small: i64 = budget.getattr(intern!(py, "small_bytes"))?.extract()?;
        budget.setattr(intern!(py, "small_bytes"), small - freed)?;
    }
    if freed_large > 0 {
        connection.call_method1(intern!(py, "_give_large"), (freed_large,))?;
    }
    Ok(())
}

/// Counts a request by its duration: twin of `Server.answered`.
fn observe(manager: &Bound<'_, PyAny>, exchange: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = manager.py();
    let latencies = manager.getattr(intern!(py, "latency"))?.cast_into::<PyDict>()?;
    let Some(latency) = latencies.get_item(exchange.getattr(intern!(py, "api_key"))?)? else {
        manager.call_method1(intern!(py, "answered"), (exchange,))?;
        return Ok(());
    };
    let now: f64 = manager.call_method0(intern!(py, "clock"))?.extract()?;
    let seconds = now - exchange.getattr(intern!(py, "started"))?.extract::<f64>()?;
    let count: u64 = latency.getattr(intern!(py, "count"))?.extract()?;
    latency.setattr(intern!(py, "count"), count + 1)?;
    let total: f64 = latency.getattr(intern!(py, "seconds"))?.extract()?;
    latency.setattr(intern!(py, "seconds"), total + seconds)?;
    let length = u64::BITS - ((seconds * 1e6).abs() as u64).leading_zeros();
    let bucket = length.min(LATENCY_BUCKETS - 1) as usize;
    let buckets = latency.getattr(intern!(py, "buckets"))?.cast_into::<PyList>()?;
    let before: u64 = buckets.get_item(bucket)?.extract()?;
    buckets.set_item(bucket, before + 1)
}
