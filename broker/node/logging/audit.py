"""Audit events: denials, and changes by administrators. In the log, by the logger `audit`, and the newest in memory.

The rate of each kind of event is bounded, since a client may be denied thousands of times a second: EVENTS_MAX at once,
and then one each EVENT_S. The next event says how many of its kind were left out before it.

The last KEPT_MAX events of each kind stay in memory, for the admin port. Kinds do not displace each other: a flood of
denials leaves the changes that were made before it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.node.logging.line_limit import LineLimit

EVENTS_MAX: Final = 100
EVENT_S: Final = 0.1
TEXT_MAX: Final = 300
"""Characters of a field that are logged."""
KEPT_MAX: Final = 500
"""Events of a kind in memory."""


class AuditEvent(NamedTuple):
    """One event, as it is in the log."""

    number: int
    """1 for the first event since the start of the node."""
    at_ms: int
    event: str
    fields: Mapping[str, str]
    left_out: int
    """Events of its kind that are neither in the log nor in memory, since there were too many just before it."""


class AuditLog:
    """Logs audit events, and keeps the newest. `clock` returns seconds, `now_ms` the wall clock in ms since 1970."""

    def __init__(self, clock: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self._limit = LineLimit(clock, EVENTS_MAX, EVENT_S)
        self._now_ms = now_ms
        self._log: FilteringBoundLogger = structlog.get_logger("audit")
        self._recorded = 0
        self._kept: dict[str, deque[AuditEvent]] = {}
        """The newest events by their kind."""

    def leave_out(self, event: str) -> None:
        """Count an event of a kind of which there were more than `EVENTS_MAX` just now."""
        self._limit.leave_out(event)

    def record(self, event: str, **fields: str) -> None:
        """Log and keep an event of a kind, unless there are too many of it."""
        left_out = self._limit.fields(event)
        if left_out is None:
            return
        shown = {name: text[:TEXT_MAX] for name, text in fields.items()}
        self._log.info(event, **shown, **left_out)
        self._recorded += 1
        kept = self._kept.setdefault(event, deque(maxlen=KEPT_MAX))
        kept.append(AuditEvent(self._recorded, self._now_ms(), event, shown, left_out.get("left_out", 0)))

    def newest(self) -> Sequence[AuditEvent]:
        """Return the events in memory, the newest first."""
        return sorted((each for kept in self._kept.values() for each in kept), reverse=True)
