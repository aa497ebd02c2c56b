"""Runs the catalog's transactions on SQLite or PostgreSQL, in threads.

Invariant: **one writer at a time**. SQLite guarantees that with `BEGIN IMMEDIATE`, PostgreSQL with an advisory lock
taken first in each writing transaction. A command reads, decides and writes as if it were alone, with the same
statements on both engines and without retries for serialization. Writes are rare (an upload commits thousands of ranges
at once), so that the lock does not limit throughput. Reads run concurrently on separate connections, each on one
snapshot.

Each transaction on PostgreSQL has its isolation level, whatever the default of database or user is. Writers have READ
COMMITTED: every statement sees what was committed before it began, so all that follow the lock see what was committed
before the lock was granted. One snapshot for the whole transaction would be taken by the statement that waits for the
lock, and show the state from before. Readers have REPEATABLE READ. `default_transaction_read_only` is left as it is:
while it is set, writes are an outage and wait.

A `read_only` database is not migrated, no file is created or changed, and the file system may be read-only.

A database may be far away: each statement is a round trip, and so are BEGIN and COMMIT. A writer's BEGIN takes the lock
in the same round trip, and what is one statement needs neither, as beats and the look-ups of cold reads.
`tests/s3stream/catalog/test_far.py` bounds the round trips of each command.

Commands are idempotent, so that a command that meets an outage is repeated for some seconds. `s3stream.catalog.outage`
decides which errors are outages. A command whose connection broke during COMMIT may have taken effect: from then on
either its repetition succeeds, or OutcomeUnknown is raised, even when the repetition is refused. Every other error of a
command means that it was refused and rolled back, or that an outage prevented the commit.
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
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool, PoolProxiedConnection, QueuePool

from anabranch.extras import missing
from anabranch.s3stream.catalog.migration import check_no_change, check_version, leases_of_older_nodes, migrate
from anabranch.s3stream.catalog.outage import (
    LOCK_NOT_AVAILABLE,
    STALE_SESSION_STATES,
    Verdict,
    classify_sqlite,
    classify_sqlstate,
    is_rolled_back,
)
from anabranch.s3stream.catalog.rows import CHANGE_CHANNEL
from anabranch.s3stream.catalog.schema import DIALECT_SQL
from anabranch.s3stream.errors import CatalogDamaged, CatalogError, CatalogUnavailable, OutcomeUnknown

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

WRITER_LOCK: Final = 0x616E_6162  # "anab": key of PostgreSQL's advisory lock
POSTGRES_READERS: Final = 4
BUSY_TIMEOUT_MS: Final = 30_000
_BEGIN_LOCKED: Final = (
    f"BEGIN ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE; SELECT pg_advisory_xact_lock({WRITER_LOCK})"
)
REPEAT_DELAYS_S: Final = (0.05, 0.2, 0.8, 2.0)
SLOW_COMMAND_S: Final = 30.0
"""Log a command that takes longer: a server that hangs raises no error."""
SQLITE_PRAGMAS: Final = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # only macOS knows it: elsewhere fsync empties the drive's cache anyway
    "PRAGMA foreign_keys = ON",
    # KiB, at most: a commit touches a page for each of its streams, and SQLite's 2 MB would read and spill them.
    "PRAGMA cache_size = -32768",
)
JOURNAL_PRAGMA: Final = "PRAGMA journal_mode = WAL"
JOURNAL_ATTEMPTS: Final = 100
JOURNAL_PAUSE_S: Final = 0.02
POSTGRES_OPTIONS: Final = (
    # A node that hangs in the middle of a command must not hold the writer's lock forever. A commit of thousands of
    # ranges may take longer than what a database allows its users' statements by default.
    "-c idle_in_transaction_session_timeout=30000 -c lock_timeout=60000 -c statement_timeout=0 -c synchronous_commit=on"
    # Of single statements: transactions name theirs.
    " -c default_transaction_isolation=read\\ committed -c default_transaction_deferrable=off"
)

POSTGRES_CONNECTION: Final = {
    "client_encoding": "utf8",
    # Notices a server that disappeared within half a minute; the system's defaults are hours.
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
POSTGRES_BEATS: Final = {
    # A beat on a dead connection is given up for a new one before others take the node for dead.
    "connect_timeout": 2,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 2_000,
}
POSTGRES_BEAT_OPTIONS: Final = f"{POSTGRES_OPTIONS} -c lock_timeout=2000 -c statement_timeout=2000"
POSTGRES_PRIMARY: Final = {"target_session_attrs": "primary"}
"""For writers: a standby refuses writes, and its answers may be stale."""
DAMAGE_ADVICE: Final = (
    "the database is damaged, or no longer a catalog: check its disk and start again, since after a disk error a whole "
    "file may seem damaged; if it still is, stop the nodes that use it, then restore a backup, or rebuild it from the "
    "objects with `anabranch catalog rebuild` (docs/operations.md)"
)
GREETED: Final = "greeted"
"""Key of a connection's notes: `on_session` has run on it."""
LEASE_POLL_S: Final = 0.5
"""Interval between reads of leases of nodes of an older version."""
LISTEN_S: Final = 1.0
"""Longest wait for a notification before the thread is free again."""
CLOSE_TIMEOUT_S: Final = 5.0
"""Time that `close` gives a running command before it shuts down the connection."""
SESSION_CHECKS: Final = 3
"""Times that two connections are asked for their sessions: a pooler may give each the same one twice by chance."""
CHECKPOINT_ATTEMPTS: Final = 50
"""Attempts of `close` to move SQLite's log, which readers and other processes that close may prevent."""
CHECKPOINT_PAUSE_MS: Final = 20
"""Time that an attempt waits for readers, and pause after it."""


