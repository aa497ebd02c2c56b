"""Three real nodes on PostgreSQL and an S3 server, under clients of four libraries: no fault loses or repeats a record.

The balancer is on, all nodes are replicas of all partitions, and consumers read history from the one in their rack. One
log is a device of a machine, one is in the object store, one a device that several machines could open. A few faults
are part of every run; the soak has a hundred kills with figures, all faults, and two nodes that become five.
"""

import sys
import time
from pathlib import Path
from random import Random
from statistics import median, quantiles

import pytest

from tests.chaos.cluster_faults import FAULTS, join, leave
from tests.chaos.cluster_rig import ClusterChaos, clients_on_cluster, cluster
from tests.support.s3 import S3Bucket
from tests.support.soak import LONG, SOAK
from tests.support.tools import faketime

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7000 if SOAK else 600),
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

QUICK = ("kill", "restart_database", "lose_data", "move", "pause")
"""None of them leaves one node alone. A client of librdkafka that has lost its only connection starts over with its
bootstrap servers, and in a transaction it may then wait for a coordinator that it has forgotten, for ever.
"""
KILLS = 100
CRASHES = (
    *("kill",) * 6,
    *("kill_and_restart", "kill_two", "kill_recoverer") * 2,
    *("kill_sender", "kill_receiver"),
)
"""Kinds of kills, as often as they are chosen."""
ROUNDS = 3
SCALINGS = 5
STEPS_S = (3_600, -3_600, 86_400, 0)


def bring(rig: ClusterChaos, seeded: Random, name: str) -> None:
    """Bring a fault to the cluster, and say how long it took."""
    began = time.monotonic()
    FAULTS[name](rig, seeded)
    rig.settle()
    sys.stdout.write(f"{time.monotonic() - rig.chaos.began:6.1f} s: {name}, {time.monotonic() - began:.1f} s\n")
    sys.stdout.flush()


def figures(rig: ClusterChaos, told: str) -> str:
    """One line about kills and one about records."""
    acked = sorted(rig.acked_again_s)
    if len(acked) < 2:
        return told
    return (
        f"{rig.kills} kills, {len(rig.cluster.balanced())} moves by the balancer; "
        f"{len(acked)} partitions acked again after p50 {median(acked):.2f} s, "
        f"p99 {quantiles(acked, n=100, method='inclusive')[98]:.2f} s, longest {acked[-1]:.2f} s\n{told}"
    )


def test_a_few_faults_lose_nothing(tmp_path: Path, bucket: S3Bucket) -> None:
    seeded = Random(15)
    with cluster(tmp_path, bucket, 3) as nodes:
        nodes.start()
        with clients_on_cluster(nodes) as rig:
            for name in QUICK:
                bring(rig, seeded, name)
            told = rig.finish()
    sys.stdout.write(f"\n{figures(rig, told)}\n")


@LONG
def test_a_hundred_kills_lose_nothing(tmp_path: Path, bucket: S3Bucket) -> None:
    seeded = Random(100)
    with cluster(tmp_path, bucket, 3) as nodes:
        nodes.start()
        with clients_on_cluster(nodes) as rig:
            while rig.kills < KILLS:
                bring(rig, seeded, seeded.choice(CRASHES))
            told = rig.finish()
    sys.stdout.write(f"\n{figures(rig, told)}\n")


@LONG
def test_all_faults_lose_nothing(tmp_path: Path, bucket: S3Bucket) -> None:
    seeded = Random(16)
    names = [*FAULTS] * ROUNDS
    seeded.shuffle(names)
    with cluster(tmp_path, bucket, 3) as nodes:
        nodes.start()
        with clients_on_cluster(nodes) as rig:
            for name in names:
                bring(rig, seeded, name)
            told = rig.finish()
    sys.stdout.write(f"\n{figures(rig, told)}\n")


@LONG
@pytest.mark.parametrize("seed", range(SCALINGS))
def test_two_nodes_become_five_and_two_again_under_kills(tmp_path: Path, bucket: S3Bucket, seed: int) -> None:
    seeded = Random(seed)
    with cluster(tmp_path, bucket, 5) as nodes:
        for node_id in (1, 2):
            nodes.nodes[node_id].start()
        with clients_on_cluster(nodes) as rig:
            for node_id in (3, 4, 5):
                join(rig, seeded, node_id)
                rig.settle()
            for node_id in seeded.sample(nodes.living, 3):
                leave(rig, seeded, node_id)
                rig.settle()
            told = rig.finish()
    sys.stdout.write(f"\n{figures(rig, told)}\n")


@LONG
def test_steps_of_the_clock_of_one_node_lose_nothing(
    tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    with cluster(tmp_path, bucket, 3) as nodes:
        with monkeypatch.context() as patch:  # a library is preloaded when a process starts
            patch.setenv("LD_PRELOAD", str(faketime()))
            patch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
            patch.setenv("FAKETIME_CACHE_DURATION", "1")
            patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            nodes.nodes[1].start()
        nodes.start()
        with clients_on_cluster(nodes) as rig:
            for step_s in STEPS_S:
                clock.write_text(f"{step_s:+}")
                rig.chaos.wait_for_acks(300)
                rig.settle()
            assert nodes.takeovers(1) == 0, "a clock decides nothing"
            told = rig.finish()
    sys.stdout.write(f"\n{told}\n")
