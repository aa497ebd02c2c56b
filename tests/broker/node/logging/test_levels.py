"""Levels of loggers: every logger is listed, and its level decides which lines are written."""

import logging
import re
from pathlib import Path

import pytest
import structlog

from anabranch.broker.node.logging import logs
from anabranch.broker.node.logging.levels import INITIAL_LOGGERS, ROOT, LogLevels
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.model import LogSettings


def test_a_logger_is_known_when_it_is_loaded_and_listed_when_it_has_spoken() -> None:
    levels = LogLevels()
    assert all(levels.exists(name) for name in (ROOT, *INITIAL_LOGGERS, "anabranch.broker.node.logging.logs"))
    assert not any(levels.exists(name) for name in ("", "nobody", "broker.nobody", "structlog", "storage"))
    assert levels.loggers == (ROOT, *INITIAL_LOGGERS)
    with pytest.raises(structlog.DropEvent):
        levels.drop_below_level(logs.NamedLogger(LineWriter(), "storage"), "debug", {})
    assert levels.exists("storage")
    levels.set("anabranch.broker.node.logging.logs", "DEBUG")
    assert list(levels.loggers) == [
        ROOT,
        "anabranch.broker.node.logging.logs",
        "audit",
        *INITIAL_LOGGERS[1:4],
        "storage",
        "telemetry",
    ]


def test_a_logger_follows_the_root_until_it_has_a_level_of_its_own() -> None:
    levels = LogLevels()
    levels.set("network", "DEBUG")
    levels.set(ROOT, "ERROR")
    assert [levels.level(name) for name in (ROOT, "network", "node")] == ["ERROR", "DEBUG", "ERROR"]
    levels.unset("network")
    assert levels.level("network") == "ERROR"


def test_what_is_below_the_level_is_not_said(tmp_path: Path) -> None:
    before = structlog.get_config()
    levels = LogLevels()
    with (tmp_path / "log").open("w+") as file:
        writer = LineWriter(file.fileno())
        logs.configure(LogSettings(level="warning", format="json"), levels, writer)
        network, node = structlog.get_logger("network"), structlog.get_logger("node")
        node.info("a")
        node.warning("b")
        levels.set("network", "DEBUG")
        network.debug("c")
        node.info("d")
        levels.set(ROOT, "FATAL")
        levels.unset("network")
        network.error("e")
        network.critical("f")
        structlog.configure(**before)
        logging.captureWarnings(capture=False)
        assert writer.flush(60)
        assert re.findall(r'"event": "(\w+)"', (tmp_path / "log").read_text()) == ["b", "c", "f"]
