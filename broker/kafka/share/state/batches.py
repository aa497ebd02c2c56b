"""Combination of state batches: what a write changes of what is stored.

Where batches overlap, the one that is further wins: the higher delivery count, and with the same count the higher
delivery state. So a write that arrives twice, or late, changes nothing. Neighbours with the same state and count become
one batch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from anabranch.broker.kafka.share.interface import StateBatch


def combine(stored: Sequence[StateBatch], changes: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return stored batches with changes, from the start offset on, in order and without overlaps.

    `stored` is a result of this function; changes may come in any order and overlap. None of them may be empty.
    """
    combined = _clipped(stored, start_offset)
    for change in changes:
        if change.last_offset >= start_offset:
            _put(combined, change._replace(first_offset=max(change.first_offset, start_offset)))
    return tuple(combined)


def _clipped(stored: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
    kept = list(stored[bisect_left(stored, start_offset, key=_last_offset) :])
    if kept and kept[0].first_offset < start_offset:
        kept[0] = kept[0]._replace(first_offset=start_offset)
    return kept


def _put(batches: list[StateBatch], change: StateBatch) -> None:
    """Put one more batch among those that are in order and do not overlap."""
    first, last = change.first_offset, change.last_offset
    # With the neighbours, which may become one batch with the change.
    low = bisect_left(batches, first - 1, key=_last_offset)
    high = bisect_right(batches, last + 1, key=_first_offset)
    pieces: list[StateBatch] = []
    free_from = first
    for each in batches[low:high]:
        begin, end = max(each.first_offset, first), min(each.last_offset, last)
        if begin > end:  # a neighbour
            if each.first_offset > last:
                _append(pieces, change, free_from, last)
                free_from = last + 1
            _append(pieces, each, each.first_offset, each.last_offset)
            continue
        _append(pieces, change, free_from, begin - 1)
        _append(pieces, each, each.first_offset, begin - 1)
        _append(pieces, max(each, change, key=_progress), begin, end)
        _append(pieces, each, end + 1, each.last_offset)
        free_from = end + 1
    _append(pieces, change, free_from, last)
    batches[low:high] = pieces


def _append(pieces: list[StateBatch], batch: StateBatch, first_offset: int, last_offset: int) -> None:
    """Append a part of a batch, unless it is empty."""
    if first_offset > last_offset:
        return
    before = pieces[-1] if pieces else None
    if before is not None and before.last_offset + 1 == first_offset and _progress(before) == _progress(batch):
        pieces[-1] = before._replace(last_offset=last_offset)
    else:
        pieces.append(batch._replace(first_offset=first_offset, last_offset=last_offset))


def _progress(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state


def _first_offset(batch: StateBatch) -> int:
    return batch.first_offset


def _last_offset(batch: StateBatch) -> int:
    return batch.last_offset
