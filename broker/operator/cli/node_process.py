"""The process of a node: its event loop, its collections of cycles, its exit."""

import asyncio
import gc
from collections.abc import Callable

import structlog

from anabranch.extras import MissingExtra, needed

log = structlog.get_logger("node")

FAILED = 1
"""Exit code of a node that has failed."""
LOG_FLUSH_TIMEOUT_S = 1.0
"""Limit of an exiting process for writing the rest of its log."""
CYCLE_THRESHOLDS = (5_000, 200, 20)
"""New objects before a collection of reference cycles among them, and how many of those precede one of older objects.

Requests create no cycles, so older objects are looked at seldom. Among the newest, collections cost the same whether
they are made often or seldom, but the loop stands still during each: 2 ms, and 30 ms with 50,000 objects.
"""


def skip_existing() -> None:
    """Keep what exists now, and lives until the end of the process, out of collections of cycles.

    There is no collection now: it would stop all threads for a quarter of a second of a free processor. In a node that
    has just started it would stop the beats, too, while other nodes begin to watch.
    """
    gc.freeze()
    gc.set_threshold(*CYCLE_THRESHOLDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop that nodes run in; None: Python's own."""
    try:
        with needed("a faster event loop"):
            import uvloop
    except MissingExtra as error:
        log.info(str(error))
        return None
    return uvloop.new_event_loop
