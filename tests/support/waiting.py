"""Waiting for conditions without an event to wait for: state of another process, of a thread, or inside a node."""

import asyncio
import time
from collections.abc import Callable

import pytest

WAIT_S = 100
"""Longest wait of `wait_until`."""


async def until(condition: Callable[[], bool], *, timeout_s: float = 60, pause_s: float = 0) -> None:
    """Return when the condition holds. The loop keeps running. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(pause_s)


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
    """Return when the condition holds; blocks the thread. Fails the test with `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        expect_before(end, f"the condition never held: {what}")
        time.sleep(0.02)


def expect_before(end: float, what: str) -> None:
    """Fail the test past `end` as a timeout does, so that the stacks of its nodes are printed."""
    if time.monotonic() >= end:
        pytest.fail(f"Timeout: {what}")
