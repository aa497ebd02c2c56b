"""Writes a backup of a catalog, on SQLite or PostgreSQL, and reads it back. `BACKUP.md` describes the file.

A backup is one snapshot of all rows, without changes that are committed while it is written. The file is written under
a temporary name in the target's directory, synced and only then renamed, so that a file of that name is always
complete. Only its owner may read it: it has the hashed passwords of users.
"""

import gzip
import json
import os
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from sqlalchemy import Connection, Table, create_engine, delete, event, func, insert, literal, select
from sqlalchemy.exc import SQLAlchemyError

from anabranch.platform import sync, sync_folder
from anabranch.s3stream.catalog.manifest_rows import last_manifest, read_state
from anabranch.s3stream.catalog.manifest_state import CatalogState
from anabranch.s3stream.catalog.migration import migrate
from anabranch.s3stream.catalog.rows import split_ids
from anabranch.s3stream.catalog.schema import METADATA, MIGRATIONS, cluster, counters, streams
from anabranch.s3stream.errors import CatalogError

FORMAT: Final = "anabranch backup"
VERSION: Final = 1
TABLES: Final = (
    # Rows refer to rows of tables before their own.
    "cluster",
    "counters",
    "nodes",
    "wals",
    "topics",
    "streams",
    "partitions",
    "moves",
    "objects",
    "ranges",
    "configs",
    "acls",
    "delegation_tokens",
    "detached_topics",
    "detached_partitions",
    "tables",
    "table_schemas",
    "table_partitions",
    "table_snapshots",
    "table_files",
)
ROWS_PER_STEP: Final = 1_000
"""Rows read or inserted at once, and between two progress reports."""
LINE_BYTES_MAX: Final = 256 << 20
"""Longest line that is read: a row with the largest state of a partition is much shorter."""

Progress = Callable[[int, int], None]
"""Receives the number of rows done and of all rows."""