class Database:
    """Engines on one database, each with its own connections and threads: for writing, for reading, and for beats.

    A node's signs of life (`beat`) wait neither for its own commits nor, on PostgreSQL, for those of other nodes.
    """

    def __init__(
        self, url: str, *, read_only: bool = False, on_session: Callable[[Connection], None] = lambda _: None
    ) -> None:
        """Set up. `on_session` runs at the beginning of the first command of each connection, in its transaction."""
        self._on_session = on_session
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise CatalogError("catalog URL: expected sqlite:///PATH or postgresql://USER@HOST/DB") from None
        self._where = _shown(parsed)
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
            arguments = _postgres_arguments(parsed, {} if read_only else POSTGRES_PRIMARY, POSTGRES_OPTIONS)
            readers = POSTGRES_READERS
        try:
            self._writer = _engine(parsed, 1, arguments)
            if read_only and self._path is not None:
                path = self._path
                self._reader = create_engine(parsed, poolclass=NullPool, creator=lambda: connect_read_only(path))
            else:
                self._reader = _engine(parsed, readers, arguments)
            self._beater = self._listener = self._writer
            if self._dialect == "postgresql":
                beats = _postgres_arguments(parsed, {**POSTGRES_PRIMARY, **POSTGRES_BEATS}, POSTGRES_BEAT_OPTIONS)
                self._beater = _engine(parsed, 1, beats)
                self._listener = _engine(parsed, 1, arguments)
        except ModuleNotFoundError as error:
            raise CatalogError(str(missing(f"catalog {self._where}", "psycopg"))) from error
        except (ArgumentError, ValueError) as error:
            raise CatalogError(f"catalog {self._where}: {_one_line(error)}") from error
        self._data_version = -1
        self._damage: str | None = None
        """The damage found in the database, after which nothing is written."""
        self._connections: WeakSet[Any] = WeakSet()
        """Connections to a server, which may hang."""
        self._prepare_engines()
        self._writer_thread = ThreadPoolExecutor(1, "catalog-write")
        self._reader_threads = ThreadPoolExecutor(readers, "catalog-read")
        self._beat_thread = self._writer_thread
        self._lanes = [(self._writer_thread, self._writer), (self._reader_threads, self._reader)]
        self._listener_thread = self._reader_threads
        if self._beater is not self._writer:
            self._beat_thread = ThreadPoolExecutor(1, "catalog-beat")
            self._listener_thread = ThreadPoolExecutor(1, "catalog-listen")
            self._lanes += [(self._beat_thread, self._beater), (self._listener_thread, self._listener)]

    def _prepare_engines(self) -> None:
        if self._path is not None:
            for engine in (self._writer,) if self._read_only else (self._writer, self._reader):
                event.listen(engine, "do_connect", partial(_create_private, self._path))
                event.listen(engine, "connect", _prepare_sqlite)
            # In the dialect: with an event of the engine, SQLAlchemy spends twice the time on an empty transaction.
            self._writer.dialect.do_begin = partial(_begin, "BEGIN IMMEDIATE")  # type: ignore[method-assign]
            self._reader.dialect.do_begin = partial(_begin, "BEGIN")  # type: ignore[method-assign]
        else:
            from psycopg import IsolationLevel

            # A statement in front of BEGIN would be a round trip more, and the driver sends its own BEGIN alone.
            self._writer.dialect.do_begin = _begin_locked  # type: ignore[method-assign,assignment]
            modes_of: Mapping[Engine, Mapping[str, object]] = {
                self._writer: {"autocommit": True},
                self._beater: {"autocommit": True},
                self._reader: {
                    "isolation_level": IsolationLevel.REPEATABLE_READ,
                    "read_only": True,
                    "deferrable": False,
                },
            }
            for engine, modes in modes_of.items():
                event.listen(engine, "connect", partial(self._prepare_postgres, modes=modes))
                event.listen(engine, "handle_error", _drop_stale_session)
            event.listen(self._listener, "connect", partial(self._prepare_postgres, modes={"autocommit": True}))
            event.listen(self._listener, "connect", _listen)
            event.listen(self._listener, "handle_error", _drop_stale_session)

    def _prepare_postgres(self, connection: Any, _record: object, *, modes: Mapping[str, object]) -> None:
        """Make the driver set the modes in the BEGIN of each transaction."""
        self._connections.add(connection)
        for name, value in modes.items():
            setattr(connection, name, value)

    @property
    def where(self) -> str:
        """The URL without its password, for messages."""
        return self._where

    async def open(self) -> None:
        """Connect and migrate the schema; if read-only, check that it has this program's version."""
        # Without retries: an operator waits for the start, and nothing depends on the catalog yet.
        if self._dialect == "postgresql":
            # In the one thread of the writer: several at a time could take all connections, and wait for each other.
            await self._run(self._reader, self._writer_thread, self._check_sessions, repeated=False)
        if self._read_only:
            await self._run(
                self._reader,
                self._reader_threads,
                lambda connection: check_version(connection, self._where),
                repeated=False,
            )
        else:
            await self._wait_for_older_nodes()
            await self._run(
                self._writer,
                self._writer_thread,
                lambda connection: migrate(connection, self._dialect, self._where),
                repeated=False,
            )

    def _check_sessions(self, _connection: Connection) -> None:
        """Check that a connection is one session of PostgreSQL: locks, time limits and notifications depend on it.

        A pooler may give each transaction the session that is free. Raises CatalogError.
        """
        with self._reader.connect() as one, self._reader.connect() as other:
            for _ in range(SESSION_CHECKS):
                first, second, again = map(_session_id, (one, other, one))
                if first != again or first == second:
                    raise CatalogError(
                        f"catalog {self._where}: a pooler that gives each transaction another session of PostgreSQL; "
                        "nodes need sessions of their own, for locks, time limits and notifications: connect to "
                        "PostgreSQL itself, or let the pooler give whole sessions (PgBouncer: pool_mode = session)"
                    )

    async def _wait_for_older_nodes(self) -> None:
        """Wait until no node can be alive that would write as an older version does. Raises CatalogError if one is.

        Clocks of two machines are never compared: a lease that does not change for its length has ended.
        """
        seen = await self._run(self._writer, self._writer_thread, leases_of_older_nodes, repeated=False)
        loop = asyncio.get_running_loop()
        end = loop.time() + max((lease.lease_ms for lease in seen), default=0) / 1000
        if seen:
            log.info("waiting for the ends of leases before the catalog's schema is changed", catalog=self._where)
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(min(LEASE_POLL_S, left))
            found = await self._run(self._writer, self._writer_thread, leases_of_older_nodes, repeated=False)
            check_no_change(seen, found, self._where)

    async def read_unopened(self, query: Callable[[Connection], Result], *, absent: Result) -> Result:
        """Run `query` before `open`, on a schema of any version; returns `absent` if there is no database."""
        if self._path is None:
            return await self._run(self._reader, self._reader_threads, query, repeated=False)
        path = self._path
        if not path.exists() or not path.stat().st_size:
            return absent
        engine = create_engine("sqlite://", poolclass=NullPool, creator=lambda: connect_read_only(path))
        return await self._run(engine, self._reader_threads, query, repeated=False)

    async def close(self) -> None:
        """Release connections and threads. Commands that a server does not answer within seconds are abandoned."""
        if self._path is not None and not self._read_only and self._damage is None:
            self._writer_thread.submit(_checkpoint, self._writer, self._where)
        for threads, _ in self._lanes:
            threads.shutdown(wait=False)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._end_threads()
        except TimeoutError:
            for connection in list(self._connections):
                _shut_down_socket(connection)
            await self._end_threads()
        # Not before: a connection in use would return to a pool that is never closed.
        for _, engine in self._lanes:
            await asyncio.to_thread(engine.dispose)

    async def _end_threads(self) -> None:
        for threads, _ in self._lanes:
            await asyncio.to_thread(threads.shutdown)

    async def write(self, command: Callable[[Connection], Result]) -> Result:
        """Run `command` in one transaction, the only writing one; commits if it returns.

        Raises the errors of `command` after a rollback; CatalogUnavailable, CatalogDamaged, OutcomeUnknown.
        """
        self._check_writable()
        return await self._run(self._writer, self._writer_thread, self._greeting(command))

    def _greeting(self, command: Callable[[Connection], Result]) -> Callable[[Connection], Result]:
        """Return the command, with `on_session` before it if the connection is new."""

        def run(connection: Connection) -> Result:
            if not connection.info.get(GREETED):
                self._on_session(connection)
                connection.info[GREETED] = True
            return command(connection)

        return run

    async def beat(self, command: Callable[[Connection], Result]) -> Result:
        """Run `command` as `write` does, but on PostgreSQL without the writers' lock, on a connection of its own.

        So it must be a single statement that is correct beside any concurrent commit. It is not repeated: the next beat
        replaces it.
        """
        self._check_writable()
        return await self._run(self._beater, self._beat_thread, self._greeting(command), repeated=False)

    async def wait_for_change(self, poll_s: float) -> None:
        """Return soon after a commit by another connection that notifies `CHANGE_CHANNEL`; may return without one.

        On SQLite after any commit by another connection; its file is looked at every `poll_s`. Raises
        CatalogUnavailable.
        """
        if self._path is None:
            await self._run(self._listener, self._listener_thread, _wait_for_notification, repeated=False)
            return
        version = self._data_version
        while version == self._data_version:
            await asyncio.sleep(poll_s)
            version = await self._read_data_version()
        self._data_version = version

    async def _read_data_version(self) -> int:
        """Return a number that differs after another connection to SQLite's file has committed."""
        try:
            return await self._answer(self._reader_threads, partial(_data_version, self._reader))
        except DBAPIError as error:
            raise self._failure(error, None) from error

    def refuse_writes(self, reason: str) -> None:
        """Write nothing more: the database is not what it was."""
        self._damage = reason

    def _check_writable(self) -> None:
        if self._read_only:
            raise CatalogError(f"catalog {self._where} was opened read-only and cannot be changed")
        if self._damage is not None:
            raise CatalogDamaged(self._damage)

    async def read_settled(self, query: Callable[[Connection], Result]) -> Result:
        """Run `query` behind the writers' lock: a commit that was not answered has taken effect by then, or never will.

        Raises CatalogUnavailable, CatalogDamaged.
        """
        return await self._run(self._writer, self._writer_thread, self._greeting(query))

    async def read(
        self, query: Callable[[Connection], Result], *, is_long: bool = False, is_single: bool = False
    ) -> Result:
        """Run `query` on one snapshot of the database. Raises CatalogUnavailable, CatalogDamaged.

        A query that `is_long` may take minutes; it is not logged as slow. One that `is_single` is one statement, which
        has a snapshot without a transaction.
        """
        return await self._run(
            self._reader, self._reader_threads, self._greeting(query), is_long=is_long, is_single=is_single
        )

    async def _run(
        self,
        engine: Engine,
        threads: ThreadPoolExecutor,
        command: Callable[[Connection], Result],
        *,
        repeated: bool = True,
        is_long: bool = False,
        is_single: bool = False,
    ) -> Result:
        lost: BaseException | None = None
        transact = _ask if is_single and self._path is None else _transact
        for delay_s in (*REPEAT_DELAYS_S, None) if repeated else (None,):
            attempt = _Attempt()
            try:
                return await self._answer(threads, partial(transact, engine, command, attempt), is_long=is_long)
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
            except (OverflowError, UnicodeEncodeError) as error:
                # A parameter does not fit into the database: nothing was sent, and the database is not at fault.
                refusal = CatalogError(f"catalog {self._where}: {type(error).__name__}: {_one_line(error)}")
                raise refusal if lost is None else self._unknown(lost, error) from error
            except (ValueError, TypeError, LookupError) as error:
                raise self._unreadable(error, lost) from error
            except Exception as error:
                if lost is None:
                    raise
                # The refusal may mean that the lost commit took effect and others have changed the state since.
                raise self._unknown(lost, error) from error
        raise AssertionError("the last attempt returns or raises")

    async def _answer(
        self, threads: ThreadPoolExecutor, work: Callable[[], Result], *, is_long: bool = False
    ) -> Result:
        loop = asyncio.get_running_loop()
        if is_long:
            return await loop.run_in_executor(threads, work)
        slow = loop.call_later(SLOW_COMMAND_S, self._note_slow)
        try:
            return await loop.run_in_executor(threads, work)
        finally:
            slow.cancel()

    def _note_slow(self) -> None:
        log.warning("the catalog does not answer", catalog=self._where)

    def _may_repeat(self, error: DBAPIError) -> bool:
        """Return whether to repeat. SQLite has waited already, and so has a command that waited for the lock."""
        return (
            self._dialect == "postgresql"
            and _classify(error) is Verdict.WAIT
            and _sqlstate(error) != LOCK_NOT_AVAILABLE
        )

    def _failure(self, error: DBAPIError, lost: BaseException | None) -> CatalogError:
        """Return the error to raise for a command that is not repeated."""
        verdict = _classify(error)
        text = f"catalog {self._where}: {_one_line(error.orig or error)}"
        if verdict is Verdict.STOP:
            text = self._damage = f"{text}; {DAMAGE_ADVICE}"
        if lost is not None:
            return self._unknown(lost, error.orig or error)
        if verdict is Verdict.STOP:
            return CatalogDamaged(text)
        return CatalogUnavailable(text) if verdict is Verdict.WAIT else CatalogError(text)

    def _unreadable(self, error: Exception, lost: BaseException | None) -> CatalogError:
        """Return the error to raise for content that no command has written: SQLite has no checksums and no types."""
        found = f"{type(error).__name__}: {_one_line(error)}"
        self._damage = f"catalog {self._where}: its content cannot be read ({found}); {DAMAGE_ADVICE}"
        return CatalogDamaged(self._damage) if lost is None else self._unknown(lost, error)

    def _unknown(self, lost: BaseException, last: BaseException) -> OutcomeUnknown:
        repeated = "" if last is lost else f"; repeated, it met: {_one_line(last)}"
        return OutcomeUnknown(f"catalog {self._where}: a commit was not answered ({_one_line(lost)}){repeated}")


