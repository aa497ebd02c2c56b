"""Log levels of the node's loggers, which can change at run time.

A logger is identified by the name given to `structlog.get_logger`. One without a level inherits the root's. Levels have
Kafka's names. TRACE equals DEBUG, since no logger writes below DEBUG.
"""

import sys
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Final

import structlog

ROOT: Final = "root"
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
)
METHODS: Final[Mapping[str, int]] = MappingProxyType(
    {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "exception": 40, "critical": 50, "fatal": 50}
)
INITIAL_LOGGERS: Final = ("audit", "network", "node", "requests", "telemetry")
"""Loggers that exist before they have logged anything."""


class LogLevels:
    """Level of the root logger, and of each logger that has a separate level."""

    def __init__(self, root: str = "INFO") -> None:
        self._levels = {ROOT: root}
        self._used = set(INITIAL_LOGGERS)

    @property
    def loggers(self) -> tuple[str, ...]:
        """The root, then, by name, all loggers that have logged something or have a level."""
        return (ROOT, *sorted(self._used | self._levels.keys() - {ROOT}))

    def exists(self, logger: str) -> bool:
        """Return whether a logger exists. A module of this program has one as soon as it is loaded."""
        if logger.startswith("anabranch.") and logger in sys.modules:
            return True
        return logger == ROOT or logger in self._used

    def level(self, logger: str) -> str:
        """Return the level in force for a logger."""
        return self._levels.get(logger, self._levels[ROOT])

    def set(self, logger: str, level: str) -> None:
        """Set the level of a logger."""
        assert level in LEVELS, "the caller checks the level"
        self._levels[logger] = level

    def unset(self, logger: str) -> None:
        """Remove the level of a logger, so that it inherits the root's."""
        assert logger != ROOT, "the root has no parent"
        self._levels.pop(logger, None)

    def drop_below_level(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Drop an event below its logger's level: a structlog processor."""
        name = getattr(logger, "name", ROOT)
        if name != ROOT:
            self._used.add(name)
        if METHODS.get(method, 0) < LEVELS[self.level(name)]:
            raise structlog.DropEvent
        return event
