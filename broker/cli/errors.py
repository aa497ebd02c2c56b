"""Errors of commands: one line on standard error, and the exit code 1."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from broker.settings.data_dir import DataDirError
from s3stream.errors import StorageError
from wal.interface import WalError

T = TypeVar("T")


@contextmanager
def shown_errors() -> Iterator[None]:
    """Turn the errors of the data directory, the storage and the log into a ClickException with the same text."""
    try:
        yield
    except (DataDirError, StorageError, WalError) as error:
        raise click.ClickException(str(error)) from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine in an event loop, with its errors shown."""
    with shown_errors():
        return asyncio.run(work)
