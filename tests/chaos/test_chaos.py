"""A real node that is killed, stopped and continued under real clients: their histories have no anomaly.

The quick form has a few faults; the soak (`make soak`) kills the node a hundred times, and prints its figures.
Faults of disks, networks, clocks and limits are in the modules beside this one; most of them run in the soak only.
"""

import os
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.chaos.checker import Verdict
from tests.chaos.rig import SETTINGS, clients_on
from tests.support.node import NodeProcess
from tests.support.soak import SOAK

KILLS = 100 if SOAK else 2
PAUSES = 50 if SOAK else 1
PAUSES_S = (0.1, 0.5, 3.0)
"""The last is longer than the lease of the catalog."""


@pytest.mark.slow
@pytest.mark.timeout(7000 if SOAK else 400)
def test_kills_and_pauses_lose_nothing(tmp_path: Path) -> None:
    seeded = Random(14)
    faults = ["kill"] * KILLS + ["pause"] * PAUSES
    seeded.shuffle(faults)
    with NodeProcess(tmp_path, **SETTINGS) as node, clients_on(node) as chaos:
        for fault in faults:
            chaos.wait_for_acks(seeded.randrange(1, 300))
            if fault == "kill":
                node.kill9()
                node.start()
            else:
                os.kill(node.pid, signal.SIGSTOP)
                time.sleep(seeded.choice(PAUSES_S))  # the length of the fault itself
                os.kill(node.pid, signal.SIGCONT)
        chaos.wait_for_acks(200)
        chaos.wait_for_copies(1)
        chaos.stop()
        assert node.terminate() == 0
    sys.stdout.write(f"\n{KILLS} kills, {PAUSES} pauses: {chaos.judge()}\n")
    assert chaos.recorder.count(Verdict.OK) > len(faults)
