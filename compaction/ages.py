"""Age of objects and of what is in them: rules that all kinds of compaction go by. Pure."""

from compaction.interface import CleanPolicy
from s3stream.model import RangeLocation


def is_cleaned(location: RangeLocation) -> bool:
    """Return whether an object is the output of a cleaning."""
    return location.object.cleaned


def is_young(location: RangeLocation, policy: CleanPolicy, now_ms: int) -> bool:
    """Whether `min.compaction.lag.ms` keeps an object from being cleaned: its newest record counts, as in Kafka."""
    return newest_ms(location) > now_ms - policy.lag_ms_min


def newest_ms(location: RangeLocation) -> int:
    """Timestamp of an object's newest record; where none has one, when it was committed."""
    timestamp_ms = location.range.max_timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else location.object.committed_ms
