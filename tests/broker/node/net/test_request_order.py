"""The order of requests and responses without a connection."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.node.net.exchange import ClientConnection, Exchange
from anabranch.broker.node.net.request_order import RequestOrder

PRODUCE, FETCH = 0, 1


class Clock:
    """As much of a connection as an exchange reads."""

    @staticmethod
    def clock() -> float:
        return 0.0


class Requests:
    """Requests of one connection, by the numbers of their arrival."""

    def __init__(self) -> None:
        self.order = RequestOrder(frozenset({PRODUCE}))
        self.arrived: list[int] = []
        """Their API keys."""
        self.started: list[Exchange] = []
        self.answered: list[int] = []

    def arrive(self, key: int) -> None:
        frame = key.to_bytes(2) + bytes(6)
        self.arrived.append(key)
        if self.order.waiting or not self.order.may_start(frame):
            self.order.add_waiting(frame)
        else:
            self.start(frame)

    def start(self, frame: bytes) -> None:
        exchange = Exchange(
            cast("ClientConnection", Clock()), int.from_bytes(frame[:2]), 0, len(self.started), client_id=None
        )
        self.started.append(exchange)
        self.order.start(exchange)

    def finish(self, number: int) -> None:
        exchange = self.started[number]
        exchange.done = True
        self.answered += [each.correlation_id for each in self.order.complete(exchange)]
        while (frame := self.order.next_waiting()) is not None:
            self.start(bytes(frame))

    @property
    def in_progress(self) -> list[int]:
        return [each.correlation_id for each in self.started if not each.done]


@given(st.lists(st.tuples(st.sampled_from(["produce", "fetch", "finish", "hold"]), st.integers(0, 20))))
def test_responses_keep_the_order_of_requests(steps: list[tuple[str, int]]) -> None:
    requests = Requests()
    held = -1
    for step, choice in steps:
        if step == "produce":
            requests.arrive(PRODUCE)
        elif step == "fetch":
            requests.arrive(FETCH)
        elif requests.in_progress and step == "finish":
            requests.finish(requests.in_progress[choice % len(requests.in_progress)])
        elif requests.in_progress and step == "hold" and requests.in_progress[-1] == len(requests.started) - 1:
            held = requests.in_progress[-1]
            requests.order.hold(requests.started[held])
        alone = [each for each in requests.in_progress if requests.started[each].api_key != PRODUCE]
        assert not alone or requests.in_progress == alone[:1], "a Fetch starts when all before it are answered"
        if held in requests.in_progress or alone:
            assert max([held, *alone]) == len(requests.started) - 1, "nothing starts behind it"
        assert requests.answered == list(range(len(requests.answered)))
    while requests.in_progress:
        requests.finish(requests.in_progress[-1])
    assert [each.api_key for each in requests.started] == requests.arrived
    assert requests.answered == list(range(len(requests.arrived))), "each is answered, once"
    assert not requests.order.in_progress
    assert not requests.order.waiting


def test_produces_start_beside_each_other() -> None:
    requests = Requests()
    for _ in range(3):
        requests.arrive(PRODUCE)
    assert requests.in_progress == [0, 1, 2]
    requests.finish(1)
    assert requests.answered == []
    requests.finish(0)
    assert requests.answered == [0, 1]


def test_any_order_starts_all_and_answers_each_when_it_is_done() -> None:
    requests = Requests()
    requests.arrive(FETCH)
    requests.order.allow_any_order()
    requests.finish(0)
    for key in (FETCH, PRODUCE, FETCH):
        requests.arrive(key)
        requests.order.hold(requests.started[-1])
    assert requests.in_progress == [1, 2, 3]
    for number in (3, 1, 2):
        requests.finish(number)
    assert requests.answered == [0, 3, 1, 2]


def test_only_requests_that_are_not_pipelined_may_make_the_next_wait_long() -> None:
    requests = Requests()
    requests.arrive(PRODUCE)
    requests.order.hold(requests.started[0])
    requests.arrive(PRODUCE)
    found = [requests.order.next_may_wait_long]
    requests.arrive(FETCH)
    for number in range(3):
        found.append(requests.order.next_may_wait_long)
        requests.finish(number)
    found.append(requests.order.next_may_wait_long)
    assert found == [False, True, True, True, False], "while the Fetch waits, and while it is in progress"


def test_what_is_dropped_is_forgotten() -> None:
    requests = Requests()
    for key in (FETCH, PRODUCE):
        requests.arrive(key)
    requests.order.drop_waiting()
    assert list(requests.order.drop_all()) == requests.started
    assert not requests.order.waiting
    assert not requests.order.in_progress
