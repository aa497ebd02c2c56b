"""Selection of objects for rebuilding a catalog: every state in which a crash may leave the store."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.manifest_state import BorrowedRange, CatalogState, StreamState
from anabranch.s3stream.catalog.values import WalInfo, WalState
from anabranch.s3stream.maintain.rebuild_plan import (
    EPOCHS_SKIPPED,
    FoundObject,
    Gap,
    RebuildPlan,
    SkipReason,
    StoredRun,
    StreamChain,
    UnreadableObject,
    cover,
    plan_rebuild,
    read_order,
)
from anabranch.s3stream.model import ObjectKind, StreamRange
from anabranch.s3stream.object.writer_id import UploadWriter, upload_writer_id

COMPACTED = "x.born-1"
Spans = Mapping[int, tuple[int, int]]


def uploaded(epoch: int = 1, node_id: int = 1) -> str:
    return upload_writer_id("x", UploadWriter(node_id, epoch))


def found(object_id: int, spans: Spans, writer_id: str | None = None) -> FoundObject:
    ranges = [StreamRange(key, start, end, end - start, 1, 1) for key, (start, end) in sorted(spans.items())]
    return FoundObject(object_id, "main", 1, 1, writer_id or uploaded(), ObjectKind.SSO, ranges)


def state_of(
    streams: Spans, committed: Sequence[int], *, next_object: int = 100, prepared: Sequence[int] = (), epoch: int = 1
) -> CatalogState:
    """Streams with their starts and committed ends."""
    return CatalogState(
        counters={"stream": 50, "object": next_object, "producer": 0},
        nodes={1: epoch},
        streams=[StreamState(key, 1, 1, 1, 1, start, end) for key, (start, end) in sorted(streams.items())],
        committed={1: committed},
        prepared=prepared,
    )


def shown(plan: RebuildPlan) -> dict[int, list[tuple[int, int, int]]]:
    """Start, end and object of each stream's pieces."""
    return {
        key: [(piece.start_offset, piece.end_offset, piece.object_id) for piece in chain.pieces]
        for key, chain in plan.chains.items()
    }


def test_listed_objects_are_taken_and_inputs_of_compaction_are_not() -> None:
    state = state_of({1: (0, 100), 2: (0, 50)}, [3])
    plan = plan_rebuild(
        state,
        [
            found(1, {1: (0, 60), 2: (0, 20)}),
            found(2, {1: (60, 100), 2: (20, 50)}),
            found(3, {1: (0, 100), 2: (0, 50)}, COMPACTED),
        ],
    )
    assert shown(plan) == {1: [(0, 100, 3)], 2: [(0, 50, 3)]}
    assert plan.skipped == dict.fromkeys((1, 2), SkipReason.DEAD)
    assert not plan.has_loss


@pytest.mark.parametrize(("prepared", "epoch"), [((), 1), ((4,), 2), ((), 2)])
def test_uploads_that_the_catalog_has_forgotten_are_taken(prepared: Sequence[int], epoch: int) -> None:
    """It had gone back when the manifest was written, by more than a commit or by one, and the node began anew."""
    state = state_of({1: (0, 100)}, [1], prepared=prepared, epoch=epoch)
    plan = plan_rebuild(state, [found(1, {1: (0, 100)}), found(4, {1: (100, 130)}), found(5, {1: (130, 140)})])
    assert shown(plan) == {1: [(0, 100, 1), (100, 130, 4), (130, 140, 5)]}


def test_an_upload_whose_offsets_were_given_again_stays_in_the_store() -> None:
    state = state_of({1: (0, 120)}, [1, 9], epoch=2)
    plan = plan_rebuild(
        state, [found(1, {1: (0, 100)}), found(4, {1: (100, 130)}), found(9, {1: (100, 120)}, uploaded(2))]
    )
    assert shown(plan) == {1: [(0, 100, 1), (100, 120, 9)]}
    assert plan.skipped == {4: SkipReason.UNCOMMITTED}


def test_what_an_earlier_rebuild_has_left_out_does_not_come_back() -> None:
    state = state_of({1: (0, 130)}, [1], epoch=1 + EPOCHS_SKIPPED)
    plan = plan_rebuild(state, [found(1, {1: (0, 130)}), found(5, {1: (130, 140)}, uploaded(1))])
    assert shown(plan) == {1: [(0, 130, 1)]}
    assert plan.skipped == {5: SkipReason.UNCOMMITTED}


