"""Runs the catalog's transactions on SQLite or PostgreSQL, off the event loop.

What it keeps true: **one writer at a time**. SQLite has that by `BEGIN IMMEDIATE`; PostgreSQL gets it by an advisory
lock taken first in each writing transaction. A command reads, decides and writes as if it were alone, with the same
statements on both engines and without retries for serialization. Writes are rare (an upload commits thousands of ranges
at once), so this costs nothing that is missed. Reads run beside the writer on connections of their own and see one
snapshot.

Each transaction on PostgreSQL names its isolation level, whatever the default of database or user is. Writers have READ
COMMITTED: every statement sees what was committed before it began, so all that follow the lock see what was committed
before the lock was granted. One snapshot for the whole transaction would be taken by the statement that waits for the
lock, and show the state from before. Readers have REPEATABLE READ. `default_transaction_read_only` is left as it is:
whoever sets it wants no writes, and they wait until it ends.

Whoever only looks (`read_only`) leaves no trace: no migration, no file made or changed, and SQLite's database may lie
where nothing can be written.

Commands are idempotent, so one that met an outage is run again, for some seconds. `s3stream.catalog.outage` says which
errors are outages. A command whose connection broke off during COMMIT may have taken effect: from then on either its
repetition succeeds, or OutcomeUnknown is raised, also where the repetition is refused. Every other error of a command
tells of a refusal in a transaction that was rolled back, or of an outage before anything was committed.
"""

import asyncio
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

import structlog
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool, PoolProxiedConnection, QueuePool

from s3stream.catalog.outage import (
    LOCK_NOT_AVAILABLE,
    STALE_SESSION_STATES,
    Verdict,
    classify_sqlite,
    classify_sqlstate,
    is_rolled_back,
)
from s3stream.catalog.schema import DIALECT_SQL, MIGRATIONS
from s3stream.errors import CatalogDamaged, CatalogError, CatalogUnavailable, OutcomeUnknown, StorageError

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

WRITER_LOCK: Final = 0x616E_6162  # "anab": key of PostgreSQL's advisory lock
POSTGRES_READERS: Final = 4
BUSY_TIMEOUT_MS: Final = 30_000
REPEAT_DELAYS_S: Final = (0.05, 0.2, 0.8, 2.0)
SLOW_COMMAND_S: Final = 30.0
"""A command that has no answer for so long is logged: a server that hangs raises no error."""
SQLITE_PRAGMAS: Final = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    # KiB, at most: a commit touches a page for each of its streams, and SQLite's 2 MB would read and spill them.
    "PRAGMA cache_size = -32768",
)
JOURNAL_PRAGMA: Final = "PRAGMA journal_mode = WAL"
JOURNAL_ATTEMPTS: Final = 100
JOURNAL_PAUSE_S: Final = 0.02
POSTGRES_OPTIONS: Final = (
    # A node that hangs in the middle of a command must not hold the writer's lock for ever. A commit of thousands of
    # ranges may take longer than what a database allows its users' statements by default.
    "-c idle_in_transaction_session_timeout=30000 -c lock_timeout=60000 -c statement_timeout=0 -c synchronous_commit=on"
)

