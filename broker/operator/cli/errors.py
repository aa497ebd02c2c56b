"""Errors of commands: one line on standard error, and the exit code 1. Also the storage's log messages of that time."""

import asyncio
import logging
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import structlog
from structlog.typing import EventDict

from anabranch.broker.node.settings.data_dir import DataDirError
from anabranch.s3stream.errors import StorageError
from anabranch.wal.interface import WalError

T = TypeVar("T")


@contextmanager
def shown_errors() -> Iterator[None]:
    """Turn the errors of the data directory, the storage and the log into a ClickException with the same text."""
    try:
        yield
    except (DataDirError, StorageError, WalError) as error:
        raise click.ClickException(str(error)) from None


def _drop_others(_logger: object, level: str, event: EventDict) -> EventDict:
    """Keep warnings, and what is waited for."""
    if level == "info" and not str(event["event"]).startswith("waiting"):
        raise structlog.DropEvent
    return event


@contextmanager
def logged() -> Iterator[None]:
    """Log warnings and waits to standard error, and nothing else: the command's result has the rest."""
    before = structlog.get_config()
    structlog.configure(
        processors=[_drop_others, *before["processors"]],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine in an event loop, with its errors, warnings and waits shown."""
    with shown_errors(), logged():
        return asyncio.run(work)
