"""Audit events in the log, by the logger `audit`: what was denied, and what an administrator has changed.

The rate of each kind of event is bounded, since a client may be denied thousands of times a second: EVENTS_MAX at once,
and then one each EVENT_S. The next event says how many of its kind were left out before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

EVENTS_MAX: Final = 100
EVENT_S: Final = 0.1
TEXT_MAX: Final = 300
"""Characters of a field that are logged."""


@dataclass(slots=True)
class _Allowance:
    """Events of one kind that may be logged now."""

    room: float
    as_of_s: float
    left_out: int = 0


class AuditLog:
    """Logs audit events. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allowances: dict[str, _Allowance] = {}
        self._log: FilteringBoundLogger = structlog.get_logger("audit")

    def record(self, event: str, **fields: str) -> None:
        """Log an event of a kind, unless there are too many of it."""
        now_s = self._clock()
        allowance = self._allowances.get(event)
        if allowance is None:
            allowance = self._allowances[event] = _Allowance(EVENTS_MAX, now_s)
        allowance.room = min(EVENTS_MAX, allowance.room + (now_s - allowance.as_of_s) / EVENT_S)
        allowance.as_of_s = now_s
        if allowance.room < 1:
            allowance.left_out += 1
            return
        allowance.room -= 1
        left_out = {"left_out": allowance.left_out} if allowance.left_out else {}
        allowance.left_out = 0
        self._log.info(event, **{name: text[:TEXT_MAX] for name, text in fields.items()}, **left_out)
