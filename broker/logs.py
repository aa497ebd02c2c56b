"""How the node speaks: structured lines on standard error, pretty on a terminal, JSON elsewhere."""

import logging
import sys
from typing import Any

import structlog

from broker.log_levels import ROOT, LogLevels
from broker.settings import LogSettings

ROOT_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}


class NamedLogger(structlog.PrintLogger):
    """Prints, and knows its name, which its level goes by."""

    def __init__(self, name: str = ROOT) -> None:
        super().__init__(sys.stderr)
        self.name = name


def configure(settings: LogSettings, levels: LogLevels) -> None:
    """Set structlog up for the process. What is said shows if `levels` let it."""
    levels.set(ROOT, ROOT_LEVELS[settings.level])
    pretty = settings.format == "pretty" or (settings.format == "auto" and sys.stderr.isatty())
    processors: list[Any] = [
        levels.drop_quiet,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty),
    ]
    if pretty:
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=NamedLogger,
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
