"""The process of a node: its event loop, its collections of cycles, its exit."""

import asyncio
from collections.abc import Callable

import structlog

from anabranch.extras import MissingExtra, needed

FAILED = 1
"""Exit code of a node that has failed."""
LOG_FLUSH_TIMEOUT_S = 1.0
"""Limit of an exiting process for writing the rest of its log."""
CYCLE_THRESHOLD = 50_000
"""Allocations between two collections of reference cycles: few, because requests create no cycles."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop that nodes run in; None: Python's own."""
    try:
        with needed("a faster event loop"):
            import uvloop
    except MissingExtra as error:
        structlog.get_logger("node").info(str(error))
        return None
    return uvloop.new_event_loop
