"""Audit events in the log, by the logger `audit`: denials, and changes by administrators.

The rate of each kind of event is bounded, since a client may be denied thousands of times a second: EVENTS_MAX at once,
and then one each EVENT_S. The next event says how many of its kind were left out before it.
"""

from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.node.logging.line_limit import LineLimit

EVENTS_MAX: Final = 100
EVENT_S: Final = 0.1
TEXT_MAX: Final = 300
"""Characters of a field that are logged."""


class AuditLog:
    """Logs audit events. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._limit = LineLimit(clock, EVENTS_MAX, EVENT_S)
        self._log: FilteringBoundLogger = structlog.get_logger("audit")

    def leave_out(self, event: str) -> None:
        """Count an event of a kind of which there were more than `EVENTS_MAX` just now."""
        self._limit.leave_out(event)

    def record(self, event: str, **fields: str) -> None:
        """Log an event of a kind, unless there are too many of it."""
        left_out = self._limit.fields(event)
        if left_out is not None:
            self._log.info(event, **{name: text[:TEXT_MAX] for name, text in fields.items()}, **left_out)
