"""Rates over windows and credit, on a stepped clock: what Apache Kafka computes from the same records."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.quotas.rates import Rate, TokenBucket, Windows

WINDOWS = Windows(11, 1000)


def test_ten_whole_windows_are_assumed_at_the_start() -> None:
    rate = Rate(WINDOWS)
    rate.record(10_000, 0)
    assert rate.measure(0) == 1000
    assert rate.measured_ms(0) == 10_000
    assert rate.measure(500) == pytest.approx(10_000 / 10.5)


def test_the_throttle_time_brings_the_rate_down_to_the_limit() -> None:
    rate = Rate(WINDOWS)
    rate.record(20_000, 0)
    assert rate.throttle_ms(2000, 0) == 0
    assert rate.throttle_ms(1000, 0) == 10_000, "20,000 in 20 s"
    rate.record(5000, 400)
    assert rate.throttle_ms(1000, 400) == 25_000 - 10_400


def test_windows_are_forgotten_when_nothing_was_recorded_for_their_whole_number() -> None:
    rate = Rate(WINDOWS)
    rate.record(20_000, 0)
    assert rate.measure(10_999) == pytest.approx(20_000 / 10.999)
    assert rate.measure(11_000) == 0
    assert rate.throttle_ms(1000, 11_000) == 0


def test_what_is_taken_back_was_never_there() -> None:
    rate = Rate(WINDOWS)
    rate.record(700, 0)
    rate.record(5000, 300)
    rate.record(-5000, 300)
    assert rate.measure(300) == pytest.approx(700 / 10.3)


class NaiveRate:
    """All records, put into windows anew for each question."""

    def __init__(self, wanted: Windows) -> None:
        self.wanted, self.records = wanted, list[tuple[int, float]]()

    def measure(self, now_ms: int) -> float:
        windows: list[list[tuple[int, float]]] = []
        for at_ms, value in self.records:
            if not windows or at_ms - windows[-1][0][0] >= self.wanted.window_ms:
                windows.append([])
            windows[-1].append((at_ms, value))
        span_ms = self.wanted.count * self.wanted.window_ms
        kept = [window for window in windows[-self.wanted.count - 1 :] if now_ms - window[-1][0] < span_ms]
        elapsed_ms = now_ms - kept[0][0][0] if kept else 0
        missing = max(0, self.wanted.count - 1 - elapsed_ms // self.wanted.window_ms)
        total = sum(value for window in kept for _, value in window)
        return 1000 * total / max(elapsed_ms + missing * self.wanted.window_ms, 1)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50)), min_size=1, max_size=60),
)
def test_the_rate_is_that_of_a_naive_model(count: int, steps: list[tuple[int, int]]) -> None:
    wanted = Windows(count, 100)
    rate, naive, now_ms = Rate(wanted), NaiveRate(wanted), 0
    for pause_ms, value in steps:
        now_ms += pause_ms
        rate.record(value, now_ms)
        naive.records.append((now_ms, value))
        assert rate.measure(now_ms) == pytest.approx(naive.measure(now_ms))


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 100, 1000, 5000])
def test_a_client_that_waits_as_it_is_told_has_its_rate(size: int) -> None:
    rate, now_ms, total = Rate(WINDOWS), 0, 0
    while now_ms < 600_000:
        rate.record(size, now_ms)
        total += size
        now_ms += rate.throttle_ms(1000, now_ms)
    assert 1000 * total / now_ms == pytest.approx(1000, rel=0.02)


def test_credit_is_full_at_first_and_grows_by_the_limit() -> None:
    bucket = TokenBucket(WINDOWS)
    assert bucket.tokens(5, 1000) == 55
    bucket.take(115, 5, 1000)
    assert bucket.tokens(5, 1000) == -60
    assert bucket.throttle_ms(5, 1000) == 12_000
    assert bucket.throttle_ms(5, 13_000) == 0
    assert bucket.tokens(5, 13_000) == 0
    assert bucket.tokens(5, 10**9) == 55
    assert not math.isnan(bucket.tokens(5, 10**9))
