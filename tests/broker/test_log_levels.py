"""Levels of loggers: all loggers are known, and a level decides what shows."""

import re
from pathlib import Path

import pytest
import structlog

from broker import logs
from broker.log_levels import LOGGERS, ROOT, LogLevels
from broker.settings import LogSettings

ROOT_FOLDER = Path(logs.__file__).parents[1]


def test_every_logger_is_listed() -> None:
    found = set()
    for package in ("broker", "compaction", "s3stream", "wal"):
        for path in (ROOT_FOLDER / package).rglob("*.py"):
            for name in re.findall(r"get_logger\(([^)]*)\)", path.read_text()):
                module = ".".join(path.relative_to(ROOT_FOLDER).with_suffix("").parts)
                found.add(module if name == "__name__" else name.strip('"'))
    assert found == set(LOGGERS)


def test_a_logger_follows_the_root_until_it_has_a_level_of_its_own() -> None:
    levels = LogLevels()
    levels.set("network", "DEBUG")
    levels.set(ROOT, "ERROR")
    assert [levels.level(name) for name in (ROOT, "network", "node")] == ["ERROR", "DEBUG", "ERROR"]
    levels.unset("network")
    assert levels.level("network") == "ERROR"


def test_what_is_below_the_level_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    levels = LogLevels()
    try:
        logs.configure(LogSettings(level="warning", format="json"), levels)
        network, node = structlog.get_logger("network"), structlog.get_logger("node")

        def said() -> list[str]:
            return re.findall(r'"event": "(\w+)"', capsys.readouterr().err)

        node.info("a")
        node.warning("b")
        levels.set("network", "DEBUG")
        network.debug("c")
        node.info("d")
        levels.set(ROOT, "FATAL")
        levels.unset("network")
        network.error("e")
        network.critical("f")
        assert said() == ["b", "c", "f"]
    finally:
        structlog.configure(**before)
