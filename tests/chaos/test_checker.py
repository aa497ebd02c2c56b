"""The checker finds each anomaly in a history made for it, and none in a good one."""

from collections.abc import Sequence

import pytest

from tests.chaos.checker import Entry, Kind, Operation, Verdict, check, rings

P0, P1 = ("t", 0), ("t", 1)


def send(process: int, offset: int, value: str, *, where: tuple[str, int] = P0, txn: str | None = None) -> Operation:
    return Operation(process, Kind.SEND, [Entry(where, offset, value)], transaction=txn)


def poll(process: int, *entries: tuple[int, str], where: tuple[str, int] = P0, txn: str | None = None) -> Operation:
    return Operation(process, Kind.POLL, [Entry(where, *each) for each in entries], transaction=txn)


GOOD = [
    send(1, 0, "a"),
    send(2, 0, "x", where=P1),
    send(1, 1, "b"),
    poll(3, (0, "a"), (1, "b")),
    Operation(3, Kind.ASSIGN),
    poll(3, (0, "a")),
    poll(3, (1, "b")),
    poll(3, (0, "x"), where=P1),
]


def test_a_good_history_has_no_anomaly() -> None:
    assert not check(GOOD, outcomes={}).found


def test_acks_of_what_was_sent_in_order_may_come_in_any_order() -> None:
    first, second = (
        Operation(1, Kind.SEND, [Entry(P0, offset, value)], number=offset) for offset, value in enumerate("ab")
    )
    assert not check([second, first, poll(3, (0, "a"), (1, "b"))], outcomes={}).found
    late = Operation(1, Kind.SEND, [Entry(P0, 2, "c")], number=-1)
    assert check([first, late, poll(3, (0, "a"), (2, "c"))], outcomes={}).counts == {"non-monotonic send": 1}


def test_a_send_of_unknown_outcome_may_be_there_or_not() -> None:
    unknown = Operation(1, Kind.SEND, [Entry(P0, -1, "maybe")], Verdict.UNKNOWN)
    assert not check([unknown], outcomes={}).found
    assert not check([unknown, poll(3, (0, "maybe"))], outcomes={}).found


@pytest.mark.parametrize(
    ("name", "history"),
    [
        ("inconsistent offsets", [send(1, 0, "a"), poll(3, (0, "b")), poll(4, (0, "a"))]),
        ("duplicate", [send(1, 0, "a"), poll(3, (0, "a"), (1, "a"))]),
        ("lost write", [send(1, 0, "a"), send(1, 1, "b"), poll(3, (1, "b"))]),
        ("unseen", [send(1, 0, "a"), send(1, 1, "b"), poll(3, (0, "a"))]),
        ("poll skip", [*GOOD, send(1, 2, "c"), send(1, 3, "d"), poll(4, (2, "c")), poll(3, (3, "d"))]),
        ("non-monotonic poll", [send(1, 0, "a"), send(1, 1, "b"), poll(3, (0, "a"), (1, "b")), poll(3, (0, "a"))]),
        ("non-monotonic send", [send(1, 1, "b"), send(1, 0, "a"), poll(3, (0, "a"), (1, "b"))]),
    ],
)
def test_each_anomaly_of_records_is_found(name: str, history: Sequence[Operation]) -> None:
    assert check(history, outcomes={}).counts == {name: 1}


def test_an_aborted_and_a_torn_transaction_are_found() -> None:
    history = [send(1, 0, "a", txn="t1"), send(1, 1, "b", txn="t1"), poll(3, (0, "a"))]
    assert "aborted read" in check(history, outcomes={"t1": Verdict.FAILED}).counts
    assert "torn transaction" in check(history, outcomes={"t1": Verdict.UNKNOWN}).counts
    assert "torn transaction" in check(history, outcomes={"t1": Verdict.OK}).counts


def test_transactions_that_read_from_each_other_are_found() -> None:
    history = [
        send(1, 0, "a", txn="t1"),
        poll(1, (0, "x"), where=P1, txn="t1"),
        send(2, 0, "x", where=P1, txn="t2"),
        poll(2, (0, "a"), txn="t2"),
    ]
    both = {"t1": Verdict.OK, "t2": Verdict.OK}
    assert check(history, outcomes=both).counts == {"G1c": 1}


def test_interleaved_writes_are_counted_and_no_anomaly() -> None:
    history = [
        send(1, 0, "a", txn="t1"),
        send(2, 1, "b", txn="t2"),
        send(1, 1, "c", where=P1, txn="t1"),
        send(2, 0, "d", where=P1, txn="t2"),
        poll(3, (0, "a"), (1, "b")),
        poll(3, (0, "d"), (1, "c"), where=P1),
    ]
    anomalies = check(history, outcomes={"t1": Verdict.OK, "t2": Verdict.OK})
    assert not anomalies.found
    assert anomalies.g0 == 1


def test_rings_are_the_components_with_several_nodes() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}, "g": set()}
    assert sorted(rings(edges)) == [["a", "b", "c"], ["e", "f"]]


def test_what_an_aborted_transaction_left_is_no_skip_and_must_stay_unread() -> None:
    history = [
        send(1, 0, "a"),
        send(2, 1, "b", txn="t1"),
        send(1, 2, "c"),
        poll(3, (0, "a"), (2, "c")),
    ]
    aborted = {"t1": Verdict.FAILED}
    assert not check(history, outcomes=aborted).found
    unknown = Operation(2, Kind.SEND, [Entry(P0, -1, "d")], Verdict.UNKNOWN, "t1")
    assert check([*history, unknown, poll(4, (3, "d"))], outcomes=aborted).counts == {"aborted read": 1}


def test_readers_that_saw_different_values_at_the_end_are_found() -> None:
    history = [send(1, 0, "a"), send(1, 1, "b"), poll(3, (0, "a"), (1, "b")), poll(4, (0, "a")), poll(5, (1, "b"))]
    assert not check(history, outcomes={}, readers=[3]).found
    assert check(history, outcomes={}, readers=[3, 4, 5]).counts == {"reader skip": 2}


def test_a_group_that_left_out_what_others_polled_is_found() -> None:
    history = [send(1, 0, "a"), send(1, 1, "b"), poll(3, (0, "a"), (1, "b")), poll(4, (0, "a")), poll(5, (1, "b"))]
    assert not check(history, outcomes={}, groups={"g": ("t", {4, 5})}).found
    assert check(history, outcomes={}, groups={"g": ("t", {4})}).counts == {"group skip": 1}
    assert not check(history, outcomes={}, groups={"g": ("another", {4})}).found
