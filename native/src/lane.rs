//! The lane: a Produce request that is like most, from its frame to its place in the log, in one call.
//!
//! Twin of what `Connection._start`, `Dispatcher.dispatch`, `produce.handle`, `Partition.append` and `Stream.append` do
//! together. All state stays in Python's objects: a call reads what decides about the request from its owners, in the
//! turn in which it acts, and keeps nothing for the next one. So there is nothing to invalidate.
//!
//! `take` has two halves. The first only reads: it returns False, and Python handles the request, as soon as anything is
//! unusual. The second changes what Python would change, in the same order.

use std::collections::HashMap;
use std::sync::Mutex;

use pyo3::exceptions::PyOverflowError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PySlice, PyString, PyTuple};

use crate::acks::{Acks, Waiting};
use crate::batch::{HEADER_BYTES, Header, Limits, NO_PRODUCER_ID, add_sequence, patch};
use crate::frame::{Appended, Request, encode_response, parse};
use crate::guard::guard;
use crate::memory::Memory;
use crate::wal_block::WalBlock;

const RECORD_HEADER_BYTES: usize = 48;
const RECORD_VERSION: u8 = 1;
const WINDOW_BATCHES: usize = 5;
const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];
/// Bytes of a frame's size, which precedes it.
const FRAME_SIZE_BYTES: usize = 4;
/// Configs that are kept parsed.
const CONFIGS_MAX: usize = 1024;
/// What the log writes of a record beside its bytes, at most: the rest of a page and a padding record.
const BLOCK_OVERHEAD_BYTES: usize = 4096 + 32;

/// What the lane uses of Python, by the names of its parameters.
#[pyclass(module = "anabranch_native", frozen)]
pub struct ProduceLane {
    by_name: Py<PyDict>,
    by_id: Py<PyDict>,
    requests: Py<PyDict>,
    journal: Py<PyAny>,
    tools: Tools,
    /// Configs by their identity, which stays theirs as long as they are here.
    limits: Mutex<HashMap<usize, Known>>,
}

/// A config, and what it says about batches; None if it asks for more than the common rules.
type Known = (Py<PyAny>, Option<Limits>);

/// Classes and functions of Python.
struct Tools {
    stream_batch: Py<PyAny>,
    max_timestamp: Py<PyAny>,
    batch_entry: Py<PyAny>,
    exchange: Py<PyAny>,
    has_plain_frame: Py<PyAny>,
    tuple_new: Py<PyAny>,
    batch_overhead_bytes: i64,
    fail: Py<PyAny>,
    abort: Py<PyAny>,
}

impl Tools {
    fn find(py: Python<'_>, fail: Py<PyAny>, abort: Py<PyAny>) -> PyResult<Self> {
        let find = |module: &str, name: &str| py.import(module)?.getattr(name).map(Bound::unbind);
        Ok(Self {
            stream_batch: find("anabranch.s3stream.model", "StreamBatch")?,
            max_timestamp: find("anabranch.broker.kafka.partitions.snapshot", "MaxTimestamp")?,
            batch_entry: find("anabranch.broker.kafka.partitions.producers", "BatchEntry")?,
            exchange: find("anabranch.broker.node.net.exchange", "Exchange")?,
            has_plain_frame: find("anabranch.protocol.record_shape", "has_plain_frame")?,
            tuple_new: py.get_type::<PyTuple>().getattr("__new__")?.unbind(),
            batch_overhead_bytes: find("anabranch.s3stream.model", "BATCH_OVERHEAD_BYTES")?.extract(py)?,
            fail,
            abort,
        })
    }

    /// Returns a named tuple without a call of its `__new__`, which is Python code.
    fn named<'py>(&self, class: &Py<PyAny>, values: Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        self.tuple_new.bind(py).call1((class.bind(py), values))
    }
}