@dataclass(slots=True)
class _Attempt:
    """One attempt to run a command."""

    committing: bool = False
    """True once COMMIT was sent: an error after that does not tell whether it took effect."""


def _engine(url: URL, connections: int, arguments: Mapping[str, Any]) -> Engine:
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        options["use_native_hstore"] = False  # to look this type up, which no table has, takes round trips
    return create_engine(url, pool_size=connections, max_overflow=0, connect_args=arguments, **options)


def _postgres_arguments(url: URL, wanted: Mapping[str, object], options: str) -> dict[str, Any]:
    """Return the arguments of connections. Those in the URL have precedence."""
    found = {name: value for name, value in {**POSTGRES_CONNECTION, **wanted}.items() if name not in url.query}
    # Options in the URL are added to these; for a repeated name the last one counts.
    return {**found, "options": " ".join((options, *url.normalized_query.get("options", ())))}


def _sqlstate(error: DBAPIError) -> str:
    """Return PostgreSQL's code; empty without one, as for a broken connection."""
    return str(getattr(error.orig, "sqlstate", None) or "")


def _classify(error: DBAPIError) -> Verdict:
    if state := _sqlstate(error):
        return classify_sqlstate(state)
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return classify_sqlite(code)
    if isinstance(error.orig, sqlite3.OperationalError):
        return Verdict.STOP  # raised by Python's module: a text in the database is not UTF-8
    # No code from server or library: there is no connection, or it broke.
    return Verdict.WAIT if isinstance(error, (OperationalError, InterfaceError)) else Verdict.REFUSE


