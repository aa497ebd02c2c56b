"""Audit events about denied actions, in the log: `denied`, with principal, address, operation and resource.

Their rate is bounded, since a client may be denied thousands of times a second: EVENTS_MAX at once, and then one each
EVENT_S. The next event says how many were left out before it.
"""

from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from broker.acls.model import AclOperation, AclResourceType

EVENTS_MAX: Final = 100
EVENT_S: Final = 0.1
NAME_MAX: Final = 300
"""Characters of a resource's name that are logged."""


class DenialLog:
    """Logs denials. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._room = float(EVENTS_MAX)
        self._room_s = clock()
        """Time as of which `_room` holds."""
        self._left_out = 0
        self._log: FilteringBoundLogger = structlog.get_logger("audit")

    def denied(  # the fields of one event
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        api: str,
    ) -> None:
        """Log that an action was denied."""
        now_s = self._clock()
        self._room = min(EVENTS_MAX, self._room + (now_s - self._room_s) / EVENT_S)
        self._room_s = now_s
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        left_out = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        self._log.info(
            "denied",
            principal=principal[:NAME_MAX],
            host=host,
            operation=operation.name,
            resource_type=resource_type.name,
            resource=name[:NAME_MAX],
            api=api,
            **left_out,
        )
