"""Plans log compaction: which objects of a stream to clean, and whether that is worthwhile. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.compaction.ages import is_young
from anabranch.compaction.interface import CleanPolicy, History
from anabranch.s3stream.model import RangeLocation, StreamInfo

OBJECTS_MAX = 1000
"""Maximum of objects cleaned at once."""


class CleanPlan(NamedTuple):
    """Objects to clean: all of a stream's from its start to the end of one of them."""

    stream_id: int
    stream_start: int
    objects: Sequence[RangeLocation]
    dirty_start: int
    """End of the part that was cleaned before."""
    policy: CleanPolicy
    history: History


def plan_cleaning(
    info: StreamInfo,
    objects: Sequence[RangeLocation],
    policy: CleanPolicy,
    history: History,
    now_ms: int,
) -> CleanPlan | None:
    """Plan a cleaning of a stream's objects, given in offset order. Returns None while too little is dirty.

    A stream whose first data is not in a stream object yet waits for that: a tombstone or a marker must not be removed
    before the records that it applies to.
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
        if not dirty_bytes and each.object.cleaned:
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