def _drop_stale_session(context: ExceptionContext) -> None:
    """Make the pool drop the connection."""
    if getattr(context.original_exception, "sqlstate", None) in STALE_SESSION_STATES:
        context.is_disconnect = True


def _shut_down_socket(connection: Any) -> None:
    """Shut down a connection's socket, which ends the wait of its thread."""
    # It may be closed already.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as bare:
        bare.shutdown(socket.SHUT_RDWR)


def _one_line(error: BaseException) -> str:
    """Return a driver's message on one line, without its hints. It may quote the content of a damaged database."""
    lines = (line.strip() for line in str(error).splitlines())
    text = " ".join(line for line in lines if line and not line.startswith("Is the server running"))
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _transact(engine: Engine, command: Callable[[Connection], Result], attempt: _Attempt) -> Result:
    with engine.begin() as connection:
        result = command(connection)
        attempt.committing = True
    return result


def _ask(engine: Engine, query: Callable[[Connection], Result], _attempt: _Attempt) -> Result:
    """Run a query of one statement on PostgreSQL, without BEGIN and COMMIT."""
    with engine.connect() as connection:
        bare: Any = connection.connection.dbapi_connection
        bare.autocommit = True
        try:
            return query(connection)
        finally:
            if not bare.closed:
                bare.autocommit = False


