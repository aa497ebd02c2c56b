"""Ages of objects and their records. Shared by all kinds of compaction. Pure."""

from anabranch.compaction.interface import CleanPolicy
from anabranch.s3stream.model import RangeLocation


def is_young(location: RangeLocation, policy: CleanPolicy, now_ms: int) -> bool:
    """Return whether `min.compaction.lag.ms` keeps an object from being cleaned.

    The newest record of the object counts, as in Kafka.
    """
    return newest_ms(location) > now_ms - policy.lag_ms_min


def newest_ms(location: RangeLocation) -> int:
    """Return the timestamp of an object's newest record, or its commit time if no record has a timestamp."""
    timestamp_ms = location.range.max_timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else location.object.committed_ms
