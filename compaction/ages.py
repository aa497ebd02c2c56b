"""Age of objects and of what is in them: rules that all kinds of compaction go by. Pure."""

import re

from compaction.interface import CleanPolicy
from s3stream.model import ObjectInfo, RangeLocation

CLEANED = ".cleaned"
"""Ends the writer id of an object in which each key is there once (but for what later parts hold)."""
_BORN = re.compile(r"\.born-(\d+)$")


def is_cleaned(location: RangeLocation) -> bool:
    """Whether an object is the output of a cleaning."""
    return location.object.writer_id.endswith(CLEANED)


def is_young(location: RangeLocation, policy: CleanPolicy, now_ms: int) -> bool:
    """Whether `min.compaction.lag.ms` keeps an object from being cleaned: its newest record counts, as in Kafka."""
    return newest_ms(location) > now_ms - policy.lag_ms_min


def newest_ms(location: RangeLocation) -> int:
    """Timestamp of an object's newest record; where none has one, when it was committed."""
    timestamp_ms = location.range.max_timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else location.object.committed_ms


def born_ms(info: ObjectInfo) -> int:
    """When the oldest data of a stream set object came into one.

    Compaction says it at the end of the writer's id: the rest of old objects must not look new in the object it goes
    to, or it would never be old enough to be split.
    """
    label = _BORN.search(info.writer_id)
    return int(label[1]) if label else info.committed_ms


def labelled_writer_id(writer_id: str, born: int) -> str:
    """A writer's id that says how old the data is."""
    return f"{writer_id}.born-{born}"
