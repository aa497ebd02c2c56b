"""Work that thousands of small tests would repeat, and that none of them is about."""

import os
import signal
import sqlite3
import tempfile
from contextlib import closing
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

from anabranch.s3stream.catalog import database
from anabranch.s3stream.catalog.migration import migrate

_CREATE_PRIVATE, _PRAGMAS = database._create_private, database.SQLITE_PRAGMAS  # noqa: SLF001
_STATEMENTS: LRUCache[Any, Any] = LRUCache(5_000)


def share_compiled_statements() -> None:
    """Let all engines of one dialect use what one of them has compiled: each test has a catalog of its own."""

    @wraps(Engine.__init__)
    def set_up(  # SQLAlchemy looks for the names of its options
        engine: Engine,
        pool: Any,
        dialect: Any,
        url: Any,
        logging_name: Any = None,
        echo: Any = None,
        query_cache_size: int = 500,
        execution_options: Any = None,
        hide_parameters: bool = False,
    ) -> None:
        options = (logging_name, echo, query_cache_size, execution_options, hide_parameters)
        original(engine, pool, dialect, url, *options)
        engine._compiled_cache = _STATEMENTS  # noqa: SLF001

    def is_same(dialect: DefaultDialect, other: object) -> bool:
        return type(dialect) is type(other)

    def of_class(dialect: DefaultDialect) -> int:
        return hash(type(dialect))

    original = Engine.__init__
    Engine.__init__ = set_up  # type: ignore[method-assign,assignment]
    DefaultDialect.__eq__ = is_same  # type: ignore[method-assign,assignment]
    DefaultDialect.__hash__ = of_class  # type: ignore[method-assign,assignment]


def copy_schema() -> None:
    """Let each new SQLite catalog of this process begin as a copy of one that has all tables, and nothing in them.

    It is not flushed to the disk either: no test takes the machine away from under its own process. Nodes in processes
    of their own migrate and flush theirs, and so does a test with `real_sqlite`.
    """

    def create_private(path: Path, *_: object) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:  # it exists, or SQLite will say why it cannot be opened
            return
        with os.fdopen(descriptor, "wb") as file:
            file.write(_empty_catalog())

    database._create_private = create_private  # noqa: SLF001
    database.SQLITE_PRAGMAS = (*_PRAGMAS, "PRAGMA synchronous = OFF")  # type: ignore[misc,assignment]


def real_sqlite(patch: pytest.MonkeyPatch) -> None:
    """Let catalogs create and flush their own files."""
    patch.setattr(database, "_create_private", _CREATE_PRIVATE)
    patch.setattr(database, "SQLITE_PRAGMAS", _PRAGMAS)


@cache
def _empty_catalog() -> bytes:
    """Content of a SQLite file with the tables of a catalog."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(database.JOURNAL_PRAGMA)
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        with engine.begin() as connection:
            migrate(connection, "sqlite", str(path))
        engine.dispose()
        return path.read_bytes()


def handle_interrupts() -> None:
    """Raise KeyboardInterrupt by a handler that is not Python's own.

    asyncio replaces that one for each run of a loop, and `signal` then renders the task of the loop, with all that it
    was given: up to a tenth of a test.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
