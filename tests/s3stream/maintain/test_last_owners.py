"""The last owners of streams, from manifests and marks of any age."""

from anabranch.s3stream.catalog.manifest_state import CatalogState, OwnedStreams, StreamState
from anabranch.s3stream.catalog.topics import NOBODY
from anabranch.s3stream.catalog.values import WalInfo, WalState
from anabranch.s3stream.maintain.last_owners import with_last_owners
from anabranch.s3stream.maintain.rebuild_plan import EPOCHS_SKIPPED


def wal(node_id: int, node_epoch: int = 4) -> WalInfo:
    return WalInfo(f"log-{node_id}", node_id, node_epoch, "/log", WalState.OPEN, 0)


def stream(stream_id: int, epoch: int, node_id: int, leader: int | None = None, leader_epoch: int = 1) -> StreamState:
    return StreamState(stream_id, epoch, node_id, node_id if leader is None else leader, leader_epoch, 10, 20)


STATE = CatalogState(
    nodes={1: 4, 2: 4}, wals=[wal(1), wal(2)], streams=[stream(1, 5, 1), stream(2, 5, 1), stream(3, 5, NOBODY, 2)]
)


def test_the_owner_of_the_highest_epoch_counts_whatever_names_it() -> None:
    older = CatalogState(wals=[wal(2)], streams=[stream(1, 6, 2, leader_epoch=9), stream(2, 4, 2)])
    marks = [OwnedStreams(wal(2), {2: 7, 3: 6}), OwnedStreams(wal(1), {3: 8, 2: 6})]

    found = with_last_owners(STATE, [older], marks)

    assert found.streams == [
        StreamState(1, 6, 2, 2, 9, 10, 20),
        StreamState(2, 7, 2, 2, 1, 10, 20),
        StreamState(3, 8, 1, 1, 1, 10, 20),
    ]
    assert (found.nodes, found.wals) == (STATE.nodes, STATE.wals)


def test_what_is_as_old_or_older_changes_nothing() -> None:
    older = CatalogState(wals=[wal(2)], streams=[stream(1, 5, 2), stream(2, 4, 2), stream(9, 9, 2)])

    found = with_last_owners(STATE, [older], [OwnedStreams(wal(2), {1: 5, 3: 2, 9: 9})])

    assert found == STATE


def test_a_stream_that_was_given_up_later_has_no_owner() -> None:
    released = CatalogState(wals=[wal(2)], streams=[stream(1, 6, NOBODY, 2)])

    found = with_last_owners(STATE, [released], [])

    assert found.streams[0] == StreamState(1, 6, NOBODY, 2, 1, 10, 20)


def test_a_log_that_the_state_does_not_know_comes_with_its_node() -> None:
    found = with_last_owners(STATE, [], [OwnedStreams(wal(3, node_epoch=2), {1: 6})])

    assert found.wals == [wal(1), wal(2), wal(3, node_epoch=2)]
    assert found.nodes == {1: 4, 2: 4, 3: 2}


def test_a_node_that_was_removed_does_not_come_back_for_what_it_once_owned() -> None:
    older = CatalogState(wals=[wal(3)], streams=[stream(1, 3, 3)])

    found = with_last_owners(STATE, [older], [OwnedStreams(wal(3), {2: 4})])

    assert found == STATE


def test_a_detached_stream_stays_without_an_owner() -> None:
    state = CatalogState(wals=[wal(1)], streams=[stream(1, 5, NOBODY, NOBODY)])

    assert with_last_owners(state, [], [OwnedStreams(wal(1), {1: 6})]) == state


def test_what_an_earlier_life_of_the_catalog_has_left_says_nothing_of_a_stream_whose_id_was_given_again() -> None:
    """A node that is gone keeps its manifests and marks. A topic that is new since a rebuild begins at epoch 1."""
    state = CatalogState(nodes={1: 4 + EPOCHS_SKIPPED, 2: 4 + EPOCHS_SKIPPED}, wals=[wal(1)], streams=[stream(9, 1, 1)])
    earlier = CatalogState(nodes={2: 4}, wals=[wal(2)], streams=[stream(9, 5, 2)])

    assert with_last_owners(state, [earlier], [OwnedStreams(wal(2), {9: 6})]) == state