POSTGRES_CONNECTION: Final = {
    "client_encoding": "utf8",
    # A server that is gone without a word is noticed in half a minute; a system's own limits are hours.
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
POSTGRES_PRIMARY: Final = {"target_session_attrs": "primary"}
"""A standby takes no writes, and its answers may be of yesterday: only who looks may ask it."""
DAMAGE_ADVICE: Final = (
    "the database is damaged, or is no catalog any more: stop the nodes that use it, then restore a backup of it, or "
    "make a new one from the objects with `anabranch catalog rebuild` (docs/operations.md)"
)
CLOSE_TIMEOUT_S: Final = 5.0
"""How long a command under way may keep `close` waiting before its connection is cut."""
CHECKPOINT_TIMEOUT_MS: Final = 2_000
"""How long `close` waits for whoever reads SQLite's log."""


class Database:
    """Two engines on one database, one for writing transactions and one for reading, each with its own threads."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise CatalogError("catalog URL: expected sqlite:///PATH or postgresql://USER@HOST/DB") from None
        self._where = parsed.render_as_string(hide_password=True)
        self._dialect = parsed.get_backend_name()
        if self._dialect not in DIALECT_SQL or (self._dialect == "sqlite" and not parsed.database):
            raise CatalogError(
                f"catalog {self._where}: expected sqlite:///PATH or postgresql://USER@HOST/DB, found {self._dialect}"
            )
        self._read_only = read_only
        self._path = Path(parsed.database or "").absolute() if self._dialect == "sqlite" else None
        readers = 1
        arguments: dict[str, Any] = {}
        if self._dialect == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
            # Who gives more options gets them beside these: the later ones of a name hold.
            options = " ".join((POSTGRES_OPTIONS, *parsed.normalized_query.get("options", ())))
            wanted = {**POSTGRES_CONNECTION, **({} if read_only else POSTGRES_PRIMARY)}
            arguments = {name: value for name, value in wanted.items() if name not in parsed.query}
            arguments["options"] = options
            readers = POSTGRES_READERS
        try:
            self._writer = create_engine(parsed, pool_size=1, max_overflow=0, connect_args=arguments)
            if read_only and self._path is not None:
                path = self._path
                self._reader = create_engine(parsed, poolclass=NullPool, creator=lambda: connect_read_only(path))
            else:
                self._reader = create_engine(parsed, pool_size=readers, max_overflow=0, connect_args=arguments)
        except ModuleNotFoundError as error:
            raise CatalogError(
                f"catalog {self._where} needs the package {error.name}: install anabranch[postgres]"
            ) from error
        self._damage: str | None = None
        """Why nothing more is written: the database is damaged."""
        self._connections: WeakSet[Any] = WeakSet()
        """Those to a server, which may not answer."""
        self._prepare_engines()
        self._writer_thread = ThreadPoolExecutor(1, "catalog-write")
        self._reader_threads = ThreadPoolExecutor(readers, "catalog-read")

    def _prepare_engines(self) -> None:
        if self._dialect == "sqlite":
            for engine in (self._writer,) if self._read_only else (self._writer, self._reader):
                event.listen(engine, "connect", _prepare_sqlite)
            event.listen(self._writer, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
            event.listen(self._reader, "begin", lambda c: c.exec_driver_sql("BEGIN"))
        else:
            from psycopg import IsolationLevel

            lock = f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"
            event.listen(self._writer, "begin", lambda c: c.exec_driver_sql(lock))
            begin_as: Mapping[Engine, Mapping[str, object]] = {
                self._writer: {"isolation_level": IsolationLevel.READ_COMMITTED},
                self._reader: {"isolation_level": IsolationLevel.REPEATABLE_READ, "read_only": True},
            }
            for engine, modes in begin_as.items():
                event.listen(engine, "connect", partial(self._prepare_postgres, modes={**modes, "deferrable": False}))
                event.listen(engine, "handle_error", _drop_stale_session)

    def _prepare_postgres(self, connection: Any, _record: object, *, modes: Mapping[str, object]) -> None:
        """Have the driver name the modes in the BEGIN of each transaction."""
        self._connections.add(connection)
        for name, value in modes.items():
            setattr(connection, name, value)

    @property
    def where(self) -> str:
        """The URL without its password, for messages."""
        return self._where

    async def open(self) -> None:
        """Connect and bring the schema to this version; read-only, expect it to be of this version."""
        # Without another try: whoever starts a node waits for the answer, and nothing is under way yet.
        if self._read_only:
            await self._run(
                self._reader,
                self._reader_threads,
                lambda connection: check_version(connection, self._where),
                repeated=False,
            )
        else:
            await self._run(
                self._writer,
                self._writer_thread,
                lambda connection: migrate(connection, self._dialect, self._where),
                repeated=False,
            )

    async def read_unopened(self, query: Callable[[Connection], Result], *, absent: Result) -> Result:
        """Run `query` on the database as it is, whatever its schema, and leave no trace; `absent` if there is none."""
        if self._path is None:
            return await self._run(self._reader, self._reader_threads, query, repeated=False)
        path = self._path
        if not path.exists() or not path.stat().st_size:
            return absent
        engine = create_engine("sqlite://", poolclass=NullPool, creator=lambda: connect_read_only(path))
        return await self._run(engine, self._reader_threads, query, repeated=False)

    async def close(self) -> None:
        """Release connections and threads. What a server does not answer within seconds is given up."""
        if self._path is not None and not self._read_only and self._damage is None:
            self._writer_thread.submit(_checkpoint, self._writer, self._where)
        for threads, engine in ((self._writer_thread, self._writer), (self._reader_threads, self._reader)):
            threads.submit(engine.dispose)
            threads.shutdown(wait=False)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._end_threads()
        except TimeoutError:
            for connection in list(self._connections):
                _shut_down_socket(connection)
            await self._end_threads()

    async def _end_threads(self) -> None:
        for threads in (self._writer_thread, self._reader_threads):
            await asyncio.to_thread(threads.shutdown)

    async def write(self, command: Callable[[Connection], Result]) -> Result:
        """Run `command` in a transaction of its own, alone among writers; commits if it returns.

        Raises what `command` raises, then nothing has changed; CatalogUnavailable, CatalogDamaged; OutcomeUnknown.
        """
        if self._read_only:
            raise CatalogError(f"catalog {self._where} was opened to be read, and takes no changes")
        if self._damage is not None:
            raise CatalogDamaged(self._damage)
        return await self._run(self._writer, self._writer_thread, command)

    async def read(self, query: Callable[[Connection], Result]) -> Result:
        """Run `query` on one snapshot of the database. Raises CatalogUnavailable, CatalogDamaged."""
        return await self._run(self._reader, self._reader_threads, query)

    async def _run(
        self,
        engine: Engine,
        threads: ThreadPoolExecutor,
        command: Callable[[Connection], Result],
        *,
        repeated: bool = True,
    ) -> Result:
        lost: BaseException | None = None
        for delay_s in (*REPEAT_DELAYS_S, None) if repeated else (None,):
            attempt = _Attempt()
            try:
                return await self._answer(threads, partial(_transact, engine, command, attempt))
            except DBAPIError as error:
                if attempt.committing and not is_rolled_back(_sqlstate(error)):
                    lost = error.orig or error
                if delay_s is None or not self._may_repeat(error):
                    raise self._failure(error, lost) from error
                await asyncio.sleep(delay_s)
            except SQLAlchemyError as error:
                if lost is not None or attempt.committing:
                    raise self._unknown(lost or error, error) from error
                raise CatalogError(f"catalog {self._where}: {error}") from error
            except StorageError as error:
                if lost is None:
                    raise
                # Refused, but perhaps because it took effect before, and others have gone on from there.
                raise self._unknown(lost, error) from error
        raise AssertionError("the last attempt returns or raises")

    async def _answer(self, threads: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_COMMAND_S, partial(log.warning, "the catalog does not answer", catalog=self._where))
        try:
            return await loop.run_in_executor(threads, work)
        finally:
            slow.cancel()

    def _may_repeat(self, error: DBAPIError) -> bool:
        """Whether to repeat at once; SQLite has waited already, and so has who wanted the lock."""
        return (
            self._dialect == "postgresql"
            and _classify(error) is Verdict.WAIT
            and _sqlstate(error) != LOCK_NOT_AVAILABLE
        )

    def _failure(self, error: DBAPIError, lost: BaseException | None) -> CatalogError:
        """What the caller is told of a command that will not be repeated here."""
        verdict = _classify(error)
        text = f"catalog {self._where}: {_one_line(error.orig or error)}"
        if verdict is Verdict.STOP:
            text = self._damage = f"{text}; {DAMAGE_ADVICE}"
        if lost is not None:
            return self._unknown(lost, error.orig or error)
        if verdict is Verdict.STOP:
            return CatalogDamaged(text)
        return CatalogUnavailable(text) if verdict is Verdict.WAIT else CatalogError(text)

    def _unknown(self, lost: BaseException, last: BaseException) -> OutcomeUnknown:
        repeated = "" if last is lost else f"; repeated, it met: {_one_line(last)}"
        return OutcomeUnknown(f"catalog {self._where}: a commit was not answered ({_one_line(lost)}){repeated}")


@dataclass(slots=True)
class _Attempt:
    """One run of a command."""

    committing: bool = False
    """Whether it got as far as COMMIT. What fails after that may have taken effect."""


def _sqlstate(error: DBAPIError) -> str:
    """PostgreSQL's code; empty where there is none, as for a connection that broke off."""
    return str(getattr(error.orig, "sqlstate", None) or "")


def _classify(error: DBAPIError) -> Verdict:
    if state := _sqlstate(error):
        return classify_sqlstate(state)
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return classify_sqlite(code)
    # Neither server nor library has said anything: no connection, or one that broke off.
    return Verdict.WAIT if isinstance(error, (OperationalError, InterfaceError)) else Verdict.REFUSE


def _drop_stale_session(context: ExceptionContext) -> None:
    """Have the pool drop the connection."""
    if getattr(context.original_exception, "sqlstate", None) in STALE_SESSION_STATES:
        context.is_disconnect = True


def _shut_down_socket(connection: Any) -> None:
    """End a connection under whoever waits for its answer."""
    # Closed meanwhile: then nobody waits.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as bare:
        bare.shutdown(socket.SHUT_RDWR)


def _one_line(error: BaseException) -> str:
    """A driver's message without its line breaks and its guesses."""
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("Is the server running"))