/// Log and log cache, looked up once for a request.
struct Log<'py> {
    wal: Bound<'py, PyAny>,
    /// The open block of the log.
    open: Option<Bound<'py, WalBlock>>,
    /// The current block of the log cache.
    block: Bound<'py, PyAny>,
    /// Its size.
    cached_bytes: i64,
    threshold_bytes: i64,
}

/// How far a request is, which decides what an error means.
#[derive(PartialEq)]
enum Progress {
    /// Nothing is changed.
    Looking,
    /// A batch may be in the log and not in its stream.
    Appending,
    /// At least one batch is appended; the last one wholly.
    Appended,
}

/// Where a batch was appended.
struct Placed<'py> {
    base_offset: i64,
    end_offset: i64,
    wal_offset: u64,
    durable: Bound<'py, PyAny>,
}

/// A batch that may be appended, with what was looked up for that.
struct Checked<'py> {
    partition: Bound<'py, PyAny>,
    stream: Bound<'py, PyAny>,
    records: std::ops::Range<usize>,
    header: Header,
    now_ms: i64,
    /// State of its producer, if it has one.
    producer: Option<Bound<'py, PyAny>>,
}

#[pymethods]
impl ProduceLane {
    /// `fail(exchange, frame, error)` answers a request whose block failed. `abort(connection, error, is_torn)` closes a
    /// connection after an error in the midst of a request; `is_torn` if log and stream may not agree any more.
    #[new]
    fn new(
        topics: &Bound<'_, PyAny>,
        journal: Py<PyAny>,
        requests: Py<PyDict>,
        fail: Py<PyAny>,
        abort: Py<PyAny>,
    ) -> PyResult<Self> {
        let py = topics.py();
        Ok(Self {
            by_name: topics.getattr("_by_name")?.cast_into()?.unbind(),
            by_id: topics.getattr("_by_id")?.cast_into()?.unbind(),
            requests,
            journal,
            tools: Tools::find(py, fail, abort)?,
            limits: Mutex::default(),
        })
    }

    /// Handle a request if it is a Produce request and nothing about it is unusual.
    ///
    /// Returns False, having changed nothing, if the dispatcher must handle it. Never raises.
    fn take(&self, connection: &Bound<'_, PyAny>, frame: &Bound<'_, PyAny>) -> bool {
        let mut progress = Progress::Looking;
        let error = match guard(|| self.try_take(connection, frame, &mut progress)) {
            Ok(taken) => return taken,
            Err(error) => error,
        };
        let py = connection.py();
        if progress == Progress::Looking {
            error.write_unraisable(py, Some(connection));
            return false;
        }
        let is_torn = progress == Progress::Appending;
        if let Err(error) = self.tools.abort.call1(py, (connection, error, is_torn)) {
            error.write_unraisable(py, Some(connection));
        }
        true
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.by_name)?;
        visit.call(&self.by_id)?;
        visit.call(&self.requests)?;
        visit.call(&self.journal)?;
        visit.call(&self.tools.fail)?;
        visit.call(&self.tools.abort)
    }
}

