"""Plain counters of the engine, for the exporter of metrics to read."""

from dataclasses import dataclass


@dataclass(slots=True)
class StorageStats:
    """Counts since the engine was created. Bytes are payload bytes unless stated otherwise."""

    appends: int = 0
    """Counted when a block is sealed, so that an append pays nothing for it."""
    append_bytes: int = 0
    log_cache_hits: int = 0
    """Reads served entirely by the log cache."""
    log_cache_evicted_bytes: int = 0
    block_cache_hits: int = 0
    block_cache_misses: int = 0
    block_cache_evicted_bytes: int = 0
    cold_reads: int = 0
    """Reads that needed more than the log cache."""
    index_reads: int = 0
    location_lookups: int = 0
    """find_ranges calls."""
    stale_locations: int = 0
    """Reads that found an object deleted after compaction and looked its location up again."""
    gets: int = 0
    """Ranged GETs of data blocks."""
    get_bytes: int = 0
    gets_merged: int = 0
    """Reads that needed no separate GET: that of another read, queued at the same time, covered or adjoined them."""
    reads_joined: int = 0
    """Blocks requested while they were being read for another reader."""
    read_aheads: int = 0
    read_ahead_bytes: int = 0
    uploads: int = 0
    """Committed uploads."""
    upload_bytes: int = 0
    """Bytes of committed objects, index and framing included."""
    upload_retries: int = 0
    hedged_parts: int = 0
    """Parts of multipart uploads that were sent twice, because the first attempt was slow."""
    hedges_won: int = 0
    """Such parts whose second attempt ended first."""
    objects_sso: int = 0
    objects_so: int = 0
    dropped_bytes: int = 0
    """Data of streams that were deleted (or fenced) before it was uploaded."""
    recovered_records: int = 0
    recovered_bytes: int = 0
    skipped_records: int = 0
    """WAL records that were committed already, or whose stream is deleted."""
    stopped_streams: int = 0
    log_stalls: int = 0
    """Times that appends were refused because the log did not acknowledge what it had taken."""
