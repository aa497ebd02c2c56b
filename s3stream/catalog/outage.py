"""Classifies errors of the catalog's database: wait and repeat, refuse this command, or stop the storage.

The tables are those of PostgreSQL's SQLSTATEs (its documentation, appendix A) and of SQLite's result codes
(https://www.sqlite.org/rescode.html). Three verdicts:

- **WAIT**: an outage. The database cannot be reached or cannot work now, but may later: it is down, stopping, starting,
  read-only, full, overloaded, locked, or refuses this user. Acknowledged records are in the log meanwhile, the log's
  bound slows clients down, and callers repeat.
- **REFUSE**: this command fails, now and whenever it is repeated: a constraint, a bad value, a bug.
- **STOP**: the database is damaged, or no longer a catalog. Its answers cannot be trusted, and nothing more may be
  written to it. An operator must restore it; the next start checks what was restored.

Unlisted codes are refused: repeating a permanent error forever would hide it.

A verdict says nothing about the transaction's outcome. When the connection breaks during COMMIT, the outcome is unknown
whatever the error says; only the errors of `is_rolled_back` mean that the server has rolled it back.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class Verdict(Enum):
    """Consequence of a database error for the command that met it."""

    WAIT = auto()
    REFUSE = auto()
    STOP = auto()


SQLSTATE_CLASSES: Final[Mapping[str, Verdict]] = {
    "08": Verdict.WAIT,  # connection exception; poolers report their own errors as 08P01
    "26": Verdict.WAIT,  # invalid statement name: a pooler has put another session behind the connection
    "28": Verdict.WAIT,  # invalid authorization: a password is being changed; libpq reads its password file each time
    "3D": Verdict.WAIT,  # no such database: it is being renamed or restored
    "40": Verdict.WAIT,  # transaction rollback: serialization failure, deadlock
    "53": Verdict.WAIT,  # insufficient resources: disk full, out of memory, too many connections
    "55": Verdict.WAIT,  # object not in prerequisite state: in use, locked, not accepting connections
    "57": Verdict.WAIT,  # operator intervention: cancelled, shut down, crashed, starting up
    "58": Verdict.WAIT,  # system error outside of PostgreSQL: input or output failed
    "72": Verdict.WAIT,  # snapshot too old
    "F0": Verdict.WAIT,  # configuration file error
    # Refused, because they concern the statement and not the server: 0A 0B 0F 0L 0P 0Z 20 21 22 23 24 25 27 2B 2D 2F 34
    # 38 39 3B 42 44 54 HV P0.
    "XX": Verdict.WAIT,  # internal error: poolers use it for their own errors, too
}
SQLSTATES: Final[Mapping[str, Verdict]] = {
    # Where a state differs from its class.
    "25006": Verdict.WAIT,  # read_only_sql_transaction: a standby, or a primary that is about to be one
    "25P03": Verdict.WAIT,  # idle_in_transaction_session_timeout: this process was paused
    "25P04": Verdict.WAIT,  # transaction_timeout
    "40002": Verdict.REFUSE,  # transaction_integrity_constraint_violation
    "42501": Verdict.WAIT,  # insufficient_privilege: granted before, or the start would have failed
    "42P05": Verdict.WAIT,  # duplicate_prepared_statement: as class 26
    "42P01": Verdict.STOP,  # undefined_table: the schema was there at the start
    "42703": Verdict.STOP,  # undefined_column
    "3F000": Verdict.STOP,  # invalid_schema_name
    "55P02": Verdict.REFUSE,  # cant_change_runtime_param
    "55P04": Verdict.REFUSE,  # unsafe_new_enum_value_usage
    "58P01": Verdict.STOP,  # undefined_file: a file of the database is missing
    "XX001": Verdict.STOP,  # data_corrupted
    "XX002": Verdict.STOP,  # index_corrupted
}

SQLITE_CODES: Final[Mapping[int, Verdict]] = {
    3: Verdict.WAIT,  # SQLITE_PERM
    4: Verdict.WAIT,  # SQLITE_ABORT: rolled back under the statement
    5: Verdict.WAIT,  # SQLITE_BUSY
    6: Verdict.WAIT,  # SQLITE_LOCKED
    7: Verdict.WAIT,  # SQLITE_NOMEM
    8: Verdict.WAIT,  # SQLITE_READONLY: the file system may be mounted for writing again
    9: Verdict.WAIT,  # SQLITE_INTERRUPT
    10: Verdict.WAIT,  # SQLITE_IOERR
    11: Verdict.STOP,  # SQLITE_CORRUPT
    13: Verdict.WAIT,  # SQLITE_FULL
    14: Verdict.WAIT,  # SQLITE_CANTOPEN: no file descriptors, a directory that is not mounted
    15: Verdict.WAIT,  # SQLITE_PROTOCOL: a transient race for locks
    17: Verdict.WAIT,  # SQLITE_SCHEMA: another process has changed it
    26: Verdict.STOP,  # SQLITE_NOTADB
    # Refused: 1 ERROR, 2 INTERNAL, 12 NOTFOUND, 16 EMPTY, 18 TOOBIG, 19 CONSTRAINT, 20 MISMATCH,
    # 21 MISUSE, 22 NOLFS, 23 AUTH, 24 FORMAT, 25 RANGE.
}
SQLITE_EXTENDED_CODES: Final[Mapping[int, Verdict]] = {
    # Where an extended code differs from its primary one, which is in its low byte.
    1032: Verdict.STOP,  # SQLITE_READONLY_DBMOVED: the file was moved or deleted under the node
    8202: Verdict.STOP,  # SQLITE_IOERR_DATA: a checksum does not match
    8458: Verdict.STOP,  # SQLITE_IOERR_CORRUPTFS: the file system says that it is corrupt
}

STALE_SESSION_STATES: Final = frozenset({"25006", "26000", "42P05"})
"""Errors caused by the session. A new session may not have them: another server, a changed default."""
LOCK_NOT_AVAILABLE: Final = "55P03"
"""The wait for the writer's lock exceeded `lock_timeout`; waiting again at once would hide that."""
STATEMENT_COMPLETION_UNKNOWN: Final = "40003"


def classify_sqlstate(state: str) -> Verdict:
    """Return the verdict for a SQLSTATE of PostgreSQL."""
    return SQLSTATES.get(state) or SQLSTATE_CLASSES.get(state[:2], Verdict.REFUSE)


def classify_sqlite(code: int) -> Verdict:
    """Return the verdict for a result code of SQLite, extended or not."""
    return SQLITE_EXTENDED_CODES.get(code) or SQLITE_CODES.get(code & 0xFF, Verdict.REFUSE)


def is_rolled_back(state: str) -> bool:
    """Return whether an error in answer to COMMIT proves that nothing was committed."""
    return state[:2] in {"23", "40"} and state != STATEMENT_COMPLETION_UNKNOWN
