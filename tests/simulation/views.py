"""Checks of a cluster's views: each node sees the catalog as it is, and takes no node for dead that beats."""

import asyncio
import sqlite3
from contextlib import closing

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import TopicInfo
from tests.simulation.history import Violation
from tests.simulation.node import CATALOG
from tests.simulation.world import World

VIEW_S = 60.0
"""Time after all faults within which each node sees all that is in the catalog."""
LOOK_S = 0.1
SILENT_S = 2.5
"""A node is dead for others when they have heard nothing of it for three seconds."""
UNBROKEN_S = 1.5
"""A node that has not reached the catalog for less time counts it: it sees who has beaten meanwhile."""
BEATS = "SELECT node_id, epoch, beat, lease_until_ms > 0 FROM nodes"


async def all_see_all(world: World) -> None:
    """Wait until all nodes serve, and each of them knows that all live."""
    for node in world.nodes:
        while len((await node.serving()).serving.members.living()) < len(world.nodes):
            await asyncio.sleep(LOOK_S)


async def check_views(world: World) -> None:
    """Check that each node comes to see the topics, leaders, configs and nodes that the catalog has."""
    catalog = Catalog(f"sqlite:///{world.folder}/catalog.db")
    await catalog.open(cluster="anabranch")
    try:
        for node in world.nodes:
            await node.serving()
        found = ""
        for _ in range(int(VIEW_S / LOOK_S)):
            found = await _difference(world, catalog)
            if not found:
                return
            await asyncio.sleep(LOOK_S)
        raise Violation(f"the view of {found}")
    finally:
        await catalog.close()


async def _difference(world: World, catalog: Catalog) -> str:
    """Describe how the view of some node differs from the catalog. Empty: none does."""
    topics = {info.topic_id: info for info in await catalog.list_topics()}
    living = {info.node_id: info.epoch for info in await catalog.list_nodes()}
    for sim_node in world.nodes:
        node = sim_node.node
        if node is None:
            return f"{sim_node.host} is not there"
        members = {member.node_id: member.epoch for member in node.serving.members.living()}
        if members != living:
            return f"{sim_node.host} has nodes and epochs {members}, the catalog has {living}"
        seen = {topic.topic_id: topic.name for topic in node.serving.topics}
        names = {topic_id: info.name for topic_id, info in topics.items()}
        if seen != names:
            return f"{sim_node.host} has topics {sorted(seen.values())}, the catalog has {sorted(names.values())}"
        for info in topics.values():
            if difference := _difference_of(node, info):
                return f"{sim_node.host} has {info.name} {difference}"
    return ""


def _difference_of(node: Node, info: TopicInfo) -> str:
    topic = node.serving.topics.get(info.topic_id)
    assert topic is not None, "it was there just before"
    if topic.info.configs != info.configs:
        return f"with configs {topic.info.configs}, the catalog has {info.configs}"
    if len(topic.partitions) != len(info.partitions):
        return f"with {len(topic.partitions)} partitions, the catalog has {len(info.partitions)}"
    for partition, seen, expected in zip(topic.partitions, topic.info.partitions, info.partitions, strict=True):
        if expected.leader != node.serving.node_id and (partition is not None or seen != expected):
            return f"with {seen}{'' if partition is None else ', open'}, the catalog has {expected}"
        if expected.leader == node.serving.node_id and (
            partition is None or partition.leader_epoch != expected.leader_epoch
        ):
            epoch = None if partition is None else partition.leader_epoch
            return f"open in leader epoch {epoch}, the catalog has {expected}"
    return ""


async def watch_liveness(world: World) -> None:
    """Check, while faults happen, that no node takes another one for dead that may have beaten just before."""
    silent_s: dict[tuple[int, int], float] = {}
    """Time for which one node could have heard a beat of another, since its last one."""
    deaf_s: dict[int, float] = {}
    """Time for which each node has not reached the catalog."""
    beats: dict[int, tuple[int, int, int]] = {}
    """Epoch, beat and whether it has a lease of each node in the catalog; one that was taken over has none."""
    known: dict[int, tuple[Node, frozenset[tuple[int, int]]]] = {}
    """Members with their epochs that each node had when it was looked at last."""
    with closing(sqlite3.connect(world.folder / "catalog.db")) as connection:
        while True:
            await asyncio.sleep(LOOK_S)
            before, beats = beats, {row[0]: row[1:] for row in connection.execute(BEATS)}
            for sim_node in world.nodes:
                own, node = sim_node.node_id, sim_node.node
                hears = not world.catalog_faults.away and not world.network.is_cut(sim_node.host, CATALOG)
                before_s = deaf_s.get(own, 0.0)
                deaf_s[own] = 0.0 if hears else before_s + LOOK_S
                told_s = LOOK_S + (before_s if before_s < UNBROKEN_S else 0.0) if hears else 0.0
                lost: frozenset[tuple[int, int]] = frozenset()
                if node is not None and sim_node.process is not None and not sim_node.process.paused:
                    living = frozenset((member.node_id, member.epoch) for member in node.serving.members.living())
                    former, had = known.get(own, (None, living))
                    lost = had - living if former is node else lost
                    known[own] = node, living
                for other in world.nodes:
                    pair = own, other.node_id
                    is_new = beats[other.node_id] != before.get(other.node_id)
                    heard_s = silent_s.get(pair, 0.0)  # a beat of this moment may be one too late
                    silent_s[pair] = 0.0 if is_new else heard_s + told_s
                    is_early = max(heard_s, silent_s[pair]) < SILENT_S and bool(beats[other.node_id][2])
                    # An answer that was under way in a pause may tell of a clean stop before the newest epoch.
                    is_lost = (other.node_id, beats[other.node_id][0]) in lost
                    if is_lost and other.serves and is_early:
                        raise Violation(f"{sim_node.host} takes {other.host} for dead after {heard_s:.1f} s")
