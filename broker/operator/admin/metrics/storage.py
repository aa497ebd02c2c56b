"""Metrics of the storage: the log, the caches, uploads, object stores, compaction, collection, manifests."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Metric

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics.definitions import (
    Definition,
    counter,
    definitions_in,
    gauge,
    histogram,
    of_stats,
)
from anabranch.compaction.context import CompactionStats
from anabranch.s3stream.maintain.gc import GcStats
from anabranch.s3stream.outages import CATALOG, object_store
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.store.interface import CallCounts
from anabranch.wal.stats import WalStats

WRITABLE = gauge("anabranch_writable", "1 while the node accepts records, 0 while producers must wait or try again.")
OUTAGE = gauge("anabranch_outage", "1 while the catalog or an object store does not answer.", "where")
OUTAGE_START = gauge("anabranch_outage_start_timestamp_seconds", "First failure of the outage.", "where")
STOPPED_STREAMS = gauge("anabranch_stopped_streams", "Partitions that are stopped: a record in the middle is missing.")
DAMAGED_OBJECTS = gauge(
    "anabranch_damaged_objects", "Objects that are corrupt or missing, as far as reads have met them."
)
DAMAGED_READS = counter("anabranch_damaged_reads_total", "Reads that failed because an object is corrupt or missing.")
LOG_CACHE = gauge("anabranch_log_cache_bytes", "Bytes in the log cache.")
LOG_CACHE_CAPACITY = gauge("anabranch_log_cache_capacity_bytes", "Size of the log cache.")
BLOCK_CACHE = gauge("anabranch_block_cache_bytes", "Bytes in the block cache.")
BLOCK_CACHE_CAPACITY = gauge("anabranch_block_cache_capacity_bytes", "Size of the block cache.")
UNCOMMITTED = gauge("anabranch_uncommitted_bytes", "Bytes of acknowledged records that are not in objects yet.")
UPLOAD_THRESHOLD = gauge("anabranch_upload_threshold_bytes", "Waiting bytes that start an upload.")


def _stored(name: str, text: str) -> Definition:
    return counter(f"anabranch_storage_{name}_total", text)


STORAGE: Mapping[str, Definition] = {
    "appends": _stored("appends", "Batches appended, counted when their upload begins."),
    "append_bytes": _stored("append_bytes", "Bytes of these batches."),
    "log_cache_hits": _stored("log_cache_hits", "Reads served by the log cache alone."),
    "log_cache_evicted_bytes": _stored("log_cache_evicted_bytes", "Bytes evicted from the log cache."),
    "block_cache_hits": _stored("block_cache_hits", "Blocks of objects found in the block cache."),
    "block_cache_misses": _stored("block_cache_misses", "Blocks of objects that had to be read."),
    "block_cache_evicted_bytes": _stored("block_cache_evicted_bytes", "Bytes evicted from the block cache."),
    "cold_reads": _stored("cold_reads", "Reads that needed more than the log cache."),
    "index_reads": _stored("index_reads", "Reads of objects' indexes."),
    "location_lookups": _stored("location_lookups", "Queries of the catalog for the objects of a stream."),
    "stale_locations": _stored(
        "stale_locations", "Reads whose object compaction had replaced, so that they looked again."
    ),
    "gets": _stored("gets", "Ranged GETs of data."),
    "get_bytes": _stored("get_bytes", "Bytes of these GETs."),
    "gets_merged": _stored("gets_merged", "Reads that another read's GET served as well."),
    "reads_joined": _stored("reads_joined", "Blocks requested while they were being read for another reader."),
    "read_aheads": _stored("read_aheads", "Reads ahead of a reader."),
    "read_ahead_bytes": _stored("read_ahead_bytes", "Bytes of these reads."),
    "uploads": _stored("uploads", "Uploads committed."),
    "upload_bytes": _stored("upload_bytes", "Bytes of the objects of these uploads."),
    "upload_retries": _stored("upload_retries", "Attempts of uploads that failed and were repeated."),
    "hedged_parts": _stored("hedged_parts", "Parts of uploads sent a second time, because the first was slow."),
    "hedges_won": _stored("hedges_won", "Such parts whose second attempt ended first."),
    "objects_sso": _stored("objects_sso", "Stream set objects written by uploads."),
    "objects_so": _stored("objects_so", "Stream objects written by uploads."),
    "dropped_bytes": _stored("dropped_bytes", "Bytes of deleted or fenced streams that were not uploaded."),
    "recovered_records": _stored("recovered_records", "Records of the log found again at the start."),
    "recovered_bytes": _stored("recovered_bytes", "Bytes of these records."),
    "skipped_records": _stored("skipped_records", "Records of the log at the start that were in objects, or deleted."),
    "log_stalls": _stored("log_stalls", "Times that records were refused because the log did not acknowledge others."),
    "stopped_streams": _stored("stopped_streams", "Streams stopped at the start: a record in the middle is missing."),
}


def _log(name: str, text: str) -> Definition:
    return counter(f"anabranch_wal_{name}_total", text)


WAL: Mapping[str, Definition] = {
    "records": _log("records", "Records (batches) that became durable in the log."),
    "record_bytes": _log("record_bytes", "Bytes of these records, with their headers."),
    "blocks": _log("blocks", "Blocks written."),
    "block_bytes": _log("block_bytes", "Bytes of these blocks, with padding."),
    "writes": _log("writes", "Writes of blocks, as the limit on writes a second counts them."),
    "header_writes": _log("header_writes", "Writes of the log's header."),
    "repeated_writes": _log("repeated_writes", "Batches sent to the object store again, for a log that is kept there."),
    "over_capacity": _log("over_capacity", "Appends refused because the log was full."),
    "budget_waits": _log("budget_waits", "Writes that waited because of the limit on writes a second."),
    "window_growths": _log("window_growths", "Times that the window of writes was enlarged."),
    "in_flight": gauge("anabranch_wal_in_flight", "Writes at the device."),
    "queued_bytes": gauge("anabranch_wal_queued_bytes", "Bytes appended and not yet durable."),
    "used_bytes": gauge("anabranch_wal_used_bytes", "Bytes of the log that cannot be overwritten yet."),
    "capacity_bytes": gauge("anabranch_wal_capacity_bytes", "Size of the log."),
    "write_position": gauge("anabranch_wal_write_position", "Place in the log's ring of the next block."),
    "unwritten_bytes": gauge("anabranch_wal_unwritten_bytes", "Bytes of a new log still to be written with zeros."),
}
WAL_APPEND = histogram("anabranch_wal_append_seconds", "Time until a record was durable, counted for each record.")

CALL_KINDS: Final = ("get", "put", "head", "list", "delete", "multipart", "part", "part_copy")
STORE_CALLS = counter("anabranch_store_calls_total", "Calls to an object store, repeated ones too.", "store", "kind")
STORES: Mapping[str, Definition] = {
    "retries": counter("anabranch_store_retries_total", "Calls that were repeated.", "store"),
    "errors": counter("anabranch_store_errors_total", "Calls that failed.", "store"),
    "bytes_read": counter("anabranch_store_read_bytes_total", "Bytes read from an object store.", "store"),
    "bytes_written": counter("anabranch_store_written_bytes_total", "Bytes written to an object store.", "store"),
}


def _compacted(name: str, text: str) -> Definition:
    return counter(f"anabranch_compaction_{name}_total", text)


RUNNING = gauge("anabranch_compaction_running", "1 during a run of the compaction.")
COMPACTION: Mapping[str, Definition] = {
    "contiguous_runs": _compacted("runs", "Runs of the compaction begun."),
    "runs_failed": _compacted("runs_failed", "Runs ended by an error."),
    "commits": _compacted("commits", "Commits of compacted objects."),
    "iterations": _compacted("iterations", "Parts of runs that fitted into the memory."),
    "objects_in": _compacted("objects_in", "Objects read."),
    "objects_out": _compacted("objects_out", "Objects written."),
    "bytes_read": _compacted("read_bytes", "Bytes read."),
    "bytes_written": _compacted("written_bytes", "Bytes written."),
    "bytes_copied": _compacted("copied_bytes", "Bytes copied inside the store."),
    "streams_cleaned": _compacted("streams_cleaned", "Cleanings of a partition by key."),
    "records_removed": _compacted("records_removed", "Records removed by cleaning."),
    "batches_too_large": _compacted(
        "batches_too_large", "Batches kept unchanged: decoding them takes too much memory."
    ),
    "objects_left_alone": _compacted("objects_left_alone", "Objects that could not be read, and were left alone."),
    "iteration_bytes_peak": gauge("anabranch_compaction_iteration_peak_bytes", "Most bytes held at a time."),
    "pauses": _compacted("pauses", "Pauses of runs because uploads were under pressure."),
}
DIRTY = gauge("anabranch_compaction_dirty_bytes", "Bytes of compacted topics that are not cleaned yet.")
CLEAN = gauge("anabranch_compaction_clean_bytes", "Bytes of compacted topics that are cleaned.")


def _collected(name: str, text: str) -> Definition:
    return counter(f"anabranch_gc_{name}_total", text)


COLLECTION: Mapping[str, Definition] = {
    "rounds": _collected("rounds", "Rounds of the collector, which deletes unreferenced objects."),
    "rounds_failed": _collected("rounds_failed", "Rounds ended by an error."),
    "expired": _collected("expired", "Prepared objects whose writer did not commit in time."),
    "deleted": _collected("deleted", "Objects deleted."),
    "deleted_bytes": _collected("deleted_bytes", "Bytes of these objects."),
    "aborted_uploads": _collected("aborted_uploads", "Multipart uploads aborted."),
    "foreign": _collected("foreign", "Objects of another writer under an expired object's key, which were kept."),
    "failures": _collected("failures", "Deletions that failed, to be repeated."),
}
MANIFESTS = counter("anabranch_manifests_written_total", "Manifests written.")
MANIFEST_FAILURES = counter("anabranch_manifest_failures_total", "Manifests that could not be written.")
MANIFEST_CURRENT = gauge("anabranch_manifest_current", "1 while the newest state is in the object store.")
MANIFEST_TIME = gauge("anabranch_manifest_written_timestamp_seconds", "When this node wrote its last manifest.")

DEFINITIONS = definitions_in(globals())
OF_STATS = (
    (STORAGE, StorageStats()),
    (WAL, WalStats()),
    (COMPACTION, CompactionStats()),
    (COLLECTION, GcStats()),
    (dict.fromkeys(CALL_KINDS) | dict(STORES), CallCounts()),
)
"""Tables of fields, with an example of the described object."""


def collect(node: Node) -> Iterator[Metric]:
    """Yield the metrics of this area."""
    storage, sizes = node.serving.storage, node.memory.sizes
    yield WRITABLE.single(storage.writable)
    outages = {outage.where: outage.since_ms / 1000 for outage in storage.outages.current()}
    places = (CATALOG, *(object_store(name) for name in node.stores))
    yield OUTAGE.family([((where,), where in outages) for where in dict.fromkeys((*places, *outages))])
    yield OUTAGE_START.family([((where,), since_s) for where, since_s in outages.items()])
    yield STOPPED_STREAMS.single(len(storage.stopped_streams))
    yield DAMAGED_OBJECTS.single(len(storage.damaged))
    yield DAMAGED_READS.single(storage.damaged.reads)
    yield LOG_CACHE.single(storage.log_cache_bytes)
    yield LOG_CACHE_CAPACITY.single(sizes.log_cache_bytes)
    yield BLOCK_CACHE.single(storage.block_cache_bytes)
    yield BLOCK_CACHE_CAPACITY.single(sizes.block_cache_bytes)
    yield UNCOMMITTED.single(storage.uncommitted_bytes)
    yield UPLOAD_THRESHOLD.single(storage.upload_threshold_bytes)
    yield from of_stats(STORAGE, storage.stats)
    wal = node.wal.snapshot()
    yield from of_stats(WAL, wal)
    yield WAL_APPEND.buckets([((), wal.append_latency_us, wal.append_latency_s)])
    stores = list(node.stores.values())
    yield STORE_CALLS.family(
        [((store.name, kind), getattr(store.calls, kind)) for store in stores for kind in CALL_KINDS]
    )
    for field, definition in STORES.items():
        yield definition.family([((store.name,), getattr(store.calls, field)) for store in stores])
    yield from _maintenance(node)


def _maintenance(node: Node) -> Iterator[Metric]:
    """Yield the metrics of compaction, collection and manifests."""
    yield RUNNING.single(node.upkeep.compaction.is_running)
    yield from of_stats(COMPACTION, node.upkeep.compaction.stats)
    needs = [state.need for state in node.upkeep.cleaning.states.values()]
    yield DIRTY.single(sum(each.dirty_bytes for each in needs))
    yield CLEAN.single(sum(each.clean_bytes for each in needs))
    yield from of_stats(COLLECTION, node.upkeep.collector.stats)
    manifests = node.upkeep.manifests.stats
    yield MANIFESTS.single(manifests.writes)
    yield MANIFEST_FAILURES.single(manifests.failures)
    yield MANIFEST_CURRENT.single(manifests.error is None)
    yield MANIFEST_TIME.single(manifests.written_ms / 1000)
