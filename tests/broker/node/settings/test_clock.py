"""A jump of the clock deletes nothing before it has lasted for a while."""

from dataclasses import dataclass

from anabranch.broker.node.settings.clock import JUMP_IGNORED_MS, JUMP_MS_MIN, CautiousClock

YEAR_MS = 365 * 86_400_000


@dataclass(slots=True)
class Time:
    wall_ms: int = 1_700_000_000_000
    monotonic_ms: int = 5

    def pass_ms(self, elapsed_ms: int) -> None:
        self.wall_ms += elapsed_ms
        self.monotonic_ms += elapsed_ms


def made() -> tuple[Time, CautiousClock]:
    time = Time()
    return time, CautiousClock(lambda: time.wall_ms, lambda: time.monotonic_ms)


def test_it_is_the_wall_clock_as_long_as_that_goes_its_way() -> None:
    time, clock = made()
    for elapsed_ms, correction_ms in ((0, 0), (300_000, 0), (YEAR_MS, JUMP_MS_MIN), (1, -YEAR_MS), (1000, 5)):
        time.pass_ms(elapsed_ms)
        time.wall_ms += correction_ms
        assert clock.now_ms() == time.wall_ms


def test_a_leap_that_is_taken_back_was_none() -> None:
    time, clock = made()
    for _ in range(3):
        time.wall_ms += YEAR_MS
        time.pass_ms(JUMP_IGNORED_MS // 2)
        assert clock.now_ms() == time.wall_ms - YEAR_MS
        time.pass_ms(JUMP_IGNORED_MS // 2 - 1)
        assert clock.now_ms() == time.wall_ms - YEAR_MS
        time.wall_ms -= YEAR_MS
        time.pass_ms(1)
        assert clock.now_ms() == time.wall_ms


def test_a_leap_that_stands_is_believed() -> None:
    time, clock = made()
    time.wall_ms += YEAR_MS
    assert clock.now_ms() == time.wall_ms - YEAR_MS
    time.pass_ms(JUMP_IGNORED_MS)
    assert clock.now_ms() == time.wall_ms
    time.pass_ms(1)
    assert clock.now_ms() == time.wall_ms
