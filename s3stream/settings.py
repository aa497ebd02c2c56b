"""Settings of the storage engine: frozen values with their unit in the name, each with the reason for its default."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Limits and intervals of one engine. A value of `None` is derived from other settings, see its description."""

    upload_threshold_bytes: int | None = None
    """Log cache bytes that start an upload; None: a third of the WAL or of the log cache, at most 512 MiB."""
    upload_age_ms: int = 60_000
    """An upload starts when the oldest data of the log cache's current block is this old."""
    wal_pressure_ratio: float = 0.6
    """Share of the WAL in use that starts an upload early: padding of small writes fills the ring before the cache."""
    wal_full_ratio: float = 0.9
    """Share of the WAL in use at which clients are slowed down, so that appends do not find the ring full."""
    stall_ms: int = 10_000
    """Time without an acknowledgement of the WAL after which appends are refused: clients' requests end after 30 s."""
    split_bytes: int = 8 * MIB
    """A stream's run of at least this size becomes a stream object (SO) at once; smaller ones share an SSO."""
    uploads_in_flight: int = 2
    """Blocks uploaded at the same time; they commit in order."""
    object_writes_in_flight: int = 4
    """Objects written at the same time, over all uploads."""
    object_block_bytes: int = 512 * KIB
    """Data block size inside objects: the unit of cold reads."""
    object_part_bytes: int = 8 * MIB
    """Part size of a stream set object's multipart upload; up to two parts it is a single PUT."""
    so_put_bytes_max: int = 32 * MIB
    """A stream object up to this size is a single PUT; longer ones go in parts of half of it, two at a time."""
    part_hedge_ratio: float = 4.0
    """A part is sent a second time when it takes this many times as long as the slowest tenth of late; 0: never."""
    part_hedge_ms_min: int = 500
    """Least time before a part is sent a second time: a second attempt costs as much as the first."""
    prepare_ttl_ms: int = 60 * 60_000
    """Time after which a prepared object that was not committed is reaped."""
    delete_delay_ms: int = 10 * 60_000
    """Delay before an object that is no longer needed is deleted: readers in flight are done by then."""
    retry_ms_min: int = 100
    """First pause before a failed store or catalog call of an upload is repeated; doubles each time."""
    retry_ms_max: int = 10_000
    """Longest such pause. Uploads are repeated forever: their data stays in the WAL and in memory, both bounded."""
    log_cache_bytes: int = 768 * MIB
    """Bound of the log cache. Uploaded blocks are evicted above it; data that is not uploaded slows clients down."""
    block_cache_bytes: int = 256 * MIB
    """Bound of the block cache, which holds blocks read from objects."""
    index_cache_bytes: int = 32 * MIB
    """Bound of the cache of object indexes."""
    location_cache_streams: int = 4096
    """Streams whose object locations are cached."""
    read_bytes_max: int = 8 * MIB
    """Largest ranged GET; longer runs become several concurrent ones."""
    read_split_bytes_min: int = 4 * MIB
    """Smallest part that a run is cut into to keep idle connections busy: a call costs CPU, too."""
    read_gap_bytes_max: int = 64 * KIB
    """Two ranges of an object with no more than this between them are read in one GET: cheaper than a second call."""
    read_ahead_bytes_max: int = 8 * MIB
    """Largest read-ahead window of a sequential reader; two windows at a time (double buffering). 0 turns it off."""
    read_ahead_total_bytes: int | None = None
    """Bound of all read-ahead under way; None: half of the block cache."""
    read_ahead_readers: int = 1024
    """Sequential readers that are tracked."""
    reads_in_flight: int = 16
    """Ranged GETs at the same time, all priorities together."""
    cold_reads_in_flight: int = 64
    """Reads of catch-up readers that load from objects at the same time, and as many of tail readers; others wait."""
    read_deadline_ms: int = 60_000
    """A ranged GET that takes longer, retries of the store included, fails."""

    def threshold_bytes(self, wal_capacity_bytes: int) -> int:
        """Log cache bytes that start an upload on a WAL of that capacity."""
        if self.upload_threshold_bytes is not None:
            return self.upload_threshold_bytes
        return max(1, min(512 * MIB, wal_capacity_bytes // 3, self.log_cache_bytes // 3))


@dataclass(frozen=True, slots=True)
class GcSettings:
    """Pace and limits of the collector."""

    period_ms: int = 60_000
    """From the end of one round to the begin of the next."""
    batch_objects: int = 1_000
    """Objects taken from the catalog at a time."""
    calls_in_flight: int = 4
    """Store calls at the same time."""
    failures_max: int = 5_000
    """A round that met as many failures ends: the store is in trouble, and the next round tries again."""
