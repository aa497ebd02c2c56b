"""Plain counters of the engine. Reading them costs nothing; whoever exports metrics does so from outside."""

from dataclasses import dataclass


@dataclass(slots=True)
class StorageStats:
    """Since the engine was made. Bytes are payload bytes unless a name says otherwise."""

    appends: int = 0
    """Counted when a block is sealed, so that an append pays nothing for it."""
    append_bytes: int = 0
    log_cache_hits: int = 0
    """Reads served (in whole) by the log cache."""
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
    """Reads that met an object deleted after compaction, and looked again."""
    gets: int = 0
    """Ranged GETs of data blocks."""
    get_bytes: int = 0
    gets_merged: int = 0
    """Reads that needed no GET of their own: another, queued at the same time, covered or adjoined them."""
    reads_joined: int = 0
    """Blocks wanted while they were being read for somebody else."""
    read_aheads: int = 0
    read_ahead_bytes: int = 0
    uploads: int = 0
    """Committed."""
    upload_bytes: int = 0
    """Bytes of committed objects, index and framing included."""
    upload_retries: int = 0
    hedged_parts: int = 0
    """Parts of multipart uploads that were sent twice, because the first attempt was slow."""
    hedges_won: int = 0
    """And the second attempt ended first."""
    objects_sso: int = 0
    objects_so: int = 0
    dropped_bytes: int = 0
    """Data of streams that were deleted (or fenced) before it was uploaded."""
    recovered_records: int = 0
    recovered_bytes: int = 0
    skipped_records: int = 0
    """WAL records that were committed already, or whose stream is deleted."""
    stopped_streams: int = 0
