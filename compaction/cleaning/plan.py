"""Plans log compaction: which objects of a stream are cleaned, and when that is worthwhile. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from compaction.ages import is_cleaned, is_young
from compaction.interface import CleanPolicy, History
from s3stream.model import RangeLocation, StreamInfo

OBJECTS_MAX = 1000
"""Objects cleaned at once at most."""


class CleanPlan(NamedTuple):
    """Objects to clean: all of a stream's from its start to a boundary between two."""

    stream_id: int
    stream_start: int
    objects: Sequence[RangeLocation]
    dirty_start: int
    """Up to here all was cleaned before."""
    policy: CleanPolicy
    history: History


def plan_cleaning(
    info: StreamInfo,
    objects: Sequence[RangeLocation],
    policy: CleanPolicy,
    history: History,
    now_ms: int,
) -> CleanPlan | None:
    """What to clean of a stream's stream objects, given in offset order; None while too little is dirty.

    A stream whose first data is not in one yet waits until it is: a tombstone or a marker must not go before what it is
    about.
    """
    if not objects or objects[0].range.start_offset > info.start_offset:
        return None
    chosen: list[RangeLocation] = []
    clean_bytes = dirty_bytes = 0
    is_due = False
    dirty_start = objects[0].range.start_offset
    for each in objects[:OBJECTS_MAX]:
        last = chosen[-1] if chosen else None
        if last and last.range.end_offset != each.range.start_offset:
            break
        if each.range.end_offset > history.stable_offset:
            break
        if not dirty_bytes and is_cleaned(each):
            clean_bytes += each.object.size_bytes
            dirty_start = each.range.end_offset
        elif is_young(each, policy, now_ms):
            break
        else:
            dirty_bytes += each.object.size_bytes
            is_due = is_due or each.object.oldest_data_ms <= now_ms - policy.lag_ms_max
        chosen.append(each)
    is_worthwhile = is_due or dirty_bytes >= policy.dirty_ratio_min * (clean_bytes + dirty_bytes)
    if not dirty_bytes or not is_worthwhile:
        return None
    return CleanPlan(info.stream_id, info.start_offset, chosen, dirty_start, policy, history)
