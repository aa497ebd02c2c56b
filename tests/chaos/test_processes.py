"""`serve --processes N` whose parent and nodes are killed under real clients: their histories have no anomaly.

The quick form has one kill of each; the soak has a hundred faults, and prints its figures.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import pytest

from tests.chaos.clients import Recorder
from tests.chaos.cluster_faults import BIASED
from tests.chaos.cluster_rig import RACKS, RECOVERY_S, leaders_of, verify_storage
from tests.chaos.more_clients import Probe
from tests.chaos.rig import SETTINGS, Chaos, clients_on
from tests.support.node import settings_for
from tests.support.several_processes import SeveralProcesses
from tests.support.soak import SOAK
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7000 if SOAK else 400)]

FAULTS_COUNT: Final = 100
PAUSE_S: Final = 5.0
"""Longer than a silence after which a node counts as dead."""
LATER_S: Final = 3.0
"""Longest time between two kills: a node is started again after a second."""


@dataclass(slots=True)
class Rig:
    """Several processes under clients."""

    node: SeveralProcesses
    chaos: Chaos
    probe: Probe
    seeded: Random
    kills: int = field(default=0)

    def running(self) -> list[int]:
        """Nodes whose process runs; at least two of them, so that another one can take over."""
        found: list[int] = []

        def two_run() -> bool:
            found[:] = [each for each in self.node.node_ids if self.node.pid_of(each) is not None]
            return len(found) > 1

        wait_until(two_run, "two nodes run")
        return found

    def choose(self) -> int:
        """Choose a node that runs, often the one that leads most."""
        running = self.running()
        if self.seeded.random() < BIASED:
            leaders = leaders_of(self.node.bootstrap)
            return max(running, key=leaders.count)
        return self.seeded.choice(running)

    def kill(self, node_id: int) -> None:
        """SIGKILL to a node."""
        self.node.kill_node(node_id)
        self.kills += 1

    def wait_recovered(self) -> None:
        """Wait until all partitions acknowledge what is sent from now on."""
        self.probe.wait_acked(time.monotonic(), RECOVERY_S)
        assert not self.chaos.recorder.errors, self.chaos.recorder.errors[:3]


Fault: TypeAlias = Callable[[Rig], None]


def kill_one(rig: Rig) -> None:
    """SIGKILL to one node."""
    rig.kill(rig.choose())


def kill_two(rig: Rig) -> None:
    """SIGKILL to two nodes, at once or while the first one is taken over or returns."""
    first = rig.choose()
    second = rig.seeded.choice([each for each in rig.running() if each != first])
    rig.kill(first)
    time.sleep(rig.seeded.choice([0.0, LATER_S * rig.seeded.random()]))  # the place of the second fault
    if rig.node.pid_of(second) is not None:
        rig.kill(second)


def kill_parent(rig: Rig) -> None:
    """SIGKILL to the parent: the nodes stop. Often there are more or fewer of them afterwards."""
    rig.node.kill9()
    rig.kills += 1
    rig.node.settings["processes"] = rig.seeded.randint(2, 4)
    rig.node.start()


def kill_all(rig: Rig) -> None:
    """SIGKILL to the parent and all nodes, as when the machine fails."""
    nodes = [pid for each in rig.node.node_ids if (pid := rig.node.pid_of(each)) is not None]
    for pid in (rig.node.pid, *nodes):
        os.kill(pid, signal.SIGKILL)
    rig.node.kill9()
    rig.kills += 1 + len(nodes)
    rig.node.start()


def pause_one(rig: Rig) -> None:
    """SIGSTOP to one node for longer than the lease, then SIGCONT: it goes on, or ends and is started again."""
    pid = rig.node.pid_of(rig.choose())
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)  # the length of the fault itself
    os.kill(pid, signal.SIGCONT)


def stop_one_then_all(rig: Rig) -> None:
    """One node is told to stop, and then the parent, while that one hands over what it leads."""
    rig.node.kill_node(rig.choose(), signal.SIGTERM)
    time.sleep(rig.seeded.random())  # the place of the second order
    assert rig.node.terminate() == 0
    rig.node.start()


QUICK: Final[tuple[Fault, ...]] = (kill_one, kill_all)
FAULTS: Final[tuple[Fault, ...]] = (kill_one, kill_one, kill_two, kill_parent, kill_all, pause_one, stop_one_then_all)


def test_kills_of_parent_and_nodes_lose_nothing(tmp_path: Path) -> None:
    seeded = Random(44)
    faults = [seeded.choice(FAULTS) for _ in range(FAULTS_COUNT)] if SOAK else QUICK
    wanted = {**SETTINGS, "processes": 3, "cluster_balancer": True, "rack": RACKS[0], "topic_replication_factor": 2}
    with SeveralProcesses(tmp_path, **wanted) as node, clients_on(node, Recorder(racks=RACKS[:1])) as chaos:
        probe = Probe(chaos.recorder, 20, node.bootstrap)
        chaos.add(probe)
        rig = Rig(node, chaos, probe, seeded)
        for fault in faults:
            began = time.monotonic()
            fault(rig)
            rig.wait_recovered()
            sys.stdout.write(f"{began - chaos.began:6.1f} s: {fault.__name__}, {time.monotonic() - began:.1f} s\n")
            sys.stdout.flush()
        chaos.wait_for_copies(1)
        chaos.stop()
        assert node.terminate() == 0
        told = chaos.judge()
    report = asyncio.run(verify_storage(settings_for(tmp_path)))
    assert report.ok, report.findings[:5]
    sys.stdout.write(f"\n{rig.kills} kills; {told}\n")