impl ProduceLane {
    fn try_take<'py>(
        &self,
        connection: &Bound<'py, PyAny>,
        frame: &Bound<'py, PyAny>,
        progress: &mut Progress,
    ) -> PyResult<bool> {
        let py = connection.py();
        let mut memory = Memory::of(frame)?;
        if !memory.is_writable() {
            return Ok(false);
        }
        let Some(request) = parse(memory.bytes(py)) else { return Ok(false) };
        if !self.may_take(connection)? {
            return Ok(false);
        }
        let Some(checked) = self.check_all(py, &request, &memory, frame)? else { return Ok(false) };
        let Some(mut log) = self.find_room(py, &checked)? else { return Ok(false) };
        let views = PyMemoryView::from(frame)?;
        let received = connection.getattr(intern!(py, "traffic"))?.getattr(intern!(py, "received"))?.cast_into()?;
        let mut appended = Vec::with_capacity(checked.len());
        let mut durable = None;
        for each in &checked {
            match self.append(each, &mut log, &mut memory, views.as_any(), &received, progress) {
                Ok((result, completion)) => {
                    appended.push(result);
                    durable = Some(completion);
                }
                // Mostly the log has failed: Python finds out, and answers.
                Err(_) if *progress == Progress::Looking => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let exchange = self.start(connection, &request, memory.bytes(py))?;
        let response = encode_response(memory.bytes(py), &request, &appended);
        drop(memory);
        match durable {
            Some(durable) if request.acks != 0 => {
                let response = PyBytes::new(py, &response).unbind();
                let frame = frame.clone().unbind();
                let connection = connection.clone().unbind();
                let waiting = Waiting { connection, exchange: exchange.unbind(), frame, response };
                self.answer_when(py, &durable, waiting)?;
            }
            _ => {
                exchange.call_method1(intern!(py, "complete"), (py.None(),))?;
            }
        }
        Ok(true)
    }

    /// Returns whether connection and engine are in their usual state.
    fn may_take(&self, connection: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = connection.py();
        if !connection.getattr(intern!(py, "peer"))?.is_none()
            || !connection.getattr(intern!(py, "refused_batches"))?.cast::<PyDict>()?.is_empty()
        {
            return Ok(false);
        }
        let admission = self.journal.bind(py).getattr(intern!(py, "admission"))?;
        Ok(admission.getattr(intern!(py, "error"))?.is_none()
            && !admission.getattr(intern!(py, "is_stalled"))?.is_truthy()?)
    }

    /// Returns every batch of the request; None if one is unusual.
    fn check_all<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        memory: &Memory,
        frame: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Vec<Checked<'py>>>> {
        let mut found: Vec<Checked<'py>> = Vec::with_capacity(request.batch_count());
        for topic in &request.topics {
            let named = &memory.bytes(py)[topic.name.clone()];
            let topic_found = if request.has_topic_ids() {
                let found = self.by_id.bind(py).get_item(PyBytes::new(py, named))?;
                if let Some(found) = &found {
                    let name = found.getattr(intern!(py, "name"))?.cast_into::<PyString>()?;
                    if INTERNAL_TOPICS.contains(&name.to_str()?) {
                        return Ok(None);
                    }
                }
                found
            } else {
                let name = std::str::from_utf8(named).expect("the parser has checked names");
                if INTERNAL_TOPICS.contains(&name) {
                    return Ok(None);
                }
                self.by_name.bind(py).get_item(PyString::new(py, name))?
            };
            let Some(topic_found) = topic_found else { return Ok(None) };
            let partitions = topic_found.getattr(intern!(py, "partitions"))?.cast_into::<PyList>()?;
            for batch in &topic.batches {
                let Ok(index) = usize::try_from(batch.index) else { return Ok(None) };
                if index >= partitions.len() {
                    return Ok(None);
                }
                let partition = partitions.get_item(index)?;
                if partition.is_none() || found.iter().any(|other| other.partition.is(&partition)) {
                    return Ok(None);
                }
                let Some(checked) = self.check(partition, batch.records.clone(), memory, frame)? else {
                    return Ok(None);
                };
                found.push(checked);
            }
        }
        Ok(Some(found))
    }

    /// Returns a batch with its partition; None if there is anything unusual about either.
    fn check<'py>(
        &self,
        partition: Bound<'py, PyAny>,
        records: std::ops::Range<usize>,
        memory: &Memory,
        frame: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Checked<'py>>> {
        let py = partition.py();
        let stream = partition.getattr(intern!(py, "stream"))?;
        if !stream.getattr(intern!(py, "error"))?.is_none() {
            return Ok(None);
        }
        let Some(limits) = self.limits_of(&partition.getattr(intern!(py, "config"))?)? else { return Ok(None) };
        let now_ms: i64 = partition.call_method0(intern!(py, "now_ms"))?.extract()?;
        let batch = &memory.bytes(py)[records.clone()];
        let Some(header) = Header::parse(batch) else { return Ok(None) };
        if !header.is_usual(batch, &limits, now_ms) {
            return Ok(None);
        }
        if header.is_compressed() {
            let view = slice(PyMemoryView::from(frame)?.as_any(), &records)?;
            let shape = (view, HEADER_BYTES, header.attributes, header.record_count);
            if !self.tools.has_plain_frame.bind(py).call1(shape)?.is_truthy()? {
                return Ok(None);
            }
        }
        let mut producer = None;
        if header.producer_id != NO_PRODUCER_ID {
            producer = next_of_producer(&partition, &header)?;
            if producer.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Checked { partition, stream, records, header, now_ms, producer }))
    }

    /// Returns what a topic's config says about batches; None if it asks for more than the common rules.
    fn limits_of(&self, config: &Bound<'_, PyAny>) -> PyResult<Option<Limits>> {
        let py = config.py();
        let key = config.as_ptr() as usize;
        if let Some((_, limits)) = self.limits.lock().expect("not poisoned").get(&key) {
            return Ok(*limits);
        }
        let is_common = config.getattr(intern!(py, "has_common_rules"))?.is_truthy()?;
        let limits = Limits {
            max_message_bytes: config.getattr(intern!(py, "max_message_bytes"))?.extract()?,
            timestamp_before_max_ms: config.getattr(intern!(py, "timestamp_before_max_ms"))?.extract()?,
            timestamp_after_max_ms: config.getattr(intern!(py, "timestamp_after_max_ms"))?.extract()?,
        };
        let limits = is_common.then_some(limits);
        let mut kept = self.limits.lock().expect("not poisoned");
        let dropped = if kept.len() < CONFIGS_MAX { HashMap::new() } else { std::mem::take(&mut *kept) };
        kept.insert(key, (config.clone().unbind(), limits));
        drop(kept);
        drop(dropped); // without the lock: Python code may run when an object is freed
        Ok(limits)
    }

    /// Returns log and log cache if they have room for all of the batches.
    fn find_room<'py>(&self, py: Python<'py>, checked: &[Checked<'py>]) -> PyResult<Option<Log<'py>>> {
        let journal = self.journal.bind(py);
        let block = journal.getattr(intern!(py, "cache"))?.getattr(intern!(py, "current"))?;
        let cached_bytes: i64 = block.getattr(intern!(py, "size_bytes"))?.extract()?;
        let bytes_max: i64 = journal.getattr(intern!(py, "current_bytes_max"))?.extract()?;
        let threshold_bytes: i64 = journal.getattr(intern!(py, "threshold_bytes"))?.extract()?;
        let wal = journal.getattr(intern!(py, "wal"))?;
        let open = wal.getattr(intern!(py, "open_block"))?;
        let open = if open.is_none() { None } else { Some(open.cast_into::<WalBlock>()?) };
        let mut left = open.as_ref().map_or(0, |open| open.borrow().left());
        let (mut cached, mut needs_block, mut total) = (cached_bytes, false, 0);
        for each in checked {
            if cached >= bytes_max {
                return Ok(None);
            }
            cached += each.records.len() as i64 + self.tools.batch_overhead_bytes;
            let size = record_bytes(&each.records);
            needs_block |= size > left;
            left = left.saturating_sub(size);
            total += size + BLOCK_OVERHEAD_BYTES;
        }
        if needs_block && !wal.call_method1(intern!(py, "has_room"), (total,))?.is_truthy()? {
            return Ok(None);
        }
        Ok(Some(Log { wal, open, block, cached_bytes, threshold_bytes }))
    }

    /// Appends a batch to log and log cache, and notes it in its partition and in the traffic of the client's rack.
    fn append<'py>(
        &self,
        checked: &Checked<'py>,
        log: &mut Log<'py>,
        memory: &mut Memory,
        views: &Bound<'py, PyAny>,
        received: &Bound<'py, PyDict>,
        progress: &mut Progress,
    ) -> PyResult<(Appended, Bound<'py, PyAny>)> {
        let Checked { partition, stream, header, records, .. } = checked;
        let py = partition.py();
        let base_offset: i64 = stream.getattr(intern!(py, "next_offset"))?.extract()?;
        let Some(end_offset) = base_offset.checked_add(header.record_count.into()) else {
            return Err(PyOverflowError::new_err("the stream has no offsets left"));
        };
        let leader_epoch: i32 = partition.getattr(intern!(py, "leader_epoch"))?.extract()?;
        let stream_id = stream.getattr(intern!(py, "stream_id"))?;
        let epoch = stream.getattr(intern!(py, "epoch"))?.extract()?;
        let head = record_header(header, stream_id.extract()?, epoch, base_offset, end_offset);
        let size = record_bytes(records);
        let open = match log.open.take() {
            Some(open) if size <= open.borrow().left() => open,
            // It fails only if the device does in that moment: `has_room` has ruled out everything else.
            _ => log.wal.call_method1(intern!(py, "_open_block"), (size,))?.cast_into()?,
        };
        *progress = Progress::Appending;
        patch(&mut memory.bytes_mut(py)[records.clone()], base_offset, leader_epoch);
        let placed = {
            let mut open = open.borrow_mut();
            let wal_offset = open.add_slice(py, &head, memory, records.clone());
            Placed { base_offset, end_offset, wal_offset, durable: open.durable.clone_ref(py).into_bound(py) }
        };
        log.open = Some(open);
        self.append_to_stream(checked, log, views, &placed, &stream_id)?;
        self.note_in_partition(checked, &placed)?;
        let before: i64 = received.get_item(&stream_id)?.map_or(Ok(0), |count| count.extract())?;
        received.set_item(&stream_id, before + records.len() as i64)?;
        let log_start_offset = stream.getattr(intern!(py, "start_offset"))?.extract()?;
        *progress = Progress::Appended;
        Ok((Appended { base_offset, log_start_offset }, placed.durable))
    }

    /// Twin of `Stream.append`, after the append to the log.
    fn append_to_stream<'py>(
        &self,
        checked: &Checked<'py>,
        log: &mut Log<'py>,
        views: &Bound<'py, PyAny>,
        placed: &Placed<'py>,
        stream_id: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let Placed { base_offset, end_offset, wal_offset, durable } = placed;
        let Checked { stream, header, records, .. } = checked;
        let py = stream.py();
        let journal = self.journal.bind(py);
        let block = &log.block;
        let mut run = stream.getattr(intern!(py, "_run"))?;
        if run.is_none() || !run.getattr(intern!(py, "block"))?.is(block) {
            run = journal.call_method1(intern!(py, "start_run"), (stream_id, base_offset))?;
            stream.setattr(intern!(py, "_run"), &run)?;
            if !stream.getattr(intern!(py, "_is_replayed"))?.is_truthy()? {
                stream.call_method0(intern!(py, "_mark_replayed"))?;
            }
        }
        let end = end_offset.into_pyobject(py)?;
        let payload = slice(views, records)?;
        let values = (stream_id, base_offset, &end, header.record_count, header.max_timestamp, payload);
        let batch = self.tools.named(&self.tools.stream_batch, values.into_pyobject(py)?)?;
        let sizes = run.getattr(intern!(py, "_cumulative_bytes"))?.cast_into::<PyList>()?;
        let before: i64 = match sizes.len() {
            0 => 0,
            length => sizes.get_item(length - 1)?.extract()?,
        };
        let size_bytes = records.len() as i64;
        sizes.append(before + size_bytes)?;
        run.getattr(intern!(py, "_batches"))?.cast::<PyList>()?.append(batch)?;
        run.getattr(intern!(py, "_ends"))?.cast::<PyList>()?.append(&end)?;
        block.getattr(intern!(py, "order"))?.cast::<PyList>()?.append(stream_id)?;
        stream.setattr(intern!(py, "next_offset"), &end)?;
        log.cached_bytes += size_bytes + self.tools.batch_overhead_bytes;
        block.setattr(intern!(py, "size_bytes"), log.cached_bytes)?;
        block.setattr(intern!(py, "wal_offset"), wal_offset)?;
        block.setattr(intern!(py, "durable"), durable)?;
        if durable.is(&journal.getattr(intern!(py, "durable"))?)
            && !durable.getattr(intern!(py, "done"))?.is_truthy()?
        {
            journal.getattr(intern!(py, "pending"))?.cast::<PyDict>()?.set_item(stream, &end)?;
        } else {
            journal.call_method1(intern!(py, "note"), (stream, &end, durable))?;
        }
        if log.cached_bytes >= log.threshold_bytes {
            journal.getattr(intern!(py, "sealer"))?.call_method0(intern!(py, "request"))?;
        }
        Ok(())
    }

    /// Twin of `Partition.append`, after the append to the stream.
    fn note_in_partition(&self, checked: &Checked<'_>, placed: &Placed<'_>) -> PyResult<()> {
        let Placed { base_offset, end_offset, durable, .. } = placed;
        let Checked { partition, header, records, now_ms, producer, .. } = checked;
        let py = partition.py();
        let newest: i64 = partition.getattr(intern!(py, "max_timestamp"))?.cast::<PyTuple>()?.get_item(0)?.extract()?;
        if header.max_timestamp > newest {
            let values = (header.max_timestamp, base_offset).into_pyobject(py)?;
            let found = self.tools.named(&self.tools.max_timestamp, values)?;
            partition.setattr(intern!(py, "max_timestamp"), found)?;
        }
        let appended: i64 = partition.getattr(intern!(py, "appended_bytes"))?.extract()?;
        partition.setattr(intern!(py, "appended_bytes"), appended + records.len() as i64)?;
        let requests: i64 = partition.getattr(intern!(py, "requests"))?.extract()?;
        partition.setattr(intern!(py, "requests"), requests + 1)?;
        if !partition.getattr(intern!(py, "_listeners"))?.cast::<PyDict>()?.is_empty()
            && !durable.is(&partition.getattr(intern!(py, "_last_durable"))?)
        {
            let listener = partition.getattr(intern!(py, "_on_durable"))?;
            durable.call_method1(intern!(py, "add_done_callback"), (listener,))?;
        }
        partition.setattr(intern!(py, "_last_durable"), durable)?;
        if header.has_untimed() {
            partition.setattr(intern!(py, "untimed_end"), end_offset)?;
        }
        if let Some(entry) = producer {
            entry.setattr(intern!(py, "last_used_ms"), *now_ms)?;
            let first = header.base_sequence;
            let last = add_sequence(first, header.record_count - 1);
            let values = (first, last, base_offset, end_offset, -1i64).into_pyobject(py)?;
            let batches = entry.getattr(intern!(py, "batches"))?.cast_into::<PyList>()?;
            batches.append(self.tools.named(&self.tools.batch_entry, values)?)?;
            if batches.len() > WINDOW_BATCHES {
                batches.del_item(0)?;
            }
        }
        Ok(())
    }

    /// Notes that the request is in progress; returns its exchange.
    fn start<'py>(
        &self,
        connection: &Bound<'py, PyAny>,
        request: &Request,
        frame: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = connection.py();
        let client_id = request
            .client_id
            .as_ref()
            .map(|range| std::str::from_utf8(&frame[range.clone()]).expect("the parser has checked it"));
        let values = (connection, 0, request.version, request.correlation_id, client_id);
        let exchange = self.tools.exchange.bind(py).call1(values)?;
        exchange.setattr(intern!(py, "header_end"), request.header_end)?;
        exchange.setattr(intern!(py, "frame_bytes"), frame.len() + FRAME_SIZE_BYTES)?;
        let in_progress = connection.getattr(intern!(py, "_order"))?.getattr(intern!(py, "in_progress"))?;
        in_progress.call_method1(intern!(py, "append"), (&exchange,))?;
        let requests = self.requests.bind(py);
        let before: u64 = requests.get_item(0)?.map_or(Ok(0), |count| count.extract())?;
        requests.set_item(0, before + 1)?;
        Ok(exchange)
    }

    /// Answers a request when its last batch is durable, in the order of the block's other callbacks.
    fn answer_when(&self, py: Python<'_>, durable: &Bound<'_, PyAny>, waiting: Waiting) -> PyResult<()> {
        let callbacks = durable.getattr(intern!(py, "_callbacks"))?.cast_into::<PyList>()?;
        if let Some(Ok(last)) = callbacks.iter().next_back().map(Bound::cast_into::<Acks>) {
            last.get().add(waiting);
            return Ok(());
        }
        let acks = Acks::new(waiting, self.tools.fail.clone_ref(py));
        durable.call_method1(intern!(py, "add_done_callback"), (Py::new(py, acks)?,))?;
        Ok(())
    }
}

