"""Settings of compaction: frozen values with their unit in the name, each with the reason for its default."""

from dataclasses import dataclass

from s3stream.settings import StorageSettings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
_STORAGE = StorageSettings()


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Limits and intervals of one node's compaction."""

    period_ms: int = 20 * 60_000
    """Time from the end of one run to the start of the next."""
    backlog_check_ms: int = 60_000
    """How often the backlog is looked at between runs; 0: never."""
    backlog_objects: int = 100
    """Stream set objects that start a run before its time."""
    memory_bytes: int = 200 * MIB
    """Most that one run holds of objects' data: bounds the iterations. Nor does one batch take more, unfolded."""
    index_bytes_max: int = 128 * MIB
    """Most that the indexes of a run's inputs may take; what does not fit waits for a later run."""
    objects_max: int = 500
    """Stream set objects of one run at most."""
    split_bytes: int = _STORAGE.split_bytes
    """A stream's run of at least this size becomes a stream object; shorter ones share the new stream set object."""
    force_split_ms: int = 120 * 60_000
    """Runs with data that has been in stream set objects for so long become stream objects whatever their size."""
    lone_ratio: int = 4
    """A timed run leaves a stream set object alone that is more than so many times the others together: rewriting it
    each period would multiply the bytes written."""
    part_bytes: int = 8 * MIB
    """Part size of multipart uploads."""
    block_bytes: int = 512 * KIB
    """Small neighbouring blocks are joined up to this size."""
    read_bytes_max: int = 8 * MIB
    """Longer reads are cut into several, at block boundaries."""
    reads_in_flight: int = 8
    """Ranged GETs at the same time."""
    stream_group_min: int = 4
    """Stream objects of similar size that are joined at least; fewer wait for more."""
    stream_group_max: int = 100
    """Stream objects that are joined at once at most."""
    stream_object_bytes_max: int = 10 * GIB
    """Stream objects are not joined beyond this size."""
    stream_dead_ratio: float = 0.5
    """A stream object is rewritten alone when so much of it lies before the stream's start."""
    clean_keys_bytes_max: int = 64 * MIB
    """Memory for keys when a stream is compacted by key; a cleaning ends where they would not fit."""
    clean_backoff_ms: int = 15_000
    """Least time between two cleanings of a stream by key, and between two uploads that are asked for because of them,
    like Apache Kafka's `log.cleaner.backoff.ms`."""
    clean_look_ms: int = 5_000
    """How often all streams that are compacted by key are looked over, which takes nothing but memory."""
    clean_poll_ms: int = 1_000
    """And how often those that want their data uploaded after less than that."""
    clean_looks_max: int = 200
    """Streams whose objects are looked up in the catalog at once; the others wait for the next time."""
    clean_turn_max: int = 16
    """Streams cleaned before all are looked over again."""
    streams_max: int = 10_000
    """Streams looked at in one run at most."""
    prepare_ttl_ms: int = 24 * 60 * 60_000
    """Outputs that were not committed by then are reaped."""
    delete_delay_ms: int = _STORAGE.delete_delay_ms
    """Inputs are deleted this long after the commit: readers in flight are done by then."""
    pressure_pause_ms: int = 1_000
    """A run under upload pressure pauses so long before each iteration, again and again ..."""
    pressure_pause_ms_max: int = 60_000
    """... up to this, and then goes on: later, but never starved."""
    bytes_per_second_min: int = 16 * MIB
    """Least rate of a timed run, read and written together; a backlog that would not fit the period raises it."""
