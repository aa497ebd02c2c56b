"""The division of a plan into shares: by cost, and evenly."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from anabranch.compaction.sets.plan import InputObject, Iteration
from anabranch.compaction.sets.shares import plan_shares
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectKind
from tests.compaction.sets.test_plan import SO, SSO, layouts, source, surveyed

KIB, MIB = 1024, 1024 * 1024
EVERYTHING = 1 << 60

Share = Sequence[Iteration]


def divide(
    sources: list[InputObject],
    settings: CompactionSettings,
    memory: int = EVERYTHING,
    starts: dict[int, int] | None = None,
    now_ms: int = 0,
) -> list[Share]:
    return plan_shares(surveyed(sources, starts), settings, memory, now_ms)


def kind_of(share: Share) -> ObjectKind:
    (kind,) = {write.kind for iteration in share for write in iteration.writes}
    return kind


def size_of(share: Share) -> int:
    return sum(each.size_bytes for each in share)


def backlog(streams: int, objects: int, block_bytes: int) -> list[InputObject]:
    """Objects with a block of each stream."""
    return [source(at, [(stream, at, at + 1) for stream in range(streams)], scale=block_bytes) for at in range(objects)]


def test_many_small_old_streams_are_divided() -> None:
    """61 streams of 1 MiB each in 16 objects, each of which becomes an object of its own."""
    for task_mib, shares in ((1000, 1), (105, 1), (60, 2), (32, 3)):
        settings = CompactionSettings(memory_bytes=task_mib * MIB)
        found = divide(backlog(61, 16, 64 * KIB), settings, now_ms=settings.force_split_ms)
        assert [kind_of(each) for each in found] == [SO] * shares
        assert max(map(size_of, found)) - min(map(size_of, found)) <= MIB, "a stream is not cut"
        # Each task reads each input once: the streams of a share are neighbours.
        assert [len(each[0].reads) for each in found] == [16] * shares


def test_the_stream_set_object_is_one_share() -> None:
    found = divide(backlog(61, 16, 64 * KIB), CompactionSettings(memory_bytes=32 * MIB), 16 * MIB)
    assert [kind_of(each) for each in found] == [SSO]
    assert len(found[0]) > 3, "iterations"


def test_large_streams_are_divided_between_streams_and_the_largest_share_is_first() -> None:
    sizes = (20, 10, 30, 40)
    blocks = [(stream, at, at + 1) for stream, size in enumerate(sizes) for at in range(size)]
    found = divide([source(1, blocks, scale=MIB)], CompactionSettings(memory_bytes=42 * MIB))
    assert [size_of(each) // MIB for each in found] == [40, 30, 30]
    assert sorted(len(each[0].writes) for each in found) == [1, 1, 2]


def test_a_long_run_is_cut_into_equal_parts() -> None:
    """At a limit of 64 MiB, 100 MiB are two times 50 MiB, and not 64 and 36."""
    sources = [source(1, [(1, at, at + 1) for at in range(100)], scale=MIB)]
    found = divide(sources, CompactionSettings(memory_bytes=64 * MIB), 64 * MIB)
    assert [size_of(each) // MIB for each in found] == [50, 50]


def test_a_large_block_does_not_cut_the_others() -> None:
    blocks = [*((1, at, at + 1) for at in range(20)), (1, 20, 40), *((1, at, at + 1) for at in range(40, 60))]
    found = divide([source(1, blocks, scale=MIB)], CompactionSettings(memory_bytes=32 * MIB), 16 * MIB)
    assert sum(len(iteration.writes) for share in found for iteration in share) <= 6


def test_blocks_and_calls_count() -> None:
    """As many bytes cost more in small blocks, and as many objects."""
    settings = CompactionSettings(memory_bytes=40 * MIB)
    for step, shares in ((1024, 1), (1, 2)):
        blocks = [(stream, at, at + step) for stream in range(2) for at in range(0, 1024, step)]
        assert len(divide([source(1, blocks, scale=16 * KIB)], settings)) == shares
    old = [source(1, [(stream, 0, 1) for stream in range(320)], scale=100 * KIB, oldest_data_ms=0)]
    assert len(divide(old, settings, now_ms=1)) == 1
    assert len(divide(old, settings, now_ms=settings.force_split_ms)) == 3, "each stream becomes an object"


def test_more_shares_do_not_mostly_add_reads() -> None:
    """All shares read from each of 500 objects, which costs 125 MiB: for less data there is one share."""
    settings = CompactionSettings(memory_bytes=32 * MIB)
    old_ms = settings.force_split_ms
    assert len(divide(backlog(6, 500, 4 * KIB), settings, now_ms=old_ms)) == 1
    assert len(divide(backlog(61, 500, 4 * KIB), settings, now_ms=old_ms)) == 5


@given(
    layouts(),
    st.sampled_from([1, KIB, 256 * KIB, 2 * MIB]),
    st.integers(1, 400),
    st.integers(1, 800),
    st.integers(1, 300),
    st.integers(0, 3_000),
)
def test_any_division(
    layout: tuple[list[InputObject], dict[int, int]], scale: int, memory: int, cost: int, split: int, now_ms: int
) -> None:
    sources, starts = layout
    sources = [
        each._replace(
            entries=[
                entry._replace(size_bytes=entry.size_bytes * scale, position=entry.position * scale)
                for entry in each.entries
            ]
        )
        for each in sources
    ]
    settings = CompactionSettings(
        memory_bytes=cost * scale, split_bytes=split * scale, force_split_ms=1_000, call_cost_bytes=scale
    )
    shares = divide(sources, settings, memory * scale, starts, now_ms)
    live = {
        (each.object_id, entry)
        for each in sources
        for entry in each.entries
        if entry.stream_id in starts and entry.end_offset > starts[entry.stream_id]
    }
    # Every live block is written once and read once, and no other.
    iterations = [iteration for share in shares for iteration in share]
    written = [(p.object_id, p.entry) for i in iterations for w in i.writes for p in w.blocks]
    assert len(written) == len(set(written))
    assert set(written) == live
    fetched = [(read.object_id, entry) for i in iterations for read in i.reads for entry in read.entries]
    assert sorted(fetched) == sorted(written)
    for iteration in iterations:
        assert iteration.size_bytes <= memory * scale or sum(len(write.blocks) for write in iteration.writes) == 1
    # Every stream object of a share has a number of its own, and is one contiguous run.
    for share in shares:
        numbers = [write.number for iteration in share for write in iteration.writes if write.kind is SO]
        assert numbers == list(range(len(numbers)))
    for write in [write for each in iterations for write in each.writes if write.kind is SO]:
        for one, two in zip(write.blocks, write.blocks[1:], strict=False):
            assert (one.entry.stream_id, one.entry.end_offset) == (two.entry.stream_id, two.entry.start_offset)
    # The stream set object is one share, in order.
    own = [share for share in shares if kind_of(share) is SSO]
    assert len(own) <= 1
    rest = [
        (block.entry.stream_id, block.entry.start_offset)
        for share in own for iteration in share for write in iteration.writes for block in write.blocks
    ]  # fmt: skip
    assert rest == sorted(rest)
