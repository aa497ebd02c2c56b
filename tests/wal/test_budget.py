"""The budget over simulated time: never above its rates by more than a burst, and close to them under full load."""

import pytest

from anabranch.wal.budget import Budget, io_count


def drive(budget: Budget, size_bytes: int, seconds: float) -> int:
    """Write whenever the budget allows; return how many writes went out."""
    now_s, writes = 0.0, 0
    while now_s < seconds:
        wait_s = budget.wait_s(now_s)
        if wait_s > 0:
            now_s += max(wait_s, 1e-6)
            continue
        budget.take(size_bytes, io_count(size_bytes))
        writes += 1
    return writes


@pytest.mark.parametrize("size_bytes", [4096, 262144, 1 << 20])
def test_iops_are_kept_and_used(size_bytes: int) -> None:
    writes = drive(Budget(3000, 0, 10), size_bytes, 10.0)
    ios = writes * io_count(size_bytes)
    assert 0.97 * 2990 * 10 <= ios <= 2990 * 10 + 60 + io_count(size_bytes)


def test_bandwidth_is_kept_and_used() -> None:
    rate = 125 << 20
    sent = drive(Budget(0, rate, 0), 262144, 10.0) * 262144
    assert 0.99 * rate * 10 <= sent <= rate * 10.03


def test_header_writes_overdraw_and_the_next_write_waits() -> None:
    budget = Budget(100, 0, 10)
    while budget.wait_s(0.0) == 0:
        budget.take(4096, 1)
    before = budget.wait_s(0.0)
    budget.take(4096, 1)
    assert budget.wait_s(0.0) > before


def test_no_budget_never_waits() -> None:
    budget = Budget(0, 0, 0)
    assert budget.unlimited
    budget.take(1 << 40, 1 << 20)
    assert budget.wait_s(0.0) == 0


def test_a_write_counts_in_units_of_256_kib() -> None:
    assert [io_count(size) for size in (1, 262144, 262145, 1 << 20)] == [1, 1, 2, 4]


def test_a_write_costs_the_time_of_the_scarcer_rate() -> None:
    assert Budget(110, 0, 10).cost_s(1 << 20, 4) == 0.04
    assert Budget(0, 1 << 20, 0).cost_s(1 << 19, 2) == 0.5
    assert Budget(110, 1 << 20, 10).cost_s(1 << 20, 4) == 1.0
    assert Budget(110, 1 << 30, 10).cost_s(1 << 20, 4) == 0.04
    assert Budget(0, 0, 0).cost_s(1 << 20, 4) == 0.0
