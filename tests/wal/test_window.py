"""The sliding window against a model that keeps every write in a list."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anabranch.wal.window import SlidingWindow

PAGE = 4096


class WindowMachine(RuleBasedStateMachine):
    """The model: writes in order, each complete or not; the bound, and the larger bound that is becoming durable."""

    def __init__(self) -> None:
        super().__init__()
        self.window = SlidingWindow(5 * PAGE, 5 * PAGE, 2 * PAGE, 16 * PAGE)
        self.writes: list[tuple[int, int]] = []
        self.through: set[int] = set()
        self.growing: int | None = None

    @property
    def start(self) -> int:
        for begin, _ in self.writes:
            if begin not in self.through:
                return begin
        return self.writes[-1][1] if self.writes else 5 * PAGE

    @rule(pages=st.integers(1, 20))
    def hand(self, pages: int) -> None:
        begin = self.writes[-1][1] if self.writes else 5 * PAGE
        end = begin + pages * PAGE
        if self.window.admits(end):
            assert end - self.start <= self.window.bound
            self.window.hand(begin, end)
            self.writes.append((begin, end))
        else:
            wanted = self.window.wanted_bound(end)
            if wanted is None:
                assert self.window.bound == self.window.bound_max
            else:
                assert self.window.bound < wanted <= self.window.bound_max
                self.growing = max(wanted, self.growing or 0)

    @precondition(lambda self: self.growing is not None)
    @rule()
    def header_is_durable(self) -> None:
        assert self.growing is not None
        self.window.grow(self.growing)
        self.growing = None

    @precondition(lambda self: len(self.through) < len(self.writes))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        under_way = [write for write in self.writes if write[0] not in self.through]
        begin, end = data.draw(st.sampled_from(under_way))
        before = self.start
        self.through.add(begin)
        assert self.window.complete(begin, end) == (self.start != before)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.window.start == self.start
        assert self.window.handed == (self.writes[-1][1] if self.writes else 5 * PAGE)
        assert self.window.handed - self.window.start <= self.window.bound <= self.window.bound_max


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_misuse_is_a_bug() -> None:
    window = SlidingWindow(0, 0, 2 * PAGE, 4 * PAGE)
    with pytest.raises(AssertionError, match="passes the window"):
        window.hand(0, 3 * PAGE)
    with pytest.raises(AssertionError, match="handed over at"):
        window.hand(PAGE, 2 * PAGE)
    window.hand(0, PAGE)
    window.hand(PAGE, 2 * PAGE)
    assert not window.complete(PAGE, 2 * PAGE)
    with pytest.raises(AssertionError, match="twice"):
        window.complete(PAGE, 2 * PAGE)
    with pytest.raises(AssertionError, match="outside"):
        window.complete(2 * PAGE, 3 * PAGE)
    with pytest.raises(AssertionError, match="bound"):
        window.grow(PAGE)
    assert window.complete(0, PAGE)
    assert window.start == 2 * PAGE