def _no_progress(_done: int, _total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """First line of a backup."""

    cluster: str
    catalog_id: str
    """32 hex digits."""
    schema_version: int
    manifest: int
    """Number of the last manifest begun before the backup."""
    written_ms: int
    rows: Mapping[str, int]
    """Number of rows by table."""


class BackupStream(NamedTuple):
    """A stream in a backup."""

    epoch: int
    end_offset: int
    snapshot: bytes
    """State of the stream's owner as of `end_offset`."""
    preferred: int
    replicas: tuple[int, ...]
    """Empty: the leader only."""


@dataclass(frozen=True, slots=True)
class Backup:
    """Contents of a backup that a restore needs."""

    path: Path
    header: BackupHeader
    state: CatalogState
    streams: Mapping[int, BackupStream]


# writing


def write_backup(
    connection: Connection, target: Path, *, now_ms: int, overwrite: bool = False, on_progress: Progress = _no_progress
) -> BackupHeader:
    """Write all rows to the file `target`, in one snapshot of the database.

    Raises CatalogError when the target exists (unless `overwrite`) or cannot be written.
    """
    if target.exists() and not overwrite:
        raise CatalogError(f"backup {target}: the file exists")
    with _explained(target):
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                header = _write(connection, file, now_ms, on_progress)
                file.flush()
                sync(file.fileno())
            _publish(temporary, target, overwrite=overwrite)
        finally:
            temporary.unlink(missing_ok=True)
    return header


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CatalogError(f"backup {target}: {error.strerror or error}") from error


def _write(connection: Connection, file: IO[bytes], now_ms: int, on_progress: Progress) -> BackupHeader:
    tables = [METADATA.tables[name] for name in TABLES]
    rows: dict[str, int] = {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables
    }
    name, catalog_id = connection.execute(select(cluster.c.name, cluster.c.catalog_id)).one()
    header = BackupHeader(name, catalog_id, MIGRATIONS[-1][0], last_manifest(connection), now_ms, rows)
    digest, done, total = sha256(), 0, sum(rows.values())
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as lines:

        def put(content: object) -> None:
            line = json.dumps(content, separators=(",", ":"), default=_encode).encode() + b"\n"
            digest.update(line)
            lines.write(line)

        put({"format": FORMAT, "version": VERSION, **asdict(header)})
        for table in tables:
            put({"table": table.name, "columns": [column.name for column in table.columns]})
            # The nodes draw a new secret, so that a reader of the backup cannot act as a node.
            columns = [literal("") if column is cluster.c.secret else column for column in table.columns]
            found = connection.execute(select(*columns).execution_options(yield_per=ROWS_PER_STEP))
            for some in found.partitions():
                for row in some:
                    put(list(row))
                done += len(some)
                on_progress(done, total)
        lines.write(json.dumps({"sha256": digest.hexdigest()}).encode() + b"\n")
    return header


def _encode(value: object) -> object:
    if isinstance(value, (bytes, memoryview)):
        return {"base64": b64encode(value).decode()}
    raise TypeError(f"a value of type {type(value).__name__} in the catalog")


def _publish(temporary: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(target)
    else:
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            raise CatalogError(f"backup {target}: the file exists") from None
    with suppress(PermissionError):
        sync_folder(target.absolute().parent)


# reading


def read_backup(path: Path, *, on_progress: Progress = _no_progress) -> Backup:
    """Read and check a backup, of this program's schema version or an earlier one.

    The rows go through a temporary SQLite database, which is migrated like any other. Raises CatalogError for a file
    that cannot be read, is damaged or incomplete, or was written by a newer program.
    """
    where = f"backup {path}"
    try:
        with tempfile.TemporaryDirectory(prefix="anabranch-restore-") as folder:
            header = _check(path, where)
            return _load(path, header, Path(folder) / "catalog.db", where, on_progress)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CatalogError(f"{where}: not a backup, damaged, or incomplete: {error}") from None
    except OSError as error:
        raise CatalogError(f"{where}: {error.strerror or error}") from None
    except (ValueError, TypeError, LookupError, SQLAlchemyError) as error:
        raise CatalogError(f"{where}: damaged: {type(error).__name__}: {error}".splitlines()[0]) from None


def _lines(path: Path, where: str) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            if len(line) > LINE_BYTES_MAX:
                raise CatalogError(f"{where}: damaged: a line of more than {LINE_BYTES_MAX:,} bytes")
            yield line


def _check(path: Path, where: str) -> BackupHeader:
    """Check the versions and the checksum; returns the header."""
    digest, last = sha256(), b""
    header: BackupHeader | None = None
    for line in _lines(path, where):
        if header is None:
            header = _parse_header(line, where)
        digest.update(last)
        last = line
    if header is None:
        raise CatalogError(f"{where}: not a backup: the file is empty")
    content = json.loads(last)
    if not isinstance(content, dict) or "sha256" not in content:
        raise CatalogError(f"{where}: incomplete: it has no checksum at its end")
    if content["sha256"] != digest.hexdigest():
        raise CatalogError(
            f"{where}: damaged: its SHA-256 is {digest.hexdigest()}, expected {content['sha256']}: use another backup, "
            "or `anabranch catalog rebuild`"
        )
    return header


def _parse_header(line: bytes, where: str) -> BackupHeader:
    content = json.loads(line)
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise CatalogError(f"{where}: not a backup: expected the format {FORMAT!r}")
    if (version := content.pop("version")) != VERSION:
        raise CatalogError(
            f"{where}: format version {version}, this program reads {VERSION}: use the version that wrote it"
        )
    header = BackupHeader(**content)
    newest = MIGRATIONS[-1][0]
    if header.schema_version > newest:
        raise CatalogError(
            f"{where}: schema version {header.schema_version} is newer than this program's {newest}: use the version "
            "that wrote it"
        )
    return header


def _load(path: Path, header: BackupHeader, database: Path, where: str, on_progress: Progress) -> Backup:
    engine = create_engine(f"sqlite:///{database}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    try:
        with engine.begin() as connection:
            migrate(connection, "sqlite", where, version=header.schema_version)
            connection.execute(delete(counters))
            _insert_rows(connection, _lines(path, where), sum(header.rows.values()), on_progress)
            migrate(connection, "sqlite", where)
            _, state = read_state(connection)
            query = select(
                streams.c.stream_id,
                streams.c.epoch,
                streams.c.end_offset,
                streams.c.snapshot,
                streams.c.preferred,
                streams.c.replicas,
            )
            found = {row[0]: BackupStream(*row[1:-1], split_ids(row.replicas)) for row in connection.execute(query)}
    finally:
        engine.dispose()
    return Backup(path, header, state, found)


def _insert_rows(connection: Connection, lines: Iterator[bytes], total: int, on_progress: Progress) -> None:
    next(lines)  # the header
    table, columns, rows, done = cluster, list[str](), list[Mapping[str, Any]](), 0

    def flush() -> None:
        nonlocal done
        if rows:
            connection.execute(insert(table), rows)
            done += len(rows)
            on_progress(done, total)
            rows.clear()

    for line in lines:
        content = json.loads(line)
        if isinstance(content, list):
            rows.append(dict(zip(columns, map(_decode, content), strict=True)))
            if len(rows) == ROWS_PER_STEP:
                flush()
            continue
        flush()
        if "table" in content:
            table, columns = METADATA.tables[content["table"]], content["columns"]
            _check_columns(table, columns)
    if done != total:
        raise ValueError(f"{done:,} rows, expected {total:,}")


def _check_columns(table: Table, columns: Sequence[str]) -> None:
    if unknown := set(columns) - set(table.columns.keys()):
        raise ValueError(f"unknown columns of {table.name}: {', '.join(sorted(unknown))}")


def _decode(value: Any) -> Any:
    return b64decode(value["base64"], validate=True) if isinstance(value, dict) else value
