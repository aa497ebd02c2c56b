"""Settings of compaction: frozen values with units in their names, each with the reason for its default."""

from dataclasses import dataclass

from anabranch.s3stream.settings import StorageSettings

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
    """Interval of checks for a backlog between runs; 0: never."""
    backlog_objects: int = 100
    """Number of stream set objects that starts a run early."""
    memory_bytes: int = 200 * MIB
    """Memory limit of a run for objects' data; it limits the iterations. Also the limit for one unfolded batch."""
    index_bytes_max: int = 128 * MIB
    """Memory limit for the indexes of a run's inputs. Objects beyond it wait for a later run."""
    objects_max: int = 500
    """Maximum of stream set objects in one run."""
    split_bytes: int = _STORAGE.split_bytes
    """Size from which a stream's run becomes a stream object. Shorter runs share the new stream set object."""
    force_split_ms: int = 120 * 60_000
    """Age of data in stream set objects from which its run becomes a stream object whatever its size."""
    lone_ratio: int = 4
    """A timed run skips a stream set object larger than this many times the others together.

    Rewriting it each period would multiply the bytes written.
    """
    part_bytes: int = 8 * MIB
    """Part size of multipart uploads."""
    block_bytes: int = 512 * KIB
    """Size up to which small neighbouring blocks are joined."""
    read_bytes_max: int = 8 * MIB
    """Size above which reads are split, at block boundaries."""
    reads_in_flight: int = 8
    """Maximum of concurrent ranged GETs."""
    call_cost_bytes: int = 256 * KIB
    """Cost of a call to the store in addition to its bytes, for dividing work among tasks.

    With eight reads in flight and 20 ms to the first byte, a call takes 2.5 ms, in which a task moves that much at 100
    MiB/s.
    """
    stream_group_min: int = 4
    """Minimum of stream objects of similar size to join; fewer wait for more."""
    stream_group_max: int = 100
    """Maximum of stream objects to join at once."""
    stream_object_bytes_max: int = 10 * GIB
    """Maximum size of a joined stream object."""
    stream_dead_ratio: float = 0.5
    """Share of a stream object before the stream's start from which it is rewritten alone."""
    clean_keys_bytes_max: int = 64 * MIB
    """Memory limit for keys of a cleaning. It ends at the batch whose keys do not fit."""
    clean_backoff_ms: int = 15_000
    """Minimum time between two cleanings of a stream, and between two uploads requested for cleanings.

    Like Apache Kafka's `log.cleaner.backoff.ms`.
    """
    clean_look_ms: int = 5_000
    """Interval of checks of all streams that are compacted by key. A check uses only values in memory."""
    clean_poll_ms: int = 1_000
    """Interval of checks of the streams that need their data uploaded earlier than that."""
    clean_looks_max: int = 200
    """Maximum of streams looked up in the catalog per turn; the others wait for the next turn."""
    clean_turn_max: int = 16
    """Maximum of streams cleaned before all are checked again."""
    streams_max: int = 10_000
    """Maximum of streams in one run."""
    prepare_ttl_ms: int = 24 * 60 * 60_000
    """Time after which uncommitted outputs are reaped."""
    delete_delay_ms: int = _STORAGE.delete_delay_ms
    """Time from the commit to the deletion of the inputs. Reads in flight finish within it."""
    pressure_pause_ms: int = 1_000
    """Pause before an iteration while uploads are under pressure. It is repeated ..."""
    pressure_pause_ms_max: int = 60_000
    """... up to this total; then the run continues, so that it is never starved."""
    bytes_per_second_min: int = 16 * MIB
    """Minimum rate of a timed run, reads and writes together. A backlog too large for the period raises it."""
