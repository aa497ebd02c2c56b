"""The parts of the runners of clients in Go that need no Go: counts, expected failures, and the stand-in for Docker."""

import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.suites import golang, sarama
from tests.suites.golang import Module
from tests.support.node import NodeProcess

LINES = """\
=== RUN   TestGood
--- PASS: TestGood (0.01s)
--- FAIL: TestBad (0.01s)
    --- FAIL: TestBad/a_part (0.01s)
--- SKIP: TestLeftOut (0.00s)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """A module whose source is an empty folder."""
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(golang, "go", lambda *_, **__: str(tmp_path))
    found = Module("a-client", "example.org/a-client", "v1.0.0")
    assert found.source == tmp_path
    return found


@pytest.mark.parametrize(("code", "as_it_should"), [(1, True), (0, False), (2, False)])
def test_outcomes_are_those_of_whole_tests_and_a_panic_is_no_end(module: Module, code: int, as_it_should: bool) -> None:
    program = module.program(".")
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{LINES}END\nexit {code}\n")
    program.chmod(0o755)
    expected = {"TestGood": "PASS", "TestBad": "FAIL", "TestLeftOut": "SKIP"}
    assert module.run(".", ".", {}, "log") == (expected, as_it_should)


def test_only_failures_that_are_not_in_the_list_are_wrong(
    module: Module, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(golang, "expected_in", lambda *_: {"TestKnown", "TestMended", "TestNotRun"})
    outcomes = {"TestKnown": "FAIL", "TestMended": "PASS"}
    assert module.report(outcomes, 1)
    assert not module.report({**outcomes, "TestBad": "FAIL"}, 1)
    said = capsys.readouterr().out
    assert "a-client v1.0.0: 1 passed, 2 failed, 0 skipped" in said
    assert "failed, NOT EXPECTED: TestBad" in said
    assert "failed: TestKnown" in said
    assert "does not fail any more: TestMended" in said
    assert "TestNotRun" not in said


def test_docker_stops_and_starts_brokers_and_shows_their_logs(tmp_path: Path) -> None:
    node = Mock(NodeProcess, lines=["one", "two"])
    node.terminate.side_effect = [0, RuntimeError("the node does not end")]
    with sarama.docker(tmp_path, {3: node}) as told:

        def compose(*words: str) -> subprocess.CompletedProcess[str]:
            command = ["docker", "compose", *words, "kafka-3"]
            environ = {**os.environ, **told}
            return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

        assert compose("stop").returncode == 0
        assert compose("start").returncode == 0
        assert compose("logs", "--since", "2026-01-01T00:00:00Z").stdout == "one\ntwo"
        again = compose("stop")
    assert again.returncode == 1
    assert "the node does not end" in again.stderr
    assert [call[0] for call in node.method_calls] == ["terminate", "start", "terminate"]