def test_later_uploads_continue_where_the_manifest_ends() -> None:
    state = state_of({1: (0, 100), 2: (0, 50)}, [1], next_object=10)
    plan = plan_rebuild(
        state,
        [
            found(1, {1: (0, 100), 2: (0, 50)}),
            found(11, {1: (100, 130), 2: (50, 60)}),
            found(10, {1: (130, 140)}),  # a repeated upload: its object id does not give the order
        ],
    )
    assert shown(plan) == {1: [(0, 100, 1), (100, 130, 11), (130, 140, 10)], 2: [(0, 50, 1), (50, 60, 11)]}
    assert plan.chains[1] == StreamChain(1, 0, 140, plan.chains[1].pieces)


def test_an_upload_behind_one_that_never_arrived_was_not_committed() -> None:
    """Two were under way; the second was faster, and then the node died."""
    plan = plan_rebuild(
        state_of({1: (0, 100)}, [1], next_object=10), [found(1, {1: (0, 100)}), found(11, {1: (130, 140)})]
    )
    assert shown(plan) == {1: [(0, 100, 1)]}
    assert plan.skipped == {11: SkipReason.UNCOMMITTED}
    assert not plan.has_loss, "what it holds is in the log"


def test_what_was_prepared_when_the_manifest_was_written_may_be_committed_later() -> None:
    state = state_of({1: (0, 100)}, [1], next_object=10, prepared=[8])
    plan = plan_rebuild(state, [found(1, {1: (0, 100)}), found(8, {1: (100, 120)})])
    assert shown(plan) == {1: [(0, 100, 1), (100, 120, 8)]}


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_log_that_was_given_up_had_uploaded_does_not_come_back(*, whole: bool) -> None:
    """Others have since acknowledged other records at the same offsets."""
    state = state_of({1: (0, 100)}, [1], next_object=10, prepared=[8], epoch=2)
    if whole:
        state = replace(state, wals=[WalInfo("0" * 16, 1, 1, "/wal", WalState.GIVEN_UP, 1)])
    else:  # by an unclean election of the partition
        state = replace(state, streams=[each._replace(node_id=2) for each in state.streams])
    plan = plan_rebuild(state, [found(1, {1: (0, 100)}), found(8, {1: (100, 120)}, uploaded(1))])
    assert shown(plan) == {1: [(0, 100, 1)]}
    assert plan.skipped == {8: SkipReason.UNCOMMITTED}


def test_of_two_uploads_of_the_same_offsets_the_later_life_counts_to_its_end() -> None:
    state = state_of({1: (0, 100)}, [1], next_object=10)
    plan = plan_rebuild(
        state,
        [
            found(1, {1: (0, 100)}),
            found(10, {1: (100, 120)}, uploaded(1)),
            found(11, {1: (120, 150)}, uploaded(1)),
            found(12, {1: (100, 120)}, uploaded(2)),
        ],
    )
    assert shown(plan) == {1: [(0, 100, 1), (100, 120, 12)]}, "no return to the history that was left"


def test_an_upload_begun_again_is_taken_once() -> None:
    state = state_of({1: (0, 100)}, [1], next_object=10)
    plan = plan_rebuild(
        state,
        [found(1, {1: (0, 100)}), found(10, {1: (100, 120)}), found(11, {1: (100, 140)}), found(12, {1: (120, 130)})],
    )
    assert shown(plan) == {1: [(0, 100, 1), (100, 140, 11)]}


def test_what_compaction_made_later_is_left_out_whole() -> None:
    """The compaction's output may be incomplete; all of its inputs still exist."""
    state = state_of({1: (0, 100)}, [1, 2], next_object=10, prepared=[9])
    plan = plan_rebuild(
        state,
        [
            found(1, {1: (0, 60)}),
            found(2, {1: (60, 100)}),
            found(9, {1: (0, 100)}, COMPACTED),
            found(10, {1: (100, 120)}),
            found(11, {1: (60, 120)}, "x.cleaned"),
        ],
    )
    assert shown(plan) == {1: [(0, 60, 1), (60, 100, 2), (100, 120, 10)]}
    assert plan.skipped == {9: SkipReason.COMPACTED, 11: SkipReason.COMPACTED}


def test_a_state_so_old_that_later_uploads_were_replaced_and_deleted_is_a_loss() -> None:
    state = state_of({1: (0, 100), 2: (0, 10)}, [1], next_object=10)
    objects = [
        found(1, {1: (0, 100), 2: (0, 10)}),
        found(12, {1: (120, 130)}),  # object 10 had [100, 120), object 11 other streams
        found(13, {1: (60, 120), 3: (0, 9)}, COMPACTED),
        found(14, {60: (0, 5), 61: (0, 7)}, COMPACTED),
        found(15, {61: (7, 9)}),
    ]
    plan = plan_rebuild(state, objects)
    assert plan.has_loss
    assert plan.replaced == [Gap(1, 100, 120), Gap(60, 0, 5), Gap(61, 0, 7)], "not stream 3, which was deleted"


