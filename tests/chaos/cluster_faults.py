"""Faults of a cluster under clients. Each brings all nodes back and returns when all partitions acknowledge again."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, TypeAlias

from tests.chaos.clients import TOPIC
from tests.chaos.cluster_rig import OBJECT_LOG_ID, RECOVERY_S, ClusterChaos
from tests.support.soak import SOAK
from tests.support.waiting import wait_until

PAUSE_S: Final = 5.0
"""Longer than a silence after which a node counts as dead."""
OUTAGE_S: Final = 60.0 if SOAK else 8.0
"""Length of an outage of PostgreSQL."""
MOVE_S: Final = 0.15
"""Longest time from the order of moves to the kill of one of their ends: most take less."""
FILL_S: Final = 40.0
"""Longest time until a node that joins is filled. After several kills all partitions may rest, and none moves."""
DRAIN_S: Final = 1.0
"""Longest time from the order to stop to the kill."""
STORE_OUTAGE_S: Final = 15.0 if SOAK else 4.0
BIASED: Final = 0.7
"""Share of the kills that hit the node with the most partitions of the topic."""

FaultOfCluster: TypeAlias = Callable[[ClusterChaos, Random], None]


def choose(rig: ClusterChaos, seeded: Random) -> tuple[int, list[int]]:
    """Choose a node, often the one that leads most; also returns the leaders."""
    leaders = rig.cluster.leaders()
    living = rig.cluster.living
    if seeded.random() < BIASED:
        return max(living, key=leaders.count), leaders
    return seeded.choice(living), leaders


def note_kill(rig: ClusterChaos, killed: list[int], leaders: list[int], since_s: float) -> None:
    """Wait until all partitions acknowledge again, and note how long those of the killed nodes took."""
    seconds = rig.wait_recovered(since_s)
    rig.kills += len(killed)
    rig.acked_again_s += [took for leader, took in zip(leaders, seconds, strict=True) if leader in killed]


def kill(rig: ClusterChaos, seeded: Random) -> None:
    """SIGKILL to one node."""
    victim, leaders = choose(rig, seeded)
    began_s = time.monotonic()
    rig.cluster.nodes[victim].kill9()
    note_kill(rig, [victim], leaders, began_s)
    rig.cluster.start()


def kill_and_restart(rig: ClusterChaos, seeded: Random) -> None:
    """SIGKILL to one node, which is started again at once: its return races with the takeover."""
    victim, leaders = choose(rig, seeded)
    began_s = time.monotonic()
    rig.cluster.nodes[victim].kill9()
    rig.cluster.nodes[victim].start()
    note_kill(rig, [victim], leaders, began_s)


def kill_two(rig: ClusterChaos, seeded: Random) -> None:
    """SIGKILL to two nodes at once."""
    victim, leaders = choose(rig, seeded)
    other = seeded.choice([each for each in rig.cluster.living if each != victim])
    began_s = time.monotonic()
    for each in (victim, other):
        rig.cluster.nodes[each].kill9()
    note_kill(rig, [victim, other], leaders, began_s)
    rig.cluster.start()


def kill_recoverer(rig: ClusterChaos, seeded: Random) -> None:
    """SIGKILL to a node, and to the one that has just begun to recover its log."""
    victim, leaders = choose(rig, seeded)
    taken_over = rig.cluster.takeovers(victim)
    began_s = time.monotonic()
    rig.cluster.nodes[victim].kill9()
    recoverer = rig.cluster.recoverer(victim, taken_over)
    rig.cluster.nodes[recoverer].kill9()
    note_kill(rig, [victim, recoverer], leaders, began_s)
    rig.cluster.start()


def kill_all(rig: ClusterChaos, _seeded: Random) -> None:
    """SIGKILL to all nodes."""
    began_s, leaders = time.monotonic(), rig.cluster.leaders()
    killed = rig.cluster.living
    rig.cluster.kill9()
    rig.cluster.start()
    note_kill(rig, killed, leaders, began_s)


def lose_data(rig: ClusterChaos, _seeded: Random) -> None:
    """SIGKILL to the node whose log is in the object store; its data directory is lost."""
    node, leaders = rig.cluster.nodes[OBJECT_LOG_ID], rig.cluster.leaders()
    began_s = time.monotonic()
    node.kill9()
    shutil.rmtree(node.data_dir)
    note_kill(rig, [OBJECT_LOG_ID], leaders, began_s)
    rig.cluster.start()


def pause(rig: ClusterChaos, seeded: Random) -> None:
    """SIGSTOP for longer than the lease, then SIGCONT: the node continues, or is fenced and ends."""
    victim, _ = choose(rig, seeded)
    os.kill(rig.cluster.nodes[victim].pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)  # the length of the fault itself
    os.kill(rig.cluster.nodes[victim].pid, signal.SIGCONT)


def restart_database(rig: ClusterChaos, _seeded: Random) -> None:
    """PostgreSQL crashes and starts again."""
    rig.cluster.postgres.stop()
    rig.cluster.postgres.start()


def cut_database(rig: ClusterChaos, _seeded: Random) -> None:
    """PostgreSQL is away for all nodes: none is taken over, and records are acknowledged meanwhile."""
    before = [rig.cluster.takeovers(each) for each in rig.cluster.nodes]
    rig.cluster.proxies.set("catalog", "away")
    end = time.monotonic() + OUTAGE_S
    while time.monotonic() < end:
        rig.wait_recovered(time.monotonic())
    rig.cluster.proxies.set("catalog", "clear")
    rig.wait_recovered(time.monotonic())
    assert [rig.cluster.takeovers(each) for each in rig.cluster.nodes] == before, "a node was failed for an outage"


def cut_database_of_one(rig: ClusterChaos, seeded: Random) -> None:
    """PostgreSQL is away for one node for longer than the lease."""
    victim, _ = choose(rig, seeded)
    rig.cluster.proxies.set("catalog", "away", victim)
    time.sleep(PAUSE_S)  # the length of the fault itself
    rig.wait_recovered(time.monotonic())
    rig.cluster.proxies.set("catalog", "clear", victim)


def cut_store(rig: ClusterChaos, _seeded: Random) -> None:
    """The S3 server is away for all nodes."""
    rig.cluster.proxies.set("store", "away")
    time.sleep(STORE_OUTAGE_S)  # the length of the fault itself
    rig.cluster.proxies.set("store", "clear")


def cut_store_of_one(rig: ClusterChaos, seeded: Random) -> None:
    """The S3 server is away for one node."""
    victim, _ = choose(rig, seeded)
    rig.cluster.proxies.set("store", "away", victim)
    time.sleep(STORE_OUTAGE_S)  # the length of the fault itself
    rig.cluster.proxies.set("store", "clear", victim)


def break_store(rig: ClusterChaos, seeded: Random) -> None:
    """Every third answer of the S3 server is lost after success, and a node is killed meanwhile."""
    rig.cluster.proxies.set("store", "lossy")
    kill(rig, seeded)
    rig.cluster.proxies.set("store", "clear")


def roll(rig: ClusterChaos, _seeded: Random) -> None:
    """Each node is stopped cleanly and started again."""
    for node in rig.cluster.nodes.values():
        assert node.terminate() == 0
        rig.wait_recovered(time.monotonic())
        node.start()


def move(rig: ClusterChaos, seeded: Random) -> None:
    """Every partition of the topic goes to one node, and the next time to another one."""
    target = seeded.choice(rig.cluster.living)
    _order_moves(rig, target)
    wait_until(lambda: set(rig.cluster.leaders()) == {target}, f"node {target} leads all", timeout_s=RECOVERY_S)


def kill_sender(rig: ClusterChaos, seeded: Random) -> None:
    """SIGKILL to the node that leads most partitions while they move to another one."""
    leaders = rig.cluster.leaders()
    sender = max(rig.cluster.living, key=leaders.count)
    target = seeded.choice([each for each in rig.cluster.living if each != sender])
    _kill_in_moves(rig, seeded, sender, target, leaders)


def kill_receiver(rig: ClusterChaos, seeded: Random) -> None:
    """SIGKILL to a node while partitions move to it."""
    leaders = rig.cluster.leaders()
    target = min(rig.cluster.living, key=leaders.count)
    _kill_in_moves(rig, seeded, target, target, leaders)


def _kill_in_moves(rig: ClusterChaos, seeded: Random, victim: int, target: int, leaders: list[int]) -> None:
    _order_moves(rig, target)
    time.sleep(MOVE_S * seeded.random())  # the place of the fault within the move
    began_s = time.monotonic()
    rig.cluster.nodes[victim].kill9()
    note_kill(rig, [victim], leaders, began_s)
    rig.cluster.start()


def _order_moves(rig: ClusterChaos, target: int) -> None:
    rig.cluster.nodes[target].ask(f"/api/v1/topics/{TOPIC}/moves?to={target}", "POST")


def join(rig: ClusterChaos, seeded: Random, node_id: int) -> None:
    """A node joins, and SIGKILL goes to it or to another one while the balancer fills it."""
    cluster = rig.cluster

    def moves() -> int:
        return sum(move["to_node"] == node_id for move in cluster.balanced())

    before, leaders = moves(), cluster.leaders()
    cluster.nodes[node_id].start()
    end = time.monotonic() + FILL_S
    while moves() == before and time.monotonic() < end:
        time.sleep(0.02)
    victim = seeded.choice([node_id, min(cluster.living), *cluster.living])  # the latter balances
    time.sleep(MOVE_S * seeded.random())  # the place of the fault within the moves
    began_s = time.monotonic()
    cluster.nodes[victim].kill9()
    note_kill(rig, [victim], leaders, began_s)
    cluster.nodes[victim].start()


def leave(rig: ClusterChaos, seeded: Random, node_id: int) -> None:
    """A node is stopped for good and removed, and SIGKILL goes to it or to another one while it hands over."""
    cluster, leaders = rig.cluster, rig.cluster.leaders()
    leaving, victim = cluster.nodes[node_id], seeded.choice([node_id, *cluster.living])
    os.kill(leaving.pid, signal.SIGTERM)
    time.sleep(DRAIN_S * seeded.random())  # the place of the fault within the moves
    began_s = time.monotonic()
    if victim != node_id or leaving.running:
        cluster.nodes[victim].kill9()
        note_kill(rig, [victim], leaders, began_s)
    if victim != node_id:
        cluster.nodes[victim].start()
    if leaving.running or leaving.ended:
        assert leaving.wait() == 0
    wait_until(lambda: cluster.remove(node_id), f"node {node_id} is removed", timeout_s=RECOVERY_S)
    assert node_id not in cluster.leaders()


FAULTS: Final[Mapping[str, FaultOfCluster]] = {
    each.__name__: each
    for each in (
        kill,
        kill_and_restart,
        kill_two,
        kill_recoverer,
        kill_all,
        lose_data,
        pause,
        restart_database,
        cut_database,
        cut_database_of_one,
        cut_store,
        cut_store_of_one,
        break_store,
        roll,
        move,
        kill_sender,
        kill_receiver,
    )
}
"""All faults that need nothing but the nodes of the rig."""
