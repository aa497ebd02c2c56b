"""Waiting for what a test cannot be told of."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, timeout_s: float = 10, pause_s: float = 0) -> None:
    """Return when the condition holds; TimeoutError if it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the thing waited for has no event
            await asyncio.sleep(pause_s)