def test_a_trimmed_start_is_kept() -> None:
    plan = plan_rebuild(state_of({1: (70, 100)}, [1, 2]), [found(1, {1: (0, 60), 2: (0, 5)}), found(2, {1: (60, 100)})])
    assert shown(plan) == {1: [(60, 100, 2)]}
    assert plan.chains[1].start_offset == 70


def test_deleted_streams_do_not_come_back() -> None:
    plan = plan_rebuild(
        state_of({1: (0, 100)}, [1], next_object=10), [found(1, {1: (0, 100), 2: (0, 9)}), found(10, {2: (9, 12)})]
    )
    assert shown(plan) == {1: [(0, 100, 1)]}


def test_streams_newer_than_the_manifest_are_kept() -> None:
    """51 has uploads and records in the log, 52 only the latter, 53 was trimmed at once."""
    state = state_of({1: (0, 100)}, [1], next_object=10)
    plan = plan_rebuild(
        state,
        [found(1, {1: (0, 100)}), found(10, {51: (0, 20), 53: (5, 9)}), found(11, {51: (20, 30)})],
        streams_in_log=[1, 7, 51, 52],
    )
    assert plan.new_streams == [51, 52, 53]
    assert shown(plan) == {1: [(0, 100, 1)], 51: [(0, 20, 10), (20, 30, 11)], 52: [], 53: [(5, 9, 10)]}
    assert plan.chains[53].start_offset == 5


def test_a_clone_has_what_it_borrowed_and_the_original_what_replaced_it() -> None:
    """Stream 1 was cleaned (object 5) after stream 2 was cloned from it; object 4 lives on for the clone."""
    state = replace(state_of({1: (0, 100), 2: (0, 120)}, [4, 5, 6]), borrowed=[BorrowedRange(2, 0, 100, 4, 1)])
    plan = plan_rebuild(
        state, [found(4, {1: (0, 100)}), found(5, {1: (0, 100)}, "x.cleaned"), found(6, {2: (100, 120)})]
    )
    assert shown(plan) == {1: [(0, 100, 5)], 2: [(0, 100, 4), (100, 120, 6)]}
    assert plan.chains[2].pieces[0] == StoredRun(2, 0, 100, 4, 1)


def test_a_committed_object_that_is_gone_is_a_loss_named_by_offsets() -> None:
    state = state_of({1: (0, 100), 2: (0, 10)}, [1, 2, 3], next_object=10)
    plan = plan_rebuild(
        state, [found(1, {1: (0, 40), 2: (0, 10)}), found(3, {1: (60, 100)}), found(10, {1: (100, 110)})]
    )
    assert plan.missing == [2]
    assert plan.gaps == [Gap(1, 40, 60)]
    assert plan.has_loss
    assert shown(plan)[1] == [(60, 100, 3), (100, 110, 10)], "what leads on to the log"
    assert plan.chains[1].start_offset == 60


@pytest.mark.parametrize(("lost", "gap", "kept"), [((0, 40), (0, 40), (40, 100)), ((60, 100), (60, 100), (100, 110))])
def test_a_loss_at_either_end(lost: tuple[int, int], gap: tuple[int, int], kept: tuple[int, int]) -> None:
    whole = [found(1, {1: (0, 40)}), found(2, {1: (40, 60)}), found(3, {1: (60, 100)}), found(10, {1: (100, 110)})]
    plan = plan_rebuild(
        state_of({1: (0, 100)}, [1, 2, 3], next_object=10),
        [each for each in whole if (each.ranges[0].start_offset, each.ranges[0].end_offset) != lost],
    )
    assert plan.gaps == [Gap(1, *gap)]
    pieces = shown(plan)[1]
    assert (pieces[0][0], plan.chains[1].start_offset) == (kept[0], kept[0])
    assert plan.chains[1].end_offset == 110


@pytest.mark.parametrize("writer_id", [uploaded(), ""])
def test_a_damaged_object_that_would_count_is_a_loss(writer_id: str) -> None:
    """Were it only left out, the next start would give its offsets again."""
    state = state_of({1: (0, 100)}, [1], next_object=10)
    plan = plan_rebuild(
        state,
        [found(1, {1: (0, 100)}), found(11, {1: (120, 130)})],
        [UnreadableObject(10, "main", 1, 1, writer_id, "damaged")],
    )
    assert [each.object_id for each in plan.damaged] == [10]
    assert plan.has_loss


