"""The memory budget of requests: never exceeded, first come, first served, without starvation."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.node.net.budget import FrameBudget
from anabranch.broker.node.settings.memory import FRAME_SIZE_BYTES, SMALL_FRAME_SHARE, frame_budget_bytes_min

SMALL_MAX = 64
TOTAL = 1024
LARGE_MAX = TOTAL - TOTAL // SMALL_FRAME_SHARE


@dataclass(eq=False)
class FrameWaiter:
    """Reserves memory for one frame after the other."""

    size: int = 0
    has_it: bool = False
    log: "list[FrameWaiter]" = field(default_factory=list)

    def granted(self) -> None:
        self.has_it = True
        self.log.append(self)


def served(client: FrameWaiter) -> bool:
    return client.has_it


def make() -> FrameBudget:
    return FrameBudget(TOTAL, small_bytes_max=SMALL_MAX)


def test_who_comes_first_is_served_first() -> None:
    budget, log = make(), list[FrameWaiter]()
    clients = [FrameWaiter(log=log) for _ in range(4)]
    assert budget.reserve(FrameWaiter(), 800)
    assert not budget.reserve(clients[0], 700)
    assert not budget.reserve(clients[1], 80), "there is room for it, but it is not its turn"
    assert not budget.reserve(clients[2], 300)
    budget.release_large(800)
    assert log == clients[:2]
    budget.release_large(700)
    assert log == clients[:3]
    assert not budget.waiting
    assert not budget.crowded


def test_large_frames_leave_small_ones_their_share() -> None:
    budget = make()
    assert budget.reserve(FrameWaiter(), TOTAL - TOTAL // SMALL_FRAME_SHARE)
    assert not budget.reserve(FrameWaiter(), SMALL_MAX + 1)
    for _ in range(TOTAL // SMALL_FRAME_SHARE // SMALL_MAX):
        assert budget.reserve(FrameWaiter(), SMALL_MAX), "served beside a crowd of large ones"
    assert not budget.reserve(FrameWaiter(), 1)
    assert budget.bytes_held == TOTAL


def test_small_frames_take_everything_while_nobody_else_wants_it() -> None:
    budget = make()
    for _ in range(TOTAL // SMALL_MAX):
        assert not budget.crowded
        budget.take(SMALL_MAX)
    assert budget.crowded
    late = FrameWaiter()
    assert not budget.reserve(late, SMALL_MAX)
    budget.release_small(SMALL_MAX)
    assert late.has_it


def test_small_frames_do_not_starve_a_large_one() -> None:
    budget, large = make(), FrameWaiter()
    budget.take(600)
    assert not budget.reserve(large, 500)
    newcomer = FrameWaiter()
    assert not budget.reserve(newcomer, 10), "its room is kept"
    budget.release_small(60)
    assert not served(large)
    budget.release_small(60)
    assert served(large)
    assert served(newcomer)


@given(request_bytes_max=st.integers(1024, (1 << 31) - 1))
def test_the_largest_request_leaves_small_ones_their_share(request_bytes_max: int) -> None:
    size = request_bytes_max + FRAME_SIZE_BYTES
    budget, large = FrameBudget(frame_budget_bytes_min(request_bytes_max), small_bytes_max=SMALL_MAX), FrameWaiter()
    assert budget.reserve(FrameWaiter(), size)
    assert not budget.reserve(large, size)
    assert budget.reserve(FrameWaiter(), SMALL_MAX), "with one under way and one at the head of the line"
    budget.release_large(size)
    assert served(large)


def test_who_leaves_the_line_makes_way() -> None:
    budget, second = make(), FrameWaiter()
    first = FrameWaiter()
    assert budget.reserve(FrameWaiter(), 500)
    assert not budget.reserve(first, 800)
    assert not budget.reserve(second, 100)
    budget.withdraw(first)
    budget.withdraw(first)
    assert served(second)
    assert not served(first)
    assert budget.bytes_held == 600


@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(
        st.one_of(st.integers(1, SMALL_MAX), st.integers(SMALL_MAX + 1, LARGE_MAX)), min_size=1, max_size=60
    ),
    leave=st.floats(0, 0.5),
)
def test_the_budget_holds_and_everybody_is_served(seed: int, sizes: list[int], leave: float) -> None:
    choose = random.Random(seed)
    budget = make()
    waiting: list[FrameWaiter] = []
    holding: list[FrameWaiter] = []
    served = left = 0

    def check() -> None:
        assert budget.bytes_held == sum(client.size for client in holding) <= TOTAL
        assert budget.waiting == len(waiting)

    def settle() -> None:
        for client in [client for client in waiting if client.has_it]:
            waiting.remove(client)
            holding.append(client)
        check()

    for size in sizes:
        client = FrameWaiter(size)
        (holding if budget.reserve(client, size) else waiting).append(client)
        check()
        if waiting and choose.random() < leave:
            left += 1
            budget.withdraw(waiting.pop(choose.randrange(len(waiting))))
            settle()
        if holding and choose.random() < 0.3:
            served += 1
            gone = holding.pop(choose.randrange(len(holding)))
            (budget.release_small if gone.size <= SMALL_MAX else budget.release_large)(gone.size)
            settle()
    while holding:
        served += 1
        gone = holding.pop(choose.randrange(len(holding)))
        (budget.release_small if gone.size <= SMALL_MAX else budget.release_large)(gone.size)
        settle()
    assert not waiting
    assert served + left == len(sizes)
    assert not budget.crowded
