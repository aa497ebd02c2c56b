"""Lines of the log: one line each, whatever names clients choose."""

import json
import logging
import os
import warnings
from collections.abc import Iterator

import pytest
import structlog

from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.logging.logs import configure
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.model import LogSettings

STRANGE = "\x1b[2J\x1b[31m\0\x9bgroup"


@pytest.fixture
def written() -> Iterator[tuple[LineWriter, int]]:
    """A writer, and the descriptor from which its lines can be read."""
    reading, writing = os.pipe()
    before = structlog.get_config()
    yield LineWriter(writing), reading
    structlog.configure(**before)
    logging.captureWarnings(capture=False)
    os.close(reading)
    os.close(writing)


def logged(written: tuple[LineWriter, int], log_format: str) -> str:
    writer, reading = written
    configure(LogSettings.of({"format": log_format}), LogLevels(), writer)
    structlog.get_logger("test").warning("transaction timed out", transactional_id=STRANGE, names=[STRANGE])
    assert writer.flush(10)
    return os.read(reading, 1 << 16).decode()


def test_names_of_clients_do_not_reach_a_terminal_unescaped(written: tuple[LineWriter, int]) -> None:
    text = logged(written, "pretty")
    assert text.count("\n") == 1
    assert "\\x1b[2J\\x1b[31m" in text
    assert not any(sign in text for sign in ("\x1b[2J", "\0", "\x9b"))


def test_names_of_clients_are_escaped_in_json(written: tuple[LineWriter, int]) -> None:
    text = logged(written, "json")
    assert text.removesuffix("\n").isprintable()
    assert json.loads(text)["transactional_id"] == STRANGE


@pytest.mark.parametrize("log_format", ["pretty", "json"])
def test_tracebacks_show_no_variables(written: tuple[LineWriter, int], log_format: str) -> None:
    writer, reading = written
    configure(LogSettings.of({"format": log_format}), LogLevels(), writer)
    password = "".join(["planted", "-", "secret"])
    try:
        password[len(password)]
    except IndexError as error:
        structlog.get_logger("test").error("request failed", exc_info=error)
    assert writer.flush(10)
    text = os.read(reading, 1 << 16).decode()
    assert "IndexError: string index out of range" in text
    assert "planted-secret" not in text


def test_lines_of_libraries_have_the_same_format(
    written: tuple[LineWriter, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reading = written
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    configure(LogSettings(format="json"), LogLevels(), writer)
    logging.getLogger("psycopg").warning("error ignored in %s: %r", "rollback", STRANGE)
    logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=OSError("reset"))
    logging.getLogger("aiobotocore.credentials").info("found credentials")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old way", DeprecationWarning, stacklevel=1)
    assert writer.flush(10)
    lines = [json.loads(line) for line in os.read(reading, 1 << 16).decode().splitlines()]
    assert [(each["logger"], each["level"]) for each in lines] == [
        ("psycopg", "warning"),
        ("asyncio", "error"),
        ("py.warnings", "warning"),
    ]
    assert lines[0]["event"] == f"error ignored in rollback: {STRANGE!r}"
    assert "OSError: reset" in lines[1]["exception"]
    assert "DeprecationWarning: old way" in lines[2]["event"]
