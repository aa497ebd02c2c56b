"""Watches whether the log acknowledges what is appended in time.

A client whose request times out sends it again. If the log cannot be written, each time-out would add another copy of
the same records to its queue, and all of them would be stored once it can. So appends are refused, before they are
queued, from the moment when the oldest has waited for too long until none waits. Appends that were queued before are
written and acknowledged in order, as always.
"""

import asyncio
from collections import deque
from typing import Final

import structlog

from anabranch.s3stream.append.admission import Admission
from anabranch.s3stream.stats import StorageStats

log = structlog.get_logger(__name__)

_AGAIN_RATIO: Final = 0.25
"""Time until an append that waits for too long is looked at again, as a share of the limit."""


class LogWatch:
    """The blocks of the log that are not durable, by the time of their first append."""

    def __init__(self, admission: Admission, stats: StorageStats, *, stall_s: float) -> None:
        """Refuse appends when one has waited for `stall_s`."""
        self._admission = admission
        self._stats = stats
        self._stall_s = stall_s
        self._waiting: deque[float] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False
        """True if the last check has found an append that waits for too long."""
        self._stalled_at = 0.0
        """Time of the loop's clock at which the last stall began."""

    def appended(self) -> None:
        """Note the first append to a block of the log."""
        loop = asyncio.get_running_loop()
        self._waiting.append(loop.time())
        if self._timer is None:
            self._timer = loop.call_later(self._stall_s, self._check)

    def completed(self) -> None:
        """Note that the oldest block is durable, or has failed."""
        self._waiting.popleft()
        if self._admission.is_stalled and not self._waiting:
            self._admission.end_stall()
            refused_s = asyncio.get_running_loop().time() - self._stalled_at
            log.info("the log acknowledges again: appends are taken", refused_s=round(refused_s, 1))

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Refuse appends if the oldest one is overdue at two checks in a row.

        One check is not enough: a process that was stopped runs its due timers before it has seen what was
        acknowledged in the meantime.
        """
        self._timer = None
        if not self._waiting or self._admission.is_stalled:
            return
        loop = asyncio.get_running_loop()
        left_s = self._waiting[0] + self._stall_s - loop.time()
        if left_s <= 0 and self._is_overdue:
            self._is_overdue = False
            self._stalled_at = loop.time()
            self._stats.log_stalls += 1
            self._admission.begin_stall(f"the log has not acknowledged an append for {self._stall_s:g} s")
            log.warning("the log does not acknowledge appends, which are refused until it has caught up")
            return
        self._is_overdue = left_s <= 0
        self._timer = loop.call_later(self._stall_s * _AGAIN_RATIO if self._is_overdue else left_s, self._check)
