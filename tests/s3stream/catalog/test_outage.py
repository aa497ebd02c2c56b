"""Classification of errors of PostgreSQL and SQLite, compared with the drivers' lists of errors."""

import sqlite3

import psycopg.errors
import pytest

from anabranch.s3stream.catalog.outage import (
    SQLITE_CODES,
    SQLITE_EXTENDED_CODES,
    SQLSTATE_CLASSES,
    SQLSTATES,
    Verdict,
    classify_sqlite,
    classify_sqlstate,
    is_rolled_back,
)

WAIT, REFUSE, STOP = Verdict.WAIT, Verdict.REFUSE, Verdict.STOP


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("ConnectionFailure", WAIT),
        ("ProtocolViolation", WAIT),
        ("ReadOnlySqlTransaction", WAIT),
        ("InFailedSqlTransaction", REFUSE),
        ("IdleInTransactionSessionTimeout", WAIT),
        ("InvalidPassword", WAIT),
        ("InvalidCatalogName", WAIT),
        ("SerializationFailure", WAIT),
        ("DeadlockDetected", WAIT),
        ("StatementCompletionUnknown", WAIT),
        ("TransactionIntegrityConstraintViolation", REFUSE),
        ("DiskFull", WAIT),
        ("OutOfMemory", WAIT),
        ("TooManyConnections", WAIT),
        ("ConfigurationLimitExceeded", WAIT),
        ("ProgramLimitExceeded", REFUSE),
        ("ObjectNotInPrerequisiteState", WAIT),
        ("LockNotAvailable", WAIT),
        ("CantChangeRuntimeParam", REFUSE),
        ("QueryCanceled", WAIT),
        ("AdminShutdown", WAIT),
        ("CrashShutdown", WAIT),
        ("CannotConnectNow", WAIT),
        ("DatabaseDropped", WAIT),
        ("IdleSessionTimeout", WAIT),
        ("IoError", WAIT),
        ("UndefinedFile", STOP),
        ("InsufficientPrivilege", WAIT),
        ("UndefinedTable", STOP),
        ("UndefinedColumn", STOP),
        ("UndefinedFunction", REFUSE),
        ("SyntaxError", REFUSE),
        ("UniqueViolation", REFUSE),
        ("ForeignKeyViolation", REFUSE),
        ("NumericValueOutOfRange", REFUSE),
        ("FeatureNotSupported", REFUSE),
        ("RaiseException", REFUSE),
        ("InternalError_", WAIT),
        ("DataCorrupted", STOP),
        ("IndexCorrupted", STOP),
    ],
)
def test_verdicts_on_sqlstates(name: str, verdict: Verdict) -> None:
    assert classify_sqlstate(getattr(psycopg.errors, name).sqlstate) is verdict


def known_states() -> set[str]:
    """All states of appendix A, as the driver has them."""
    found = (getattr(value, "sqlstate", None) for value in vars(psycopg.errors).values() if isinstance(value, type))
    return {state for state in found if isinstance(state, str)}


def test_every_listed_state_is_one_of_postgresqls() -> None:
    known = known_states()
    assert len(known) > 200
    assert set(SQLSTATES) <= known
    # Codes without an error class in psycopg: F0 and 72 are in PostgreSQL's appendix A (72 up to version 16).
    assert set(SQLSTATE_CLASSES) - {state[:2] for state in known} <= {"72", "F0"}


def test_no_entry_says_what_its_class_says() -> None:
    assert [state for state in SQLSTATES if SQLSTATES[state] is SQLSTATE_CLASSES.get(state[:2], REFUSE)] == []
    assert [code for code in SQLITE_EXTENDED_CODES if SQLITE_EXTENDED_CODES[code] is SQLITE_CODES[code & 0xFF]] == []


def test_classes_of_the_statements_own_faults_are_refused() -> None:
    refused = {state[:2] for state in known_states() if classify_sqlstate(state) is REFUSE}
    assert {"22", "23", "42", "54", "P0"} <= refused
    assert classify_sqlstate("99999") is REFUSE


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("SQLITE_ERROR", REFUSE),
        ("SQLITE_PERM", WAIT),
        ("SQLITE_BUSY", WAIT),
        ("SQLITE_BUSY_SNAPSHOT", WAIT),
        ("SQLITE_LOCKED", WAIT),
        ("SQLITE_NOMEM", WAIT),
        ("SQLITE_READONLY", WAIT),
        ("SQLITE_READONLY_DIRECTORY", WAIT),
        ("SQLITE_READONLY_DBMOVED", STOP),
        ("SQLITE_IOERR", WAIT),
        ("SQLITE_IOERR_FSYNC", WAIT),
        ("SQLITE_IOERR_CORRUPTFS", STOP),
        ("SQLITE_CORRUPT", STOP),
        ("SQLITE_CORRUPT_INDEX", STOP),
        ("SQLITE_FULL", WAIT),
        ("SQLITE_CANTOPEN", WAIT),
        ("SQLITE_CANTOPEN_ISDIR", WAIT),
        ("SQLITE_PROTOCOL", WAIT),
        ("SQLITE_CONSTRAINT_UNIQUE", REFUSE),
        ("SQLITE_MISUSE", REFUSE),
        ("SQLITE_TOOBIG", REFUSE),
        ("SQLITE_NOTADB", STOP),
    ],
)
def test_verdicts_on_sqlites_codes(name: str, verdict: Verdict) -> None:
    assert classify_sqlite(getattr(sqlite3, name)) is verdict


@pytest.mark.parametrize(
    ("name", "certain"),
    [
        ("SerializationFailure", True),
        ("DeadlockDetected", True),
        ("ForeignKeyViolation", True),
        ("StatementCompletionUnknown", False),
        ("AdminShutdown", False),
        ("ReadOnlySqlTransaction", False),
        ("InternalError_", False),
    ],
)
def test_only_a_rollback_that_is_told_is_believed(name: str, certain: bool) -> None:
    assert is_rolled_back(getattr(psycopg.errors, name).sqlstate) is certain
