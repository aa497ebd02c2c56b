"""An event loop whose clock jumps to the next timer instead of waiting: latencies are exact and tests take no time.

Work on other threads (the catalog's) still takes real time, during which the clock may jump ahead: rely only on the
order of events there.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):
    """Polls for events without waiting, and adds up the time it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return events that are ready now; wait only if no timer is set."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        found = super().select(0)
        if not found:
            self.jumped_s += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on a jumping clock that begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds jumped over so far."""
        return self._jumping.jumped_s


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` on a new loop with virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
