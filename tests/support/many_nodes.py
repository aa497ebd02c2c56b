"""A node in a cluster of which it is the only process: the other nodes are in the catalog and among its members.

    async with node_of_many(tmp_path) as node:
        node.serving.topics.partition("t", OWN)

Its topics have a partition for each state that a leader can be in.
"""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from anabranch.broker.cluster.membership import loop
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.peers.members import Member, Members
from anabranch.broker.node.settings.stores import make_stores
from anabranch.s3stream.catalog.values import NewTopic, NodeListener
from anabranch.s3stream.maintain.claim import claim_store
from anabranch.s3stream.model import StreamOwner
from tests.support.catalog_node import CLUSTER, HOUR_MS, opened_catalog, topic_id_of
from tests.support.node import running_node, settings_for

OWN, OF_THE_THIRD, OF_THE_FIRST, OF_THE_DEAD, NOT_OPEN = range(5)
"""Partitions of each topic. The third node is to lead the last one and has not opened it yet: it parks requests."""
OWN_ID: Final = 2
DEAD_ID: Final = 4
LEADERS: Final = (OWN_ID, 3, 1, DEAD_ID, 3)
"""Leaders of the partitions."""
FIRST: Final = Member(1, 11, (NodeListener("PLAINTEXT", "first", 9001),), "a")
THIRD: Final = Member(3, 33, (NodeListener("PLAINTEXT", "third", 9003),))
TOPICS: Final = ("t", OFFSETS_TOPIC, TRANSACTION_TOPIC)


@asynccontextmanager
async def node_of_many(folder: Path) -> AsyncIterator[Node]:
    """Node 2, beside the living nodes 1 and 3 and the dead node 4. All partitions that a node leads it has open."""
    (folder / "data").mkdir()
    wanted = {"node_id": OWN_ID, "cluster": CLUSTER, "rack": "b"}
    settings = settings_for(folder, **wanted)
    async with opened_catalog(settings.catalog_url, new_id=bytes(range(16))) as catalog:
        created = await catalog.create_topics(
            [
                NewTopic(name, topic_id_of(name[::-1]), len(LEADERS), {}, internal=name != "t", leaders=LEADERS)
                for name in TOPICS
            ],
            leader=OWN_ID,
        )
        for node_id, index in ((THIRD.node_id, OF_THE_THIRD), (FIRST.node_id, OF_THE_FIRST), (DEAD_ID, OF_THE_DEAD)):
            registered = await catalog.register_node(node_id, "gone", 9000 + node_id, now_ms=1, lease_ms=HOUR_MS)
            owner = StreamOwner(node_id, registered.epoch, f"{node_id:016x}")
            opening = [topic.partitions[index].stream_id for topic in created if not isinstance(topic, Exception)]
            await catalog.open_streams(opening, owner)
        for store in make_stores(settings, random.Random(0)).values():  # as they have done before they registered
            await store.open()
            await claim_store(store, CLUSTER, catalog.identity())
            await store.close()
    async with AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "BEATS_MISSED", 0)  # it need not wait at its start for nodes that never beat
            node = await stack.enter_async_context(running_node(folder, **wanted))
        # Its own: what the node finds out by itself does not replace them.
        node.serving.members = Members(node.serving.members.own)
        node.serving.members.update([FIRST, THIRD])
        yield node


def tell_of_leader(topic: Topic, index: int, leader: Member, leader_epoch: int) -> None:
    """Let the node know that another one leads a partition and has it open."""
    partitions = list(topic.info.partitions)
    partitions[index] = replace(
        partitions[index], leader=leader.node_id, owner=leader.node_id, leader_epoch=leader_epoch
    )
    topic.info = replace(topic.info, partitions=partitions)
