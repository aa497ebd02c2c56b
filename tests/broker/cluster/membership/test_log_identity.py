"""Decision whether a node may continue a log: the whole table, without a node."""

import pytest

from anabranch.broker.cluster.membership.log_identity import (
    GIVE_UP_COMMAND,
    LogFacts,
    found_log,
    may_hold_records,
    why_not_formatted,
    why_refused,
)
from anabranch.s3stream.catalog.values import WalInfo, WalState
from anabranch.wal.format import Header, Shutdown, wal_id_of
from anabranch.wal.owner import Owner

OPEN, DRAINED, GIVEN_UP = WalState.OPEN, WalState.DRAINED, WalState.GIVEN_UP
DIRTY, RECORDS, EMPTY = (Shutdown.RUNNING, 0), (Shutdown.GRACEFUL, 4096), (Shutdown.GRACEFUL, 0)
"""States of a log after its last use: not stopped cleanly; stopped cleanly with records; stopped cleanly and empty."""
FIRST, SECOND = 1, 2
OWNER = Owner(1, 9, "c", b"c" * 16)


def header(log_id: int, left: tuple[Shutdown, int], *, epoch: int = 1, cluster: str = "c", node: int = 1) -> Header:
    shutdown, durable = left
    return Header(
        sequence=1,
        log_id=log_id,
        capacity_bytes=1 << 20,
        base_offset=0,
        head_offset=0,
        trim_offset=-1,
        durable_offset=durable,
        window_bytes=4096,
        node_id=node,
        node_epoch=epoch,
        last_write_ms=0,
        cluster=cluster,
        shutdown=shutdown,
        catalog_id=b"o" * 16,
    )


def known(log_id: int, state: WalState, *, epoch: int = 1) -> WalInfo:
    return WalInfo(wal_id_of(log_id), 1, epoch, f"/log-{log_id}", state, 0)


def refusal(found: Header | None, *wals: WalInfo, streams: int = 3, problem: str = "is blank") -> str | None:
    return why_refused(LogFacts("/wal", None if found is None else found_log(found), problem, wals, streams, "host"))


@pytest.mark.parametrize("left", [DIRTY, RECORDS, EMPTY])
def test_a_log_that_the_catalog_does_not_know_is_taken_where_no_other_was_used(left: tuple[Shutdown, int]) -> None:
    """The first start after an upgrade, or one that crashed between claim and note."""
    assert refusal(header(FIRST, left)) is None


def test_a_new_log_is_begun_where_nothing_can_be_in_another() -> None:
    assert refusal(None) is None
    assert refusal(None, known(FIRST, DRAINED)) is None
    assert refusal(None, known(FIRST, GIVEN_UP)) is None
    assert refusal(None, known(FIRST, OPEN), streams=0) is None, "no stream is left whose records it could hold"


@pytest.mark.parametrize("left", [DIRTY, RECORDS, EMPTY])
@pytest.mark.parametrize("state", [OPEN, DRAINED])
def test_a_node_goes_on_with_the_log_it_used_last(left: tuple[Shutdown, int], state: WalState) -> None:
    assert refusal(header(SECOND, left, epoch=2), known(FIRST, DRAINED), known(SECOND, state, epoch=2)) is None


@pytest.mark.parametrize("left", [DIRTY, RECORDS, EMPTY, None])
def test_another_log_than_the_open_one_is_refused(left: tuple[Shutdown, int] | None) -> None:
    found = None if left is None else header(SECOND, left, epoch=5)
    reason = refusal(found, known(FIRST, OPEN)) or ""
    instead = "is blank" if found is None else f"holds another log ({wal_id_of(SECOND)})"
    assert reason.startswith(f"/wal {instead}, but node 1 has a log ({wal_id_of(FIRST)}, at /log-1 on host")
    assert "the newest of 3 partitions may be only there" in reason
    assert GIVE_UP_COMMAND in reason
    assert "\n" not in reason


@pytest.mark.parametrize("left", [DIRTY, RECORDS, EMPTY])
def test_a_log_that_was_given_up_never_comes_back(left: tuple[Shutdown, int]) -> None:
    found = header(FIRST, left)
    for others in ((), (known(SECOND, OPEN, epoch=2),), (known(SECOND, DRAINED, epoch=2),)):
        assert "was given up on 1970-01-01 00:00:00 UTC" in (refusal(found, known(FIRST, GIVEN_UP), *others) or "")


@pytest.mark.parametrize("state", [DRAINED, GIVEN_UP])
def test_records_from_before_another_log_was_used_are_refused(state: WalState) -> None:
    """Two histories: the streams of the other log have continued without its records."""
    later = known(SECOND, state, epoch=2)
    for left in (DIRTY, RECORDS):
        assert "from before the node used another log" in (refusal(header(FIRST, left), later) or "")
        assert "from before the node used another log" in (
            refusal(header(FIRST, left), known(FIRST, DRAINED), later) or ""
        )
        assert refusal(header(FIRST, left, epoch=3), later) is None
    assert refusal(header(FIRST, EMPTY), later) is None


@pytest.mark.parametrize("left", [DIRTY, RECORDS, EMPTY])
def test_an_older_copy_of_the_log_is_refused_while_the_log_may_hold_records(left: tuple[Shutdown, int]) -> None:
    reason = refusal(header(FIRST, left, epoch=3), known(FIRST, OPEN, epoch=4))
    assert reason is not None
    assert "older copy" in reason
    assert "epoch 3" in reason
    assert "epoch 4" in reason
    assert refusal(header(FIRST, left, epoch=5), known(FIRST, OPEN, epoch=4)) is None, "claimed, and not noted yet"
    assert refusal(header(FIRST, left, epoch=3), known(FIRST, DRAINED, epoch=4)) is None, "nothing is missing from it"


def test_only_a_clean_stop_with_everything_trimmed_proves_a_log_empty() -> None:
    assert [may_hold_records(header(FIRST, left)) for left in (DIRTY, RECORDS, EMPTY)] == [True, True, False]


def test_a_log_of_this_node_is_not_formatted_while_it_may_hold_records() -> None:
    for left in (DIRTY, RECORDS):
        assert "belongs to another catalog (6f6f6f" in (why_not_formatted("/wal", header(FIRST, left), OWNER) or "")
    assert why_not_formatted("/wal", header(FIRST, EMPTY), OWNER) is None
    assert why_not_formatted("/wal", header(FIRST, DIRTY, cluster="d"), OWNER) is None
    assert why_not_formatted("/wal", header(FIRST, DIRTY, node=2), OWNER) is None