/// Returns the state of the batch's producer if the batch is the next in its sequence, and no transaction is open.
fn next_of_producer<'py>(partition: &Bound<'py, PyAny>, header: &Header) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = partition.py();
    let open = partition.getattr(intern!(py, "transactions"))?.getattr(intern!(py, "_open"))?;
    if !open.cast::<PyDict>()?.is_empty() {
        return Ok(None);
    }
    let known = partition.getattr(intern!(py, "producers"))?.getattr(intern!(py, "_producers"))?;
    let Some(entry) = known.cast::<PyDict>()?.get_item(header.producer_id)? else { return Ok(None) };
    let epoch: i64 = entry.getattr(intern!(py, "epoch"))?.extract()?;
    let batches = entry.getattr(intern!(py, "batches"))?.cast_into::<PyList>()?;
    let mut expected = None;
    for batch in batches.iter() {
        let batch = batch.cast::<PyTuple>()?;
        let (first, last): (i32, i32) = (batch.get_item(0)?.extract()?, batch.get_item(1)?.extract()?);
        if first == header.base_sequence {
            return Ok(None); // it may be a duplicate
        }
        expected = Some(add_sequence(last, 1));
    }
    let is_next = epoch == i64::from(header.producer_epoch) && expected == Some(header.base_sequence);
    Ok(is_next.then_some(entry))
}

/// Returns the size of a record of the log with a batch.
fn record_bytes(records: &std::ops::Range<usize>) -> usize {
    crate::wal_block::RECORD_HEADER_BYTES + RECORD_HEADER_BYTES + records.len()
}

/// Encodes the head of a record's body: twin of `RECORD_HEADER` in `s3stream/append/wal_record.py`.
fn record_header(
    header: &Header,
    stream_id: i64,
    epoch: i64,
    base_offset: i64,
    end_offset: i64,
) -> [u8; RECORD_HEADER_BYTES] {
    let mut out = [0; RECORD_HEADER_BYTES];
    out[0] = RECORD_VERSION;
    out[4..8].copy_from_slice(&header.record_count.to_le_bytes());
    let numbers = [stream_id, epoch, base_offset, end_offset, header.max_timestamp];
    for (at, number) in numbers.iter().enumerate() {
        out[8 + 8 * at..16 + 8 * at].copy_from_slice(&number.to_le_bytes());
    }
    out
}

fn slice<'py>(view: &Bound<'py, PyAny>, range: &std::ops::Range<usize>) -> PyResult<Bound<'py, PyAny>> {
    view.get_item(PySlice::new(view.py(), range.start as isize, range.end as isize, 1))
}