def test_a_damaged_object_that_does_not_count_is_none() -> None:
    plan = plan_rebuild(
        state_of({1: (0, 100)}, [1], next_object=10),
        [found(1, {1: (0, 100)})],
        [
            UnreadableObject(2, "main", 1, 1, uploaded(), "damaged"),
            UnreadableObject(11, "main", 1, 1, COMPACTED, "damaged"),
        ],
    )
    assert not plan.has_loss


def test_the_newest_piece_covers_each_place() -> None:
    pieces = [StoredRun(1, 0, 50, 1, 1), StoredRun(1, 50, 100, 2, 1), StoredRun(1, 20, 80, 9, 1)]
    chosen, gaps = cover(pieces, 30, 100)
    assert [(piece.start_offset, piece.end_offset, piece.object_id) for piece in chosen] == [(20, 80, 9), (80, 100, 2)]
    assert gaps == []
    assert cover([], 5, 5) == ([], [])
    assert cover([], 5, 9) == ([], [(5, 9)])


def test_each_stream_is_read_in_order_and_each_object_once_where_possible() -> None:
    seeded = random.Random(3)
    chains = []
    for stream_id in range(40):
        objects = [number for number in range(30) if seeded.random() < 0.5]
        pieces = [StoredRun(stream_id, 10 * at, 10 * at + 10, key, stream_id) for at, key in enumerate(objects)]
        chains.append(StreamChain(stream_id, 0, 10 * len(pieces), pieces))
    steps = read_order(chains)
    assert len(steps) == len({step.object_id for step in steps})
    reached = dict.fromkeys(range(40), 0)
    for step in steps:
        for piece in step.pieces:
            assert piece.start_offset == reached[piece.stream_id]
            reached[piece.stream_id] = piece.end_offset
    assert reached == {chain.stream_id: chain.end_offset for chain in chains}


def test_objects_that_hold_two_streams_in_opposite_orders_are_visited_again() -> None:
    chains = [
        StreamChain(1, 0, 20, [StoredRun(1, 0, 10, 7, 1), StoredRun(1, 10, 20, 8, 1)]),
        StreamChain(2, 0, 20, [StoredRun(2, 0, 10, 8, 2), StoredRun(2, 10, 20, 7, 2)]),
        StreamChain(3, 0, 0, []),
    ]
    steps = read_order(chains)
    assert [step.object_id for step in steps] == [7, 8, 7]
    assert sum(len(step.pieces) for step in steps) == 4


@pytest.mark.parametrize("seed", range(20))
def test_histories_are_found_again(seed: int) -> None:
    """After random uploads, manifests and compactions, the chains are the committed history and all acked records."""
    seeded = random.Random(seed)
    ends = {1: 0, 2: 0, 3: 0}
    stored: dict[int, FoundObject] = {}
    committed: dict[int, FoundObject] = {}
    next_id = 1
    state = state_of(dict.fromkeys(ends, (0, 0)), [], next_object=1)
    for _ in range(60):
        kind = seeded.choice(["upload", "upload", "lost upload", "compact", "half compact", "manifest"])
        if "upload" in kind:
            spans = {key: (end, end + seeded.randrange(1, 9)) for key, end in ends.items() if seeded.random() < 0.6}
            if spans:
                stored[next_id] = found(next_id, spans)
                if kind == "upload":
                    committed[next_id] = stored[next_id]
                    ends |= {key: end for key, (_, end) in spans.items()}
                next_id += 1
        elif "compact" in kind and committed:
            made = []
            for key, end in ends.items():
                if end:
                    made.append(found(next_id, {key: (0, end)}, COMPACTED))
                    next_id += 1
            if kind == "compact":
                committed = {each.object_id: each for each in made}
            else:
                made = made[:1]
            stored |= {each.object_id: each for each in made}
        elif kind == "manifest":
            state = state_of({key: (0, end) for key, end in ends.items()}, sorted(committed), next_object=next_id)
            stored = {key: each for key, each in stored.items() if key in committed or seeded.random() < 0.5}
    plan = plan_rebuild(state, stored.values())
    assert not plan.has_loss
    for key, end in ends.items():
        chain = plan.chains[key]
        assert chain.start_offset == 0
        assert chain.end_offset >= end
        assert [piece.end_offset for piece in chain.pieces[:-1]] == [piece.start_offset for piece in chain.pieces[1:]]
