"""Levels of the node's loggers, which can be changed while it runs.

A logger is what `structlog.get_logger` is given. Those without a level of their own follow the root's. Levels have
Kafka's names; TRACE is here what DEBUG is, since nothing speaks below that.
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
AREAS: Final = ("network", "node", "requests", "telemetry")
"""Loggers that are there before they have said anything."""
PACKAGES: Final = frozenset({"broker", "compaction", "s3stream", "wal"})


class LogLevels:
    """The root's level and those of loggers that have their own."""

    def __init__(self, root: str = "INFO") -> None:
        self._levels = {ROOT: root}
        self._heard = set(AREAS)

    @property
    def loggers(self) -> tuple[str, ...]:
        """The root, and by name all others that have had something to say or have a level."""
        return (ROOT, *sorted(self._heard | self._levels.keys() - {ROOT}))

    def knows(self, logger: str) -> bool:
        """Whether there is such a logger: modules of this program have theirs from when they are loaded."""
        if logger.partition(".")[0] in PACKAGES and logger in sys.modules:
            return True
        return logger == ROOT or logger in self._heard

    def level(self, logger: str) -> str:
        """The level at which a logger speaks."""
        return self._levels.get(logger, self._levels[ROOT])

    def set(self, logger: str, level: str) -> None:
        """Give a logger a level of its own."""
        assert level in LEVELS, "checked by who asks"
        self._levels[logger] = level

    def unset(self, logger: str) -> None:
        """Have a logger follow the root again."""
        assert logger != ROOT, "the root has nobody to follow"
        self._levels.pop(logger, None)

    def drop_quiet(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor: drops what is below the level of the logger that says it."""
        name = getattr(logger, "name", ROOT)
        if name != ROOT:
            self._heard.add(name)
        if METHODS.get(method, 0) < LEVELS[self.level(name)]:
            raise structlog.DropEvent
        return event