def _transact(engine: Engine, command: Callable[[Connection], Result], attempt: _Attempt) -> Result:
    with engine.begin() as connection:
        result = command(connection)
        attempt.committing = True
    return result


def _checkpoint(engine: Engine, where: str) -> None:
    """Bring all of SQLite's log into the database's own file, so that a copy of that file alone is whole."""
    if not isinstance(engine.pool, QueuePool) or not engine.pool.checkedin():
        return  # never connected
    try:
        with closing(engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {CHECKPOINT_TIMEOUT_MS}")
            busy = bool(cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            reason = "another process reads it"
    except (sqlite3.Error, SQLAlchemyError) as error:
        busy, reason = True, _one_line(error)
    if busy:
        log.warning("the catalog's file is whole only with its -wal file: copy both", catalog=where, reason=reason)


def _prepare_sqlite(connection: PoolProxiedConnection, _record: object) -> None:
    # With isolation_level None the driver leaves BEGIN and COMMIT to us.
    connection.isolation_level = None  # type: ignore[attr-defined]  # sqlite3.Connection behind the proxy's type
    for pragma in SQLITE_PRAGMAS:
        connection.execute(pragma)
    # SQLite does not wait here, whatever the timeout says, when another connection makes the new file a WAL one, too.
    for attempt in range(JOURNAL_ATTEMPTS):
        try:
            connection.execute(JOURNAL_PRAGMA)
            break
        except sqlite3.OperationalError:
            if attempt + 1 == JOURNAL_ATTEMPTS:
                raise
            time.sleep(JOURNAL_PAUSE_S)


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, whether a node has the database open, has crashed, or has stopped.

    One for each transaction, since a node may start or stop between two.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        mode = "mode=ro"
    elif os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # SQLite needs its log to see what a node that starts meanwhile writes; it takes away again what it makes here.
        mode = "mode=rw"
    else:
        # Nothing can be made here, and without a log nobody else is writing.
        mode = "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA query_only = ON")
    return connection


def check_version(connection: Connection, where: str) -> None:
    """Refuse a database whose schema is not this program's."""
    newest = MIGRATIONS[-1][0]
    if not inspect(connection).has_table("schema_version"):
        raise CatalogError(f"catalog {where}: there is no catalog in this database")
    found = _found_version(connection)
    if found < newest:
        raise CatalogError(
            f"catalog {where}: schema version {found} is older than this program's {newest}: it is brought up to date "
            "when a node of this version starts"
        )
    _refuse_newer(found, where)


def _found_version(connection: Connection) -> int:
    return connection.execute(text("SELECT max(version) FROM schema_version")).scalar_one() or 0


def _refuse_newer(found: int, where: str) -> None:
    newest = MIGRATIONS[-1][0]
    if found > newest:
        raise CatalogError(
            f"catalog {where}: schema version {found} is newer than this program's {newest}: use the version of the "
            "nodes"
        )


def migrate(connection: Connection, dialect: str, where: str) -> None:
    """Apply the migrations that the database has not had. Refuses a schema newer than this program."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY)"))
    found = _found_version(connection)
    _refuse_newer(found, where)
    for version, statements in MIGRATIONS:
        if version > found:
            for statement in statements:
                connection.exec_driver_sql(statement.format(**DIALECT_SQL[dialect]))
            connection.execute(text("INSERT INTO schema_version (version) VALUES (:version)"), {"version": version})
