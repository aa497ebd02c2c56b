"""A wall clock that steps under a node with real clients."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.chaos.rig import SETTINGS, clients_on
from tests.support.node import NodeProcess
from tests.support.soak import LONG
from tests.support.tools import faketime

pytestmark = [LONG, pytest.mark.timeout(400)]

DAY_S = 86_400
STEPS_S = (3_600, -3_600, DAY_S)


def test_steps_of_the_wall_clock_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    # The clients stay on the real clock: a library is preloaded when a process starts, and they are in this one.
    monkeypatch.setenv("LD_PRELOAD", str(faketime()))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
    monkeypatch.setenv("FAKETIME_CACHE_DURATION", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    with NodeProcess(tmp_path, **SETTINGS) as node, clients_on(node) as chaos:
        for step_s in STEPS_S:
            clock.write_text(f"{step_s:+}")
            chaos.wait_for_acks(300)
            chaos.wait_for_copies(1)
        node.kill9()
        node.start()
        ahead = datetime.fromisoformat(node.events("serving")[-1]["timestamp"]) - datetime.now(UTC)
        assert ahead > timedelta(seconds=DAY_S - 60), "the node has the stepped clock"
        chaos.wait_for_acks(100)
        node.kill9()
        clock.write_text("+0")
        node.start()  # in its catalog and its log, all was written in the future
        chaos.end()
