"""Combination of state batches, beside a map of single offsets."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.share.interface import DeliveryState, StateBatch
from anabranch.broker.kafka.share.state.batches import combine

AVAILABLE, ACKNOWLEDGED, ARCHIVED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED

batches = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 40),
    st.integers(0, 12),
    st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
    st.integers(0, 3),
)


def by_offset(given_batches: Iterable[StateBatch], start_offset: int) -> dict[int, tuple[int, int]]:
    """Count and state of each offset from the start offset on: the furthest one of those that cover it."""
    offsets: dict[int, tuple[int, int]] = {}
    for each in given_batches:
        for offset in range(max(each.first_offset, start_offset), each.last_offset + 1):
            offsets[offset] = max(offsets.get(offset, (-1, -1)), (each.delivery_count, each.delivery_state))
    return offsets


@given(st.lists(st.lists(batches, max_size=6), max_size=4), st.lists(st.integers(-1, 45), min_size=4, max_size=4))
def test_combined_batches_are_those_of_single_offsets(writes: list[list[StateBatch]], starts: list[int]) -> None:
    combined: tuple[StateBatch, ...] = ()
    offsets: dict[int, tuple[int, int]] = {}
    for write, start_offset in zip(writes, sorted(starts), strict=False):
        combined = combine(combined, write, start_offset)
        kept = [StateBatch(offset, offset, state, count) for offset, (count, state) in offsets.items()]
        offsets = by_offset([*kept, *write], start_offset)
        assert by_offset(combined, start_offset) == offsets
    for before, after in pairwise(combined):
        assert before.last_offset < after.first_offset, "in order, without overlaps"
        assert before.last_offset + 1 < after.first_offset or before[2:] != after[2:], "neighbours that differ"


@given(st.lists(batches, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_writes_does_not_matter(writes: list[StateBatch], random: Random) -> None:
    shuffled = sorted(writes, key=lambda _: random.random())
    combined = combine((), (), 5)
    for write in shuffled:
        combined = combine(combined, [write], 5)
    assert combined == combine((), writes, 5)


@pytest.mark.parametrize(
    ("stored", "change", "combined"),
    [
        ([], StateBatch(3, 5, AVAILABLE, 1), [StateBatch(3, 5, AVAILABLE, 1)]),
        ([StateBatch(0, 9, AVAILABLE, 1)], StateBatch(0, 9, ACKNOWLEDGED, 1), [StateBatch(0, 9, ACKNOWLEDGED, 1)]),
        ([StateBatch(0, 9, ACKNOWLEDGED, 1)], StateBatch(0, 9, AVAILABLE, 1), [StateBatch(0, 9, ACKNOWLEDGED, 1)]),
        (
            [StateBatch(0, 9, AVAILABLE, 1)],
            StateBatch(4, 5, AVAILABLE, 2),
            [StateBatch(0, 3, AVAILABLE, 1), StateBatch(4, 5, AVAILABLE, 2), StateBatch(6, 9, AVAILABLE, 1)],
        ),
        ([StateBatch(0, 4, AVAILABLE, 1)], StateBatch(5, 9, AVAILABLE, 1), [StateBatch(0, 9, AVAILABLE, 1)]),
        (
            [StateBatch(0, 1, ARCHIVED, 1), StateBatch(4, 5, ARCHIVED, 1)],
            StateBatch(2, 3, ARCHIVED, 1),
            [StateBatch(0, 5, ARCHIVED, 1)],
        ),
        (
            [StateBatch(0, 1, ARCHIVED, 3), StateBatch(4, 5, ARCHIVED, 3)],
            StateBatch(1, 6, AVAILABLE, 1),
            [
                StateBatch(0, 1, ARCHIVED, 3),
                StateBatch(2, 3, AVAILABLE, 1),
                StateBatch(4, 5, ARCHIVED, 3),
                StateBatch(6, 6, AVAILABLE, 1),
            ],
        ),
    ],
)
def test_the_further_batch_wins(stored: list[StateBatch], change: StateBatch, combined: list[StateBatch]) -> None:
    assert combine(stored, [change], -1) == tuple(combined)
