"""What goes wrong before a session is started gets one clear line."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.spark import spark as spark_command
from spark.cli import main

PLACES = ["--table", "/nowhere/table", "--checkpoint", "/nowhere/checkpoint"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 1, "Error: name either topics or a topic pattern, and not both"),
        (["-t", "a", "--topic-pattern", "b"], 1, "Error: name either topics or a topic pattern, and not both"),
        (["-t", "a", "--period", "week"], 2, "'week' is not one of 'none', 'hour', 'day', 'month'"),
        (["-t", "a", "--option", "novalue"], 2, "'novalue' is not of the form name=value"),
        (["-t", "a", "--schema", "@/nowhere/schema"], 2, "/nowhere/schema: No such file or directory"),
        (["-t", "a", "--offsets-per-batch-max", "0"], 2, "0 is not in the range x>=1"),
    ],
)
def test_a_bad_option_is_named(arguments: list[str], status: int, words: str) -> None:
    result = CliRunner().invoke(main, ["ingest", *PLACES, *arguments])
    assert (result.exit_code, words in result.output) == (status, True), result.output


def test_java_is_asked_for_before_anything_is_started(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": None, "PATH": str(tmp_path), "ANABRANCH_CACHE": str(tmp_path)}
    result = CliRunner().invoke(main, ["ingest", *PLACES, "-t", "a"], env=environ)
    assert result.exit_code == 1
    assert "Error: Spark needs Java 17 or newer. Found: nothing in JAVA_HOME" in result.output


def test_the_command_hands_everything_over(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, arguments: called.append(arguments[1:]))
    CliRunner().invoke(spark_command, ["ingest", "--help", "-t", "a"])
    assert called == [["-m", "spark", "ingest", "--help", "-t", "a"]]
