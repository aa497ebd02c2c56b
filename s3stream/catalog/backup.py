"""Backs up an SQLite catalog, while nodes use it or after they have stopped.

The copy is one snapshot, without changes that are committed while it is made. It is written under a temporary name in
the target's directory, checked, synced and only then renamed, so that a file of that name is always a complete backup.
"""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from s3stream.catalog.database import connect_read_only
from s3stream.catalog.schema import MIGRATIONS
from s3stream.errors import CatalogError

PAGES_PER_STEP: Final = 1024
"""Pages copied between two progress reports: 4 MiB."""
COUNTED: Final = ("topics", "partitions", "detached_topics", "streams", "objects", "ranges")


class Backup(NamedTuple):
    """Summary of a backup."""

    path: Path
    size_bytes: int
    schema_version: int
    cluster: str
    counts: Mapping[str, int]
    """Number of rows by table, for the tables of COUNTED."""


def sqlite_path(url: str) -> Path | None:
    """Return the file of an SQLite catalog; None for another database. Raises CatalogError."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise CatalogError("catalog URL: expected sqlite:///PATH or postgresql://USER@HOST/DB") from None
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database)


def back_up(
    source: Path, target: Path, *, overwrite: bool = False, on_progress: Callable[[int, int], None] = lambda *_: None
) -> Backup:
    """Copy the catalog at `source` to the file `target`. `on_progress` gets the number of pages done and of all pages.

    Raises CatalogError when there is no catalog, the target exists (unless `overwrite`) or cannot be written, or the
    copy is not sound.
    """
    if not source.is_file():
        raise CatalogError(f"catalog {source}: no such file")
    if target.exists() and not overwrite:
        raise CatalogError(f"backup {target}: the file exists")
    with _explained(target):
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        os.close(descriptor)
        temporary = Path(name)
        try:
            _copy(source, temporary, on_progress)
            found = _check(temporary, target)
            _publish(temporary, target, overwrite=overwrite)
        finally:
            temporary.unlink(missing_ok=True)
    return found


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise CatalogError(f"backup {target}: {reason or error}") from error


def _copy(source: Path, temporary: Path, on_progress: Callable[[int, int], None]) -> None:
    def report(_status: int, left: int, total: int) -> None:
        on_progress(total - left, total)

    with closing(connect_read_only(source.absolute())) as reading, closing(sqlite3.connect(temporary)) as writing:
        # Without this transaction the copy would restart whenever a node commits.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reading.backup(writing, pages=PAGES_PER_STEP, progress=report)
        reading.execute("ROLLBACK")


def _check(copy: Path, target: Path) -> Backup:
    """Check the integrity of the copy and that it has this program's schema."""
    # Immutable: the copied header asks for a WAL file, which must not be created here.
    with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise CatalogError(f"backup {target}: the catalog is damaged: {verdict}")
        newest = MIGRATIONS[-1][0]
        try:
            (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
        except sqlite3.OperationalError:
            raise CatalogError(f"backup {target}: there is no catalog in the database") from None
        if version != newest:
            raise CatalogError(
                f"backup {target}: the catalog has schema version {version}, this program {newest}: use the "
                "program version of the node"
            )
        cluster = connection.execute("SELECT name FROM cluster").fetchone()
        counts = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in COUNTED}  # noqa: S608 - names of our own
    return Backup(target, copy.stat().st_size, version, cluster[0] if cluster else "", counts)


def _publish(temporary: Path, target: Path, *, overwrite: bool) -> None:
    sync(temporary)
    if overwrite:
        temporary.replace(target)
    else:
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            raise CatalogError(f"backup {target}: the file exists") from None
    with suppress(PermissionError):
        sync(target.absolute().parent)


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
