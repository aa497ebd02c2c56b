"""Set-up of the log: structured lines on standard error, readable on a terminal, JSON elsewhere."""

import logging
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import Any

from anabranch.broker.node.logging.lean_structlog import structlog
from anabranch.broker.node.logging.levels import METHODS, ROOT, LogLevels
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.model import LogSettings

ROOT_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}


class NamedLogger:
    """A logger with a name, by which its level is found. Lines go to a `LineWriter`."""

    def __init__(self, writer: LineWriter, name: str = ROOT) -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = writer.line


class _StandardLogHandler(logging.Handler):
    """Logs what libraries log through the standard library, by the names of their loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        method = record.levelname.lower()
        logger = structlog.get_logger(record.name)
        try:
            write = getattr(logger, method if method in METHODS else "warning")
            write(record.getMessage().strip(), logger=record.name, exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


def escape_texts(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the control characters in texts of an event, a processor of structlog.

    Names that clients choose (groups, transactional ids, client ids) may hold line breaks and sequences that change a
    terminal. The JSON format escapes them anyway.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = escaped(value)
    return event


def escaped(text: str) -> str:
    """Return a text with escapes for all characters that are not printable."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def is_pretty(settings: LogSettings) -> bool:
    """Return whether lines are for a person."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    return settings.format == "pretty" or (settings.format == "auto" and on_terminal)


def _name_node(
    node_id: int, _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["node"] = node_id
    return event


def configure(settings: LogSettings, levels: LogLevels, writer: LineWriter, node_id: int | None = None) -> None:
    """Set up structlog for the process: events that `levels` pass are written to `writer`.

    With a node's id each line names it, for logs that several nodes write.
    """
    levels.set(ROOT, ROOT_LEVELS[settings.level])
    pretty = is_pretty(settings)
    processors: list[Any] = [
        levels.drop_below_level,
        structlog.contextvars.merge_contextvars,
        *([] if node_id is None else [partial(_name_node, node_id)]),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty),
    ]
    if pretty:
        # The default shows the local variables of each frame, which may be passwords and tokens.
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        processors += [escape_texts, renderer]
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=partial(NamedLogger, writer),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_StandardLogHandler()], level=logging.WARNING)
    logging.captureWarnings(capture=True)