def _session_id(connection: Connection) -> int:
    """Return the process of PostgreSQL that serves a transaction."""
    with connection.begin():
        found: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    return found


def _listen(connection: Any, _record: object) -> None:
    connection.execute(f"LISTEN {CHANGE_CHANNEL}")


def _wait_for_notification(connection: Connection) -> None:
    """Wait for a notification, for a limited time. One that came before is returned at once."""
    bare: Any = connection.connection.dbapi_connection
    for _ in bare.notifies(timeout=LISTEN_S, stop_after=1):
        pass


def _data_version(engine: Engine) -> int:
    """Read the number that SQLite changes for this connection when another one has committed, without a transaction."""
    statement = "PRAGMA data_version"
    try:
        with closing(engine.raw_connection()) as connection:
            found: int = connection.cursor().execute(statement).fetchone()[0]
    except sqlite3.Error as error:
        raise DBAPIError(statement, None, error) from error
    return found


def _checkpoint(engine: Engine, where: str) -> None:
    """Move all of SQLite's log into the database file, so that a copy of that file alone is complete.

    SQLite does not wait for another process that does the same now, as when several nodes stop together.
    """
    if not isinstance(engine.pool, QueuePool) or not engine.pool.checkedin():
        return  # never connected
    try:
        with closing(engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {CHECKPOINT_PAUSE_MS}")
            busy = True
            for _ in range(CHECKPOINT_ATTEMPTS):
                busy = bool(cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
                if not busy:
                    break
                time.sleep(CHECKPOINT_PAUSE_MS / 1_000)
            reason = "another process reads it"
    except (sqlite3.Error, SQLAlchemyError) as error:
        busy, reason = True, _one_line(error)
    if busy:
        log.warning(
            "the catalog's file is complete only together with its -wal file: copy both", catalog=where, reason=reason
        )


def _shown(url: URL) -> str:
    """Return a URL for messages, with all its passwords hidden."""
    hidden = {name: "..." for name in url.query if "password" in name.lower()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _create_private(path: Path, *_: object) -> None:
    """Create the file of a database if it is missing, for its owner only; SQLite gives its log the same mode.

    SQLite itself would let all users of the machine read it, and it holds the secrets of users and nodes.
    """
    with suppress(OSError):  # it exists, or SQLite will say why it cannot be opened
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare_sqlite(connection: PoolProxiedConnection, _record: object) -> None:
    # With isolation_level None the driver sends no BEGIN and COMMIT of its own.
    connection.isolation_level = None  # type: ignore[attr-defined]  # sqlite3.Connection behind the proxy's type
    for pragma in SQLITE_PRAGMAS:
        connection.execute(pragma)
    # SQLite ignores the timeout here while another connection switches the new file to WAL mode as well.
    for attempt in range(JOURNAL_ATTEMPTS):
        try:
            connection.execute(JOURNAL_PRAGMA)
            break
        except sqlite3.OperationalError:
            if attempt + 1 == JOURNAL_ATTEMPTS:
                raise
            time.sleep(JOURNAL_PAUSE_S)


def _begin(statement: str, connection: PoolProxiedConnection) -> None:
    connection.cursor().execute(statement)


def _begin_locked(connection: PoolProxiedConnection) -> None:
    """Begin a transaction of PostgreSQL that has the writers' lock, in one round trip."""
    bare: Any = connection
    bare.cursor().execute(_BEGIN_LOCKED, prepare=False)  # a prepared statement can be only one


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that changes nothing, whether a node has the database open, has crashed, or has stopped.

    Use a new one for each transaction, since a node may start or stop in between.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        mode = "mode=ro"
    elif os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # SQLite needs its log to see the writes of a node that starts meanwhile; it removes files that it creates here.
        mode = "mode=rw"
    else:
        # No file can be created here, and without a log no other process is writing.
        mode = "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA query_only = ON")
    return connection
