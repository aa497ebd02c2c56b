"""The persister over real nodes: states are kept by the nodes that lead partitions of `__share_group_state`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import SHARE_STATE_TOPIC
from anabranch.broker.kafka.share.interface import DeliveryState, InitialState, ShareKey, ShareSummary, StateBatch
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.support.node import running_node, running_nodes
from tests.support.waiting import until

GROUPS = [f"group-{at}" for at in range(8)]


async def write(
    node: Node, key: ShareKey, leader_epoch: int, *batches: StateBatch, start_offset: int = 0, state_epoch: int = 1
) -> None:
    await node.serving.share_persister.write(
        key,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=sum(each.last_offset - each.first_offset + 1 for each in batches),
        batches=batches,
    )


def acknowledged(first: int, last: int) -> StateBatch:
    return StateBatch(first, last, DeliveryState.ACKNOWLEDGED, 1)


async def test_states_survive_a_restart_of_their_node(tmp_path: Path) -> None:
    async with running_node(tmp_path, share_updates_per_snapshot=2) as node:
        topic = await node.serving.topic_commands.create("t", partitions=1, configs={})
        key = ShareKey("g", topic.topic_id, 0)
        persister = node.serving.share_persister
        assert await persister.summaries([key]) == {key: ShareSummary(0, 0, -1, -1)}
        with pytest.raises(KafkaError, match="uninitialized"):
            await persister.read(key, 1)
        assert await persister.initialize({key: InitialState(1, -1)}) == {key: ErrorCode.NONE}
        assert (await persister.read(key, 3)).start_offset == -1
        for offset in range(5):
            await write(node, key, 3, acknowledged(offset, offset))
        with pytest.raises(KafkaError, match="FENCED_LEADER_EPOCH"):
            await write(node, key, 2, acknowledged(9, 9))
        with pytest.raises(KafkaError, match="FENCED_STATE_EPOCH"):
            await write(node, key, 3, acknowledged(9, 9), state_epoch=0)
        stored = await persister.read(key, 3)
        assert stored.batches == (acknowledged(0, 4),)
    async with running_node(tmp_path) as node:
        persister = node.serving.share_persister
        assert await persister.read(key, 4) == stored
        assert await persister.summaries([key]) == {key: ShareSummary(1, 4, 0, 1)}
        assert await persister.delete([key]) == {key: ErrorCode.NONE}
        assert await persister.summaries([key]) == {key: ShareSummary(0, 0, -1, -1)}


async def test_the_states_of_a_deleted_topic_are_deleted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        serving = node.serving
        created = [await serving.topic_commands.create(name, partitions=2, configs={}) for name in ("t", "u")]
        keys = [ShareKey("g", topic.topic_id, index) for topic in created for index in range(2)]
        assert set((await serving.share_persister.initialize(dict.fromkeys(keys, InitialState(1, 0)))).values()) == {0}
        await serving.topic_commands.delete("t")
        await until(lambda: serving.share_states.state_count() == 2)
        missing = await serving.share_persister.initialize({keys[0]: InitialState(2, 0)})
        assert missing == {keys[0]: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def coordinators(nodes: Sequence[Node], keys: Sequence[ShareKey]) -> set[int]:
    """Return the nodes that keep the states of keys."""
    return {
        node.serving.node_id for node in nodes for key in keys if node.serving.share_states.is_coordinator_of(key.text)
    }


async def test_any_node_reads_and_writes_states_of_all(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3, share_state_partitions=6) as nodes:
        first, second, third = nodes
        topic = await first.serving.topic_commands.create("t", partitions=2, configs={})
        keys = [ShareKey(group, topic.topic_id, index) for group in GROUPS for index in range(2)]
        begun = await second.serving.share_persister.initialize(dict.fromkeys(keys, InitialState(1, 0)))
        assert set(begun.values()) == {ErrorCode.NONE}, "also where a node had not heard of the topic yet"
        assert coordinators(nodes, keys) == {1, 2, 3}
        for key in keys:
            await first.serving.share_persister.read(key, 1)
            await write(first, key, 1, acknowledged(0, 2), acknowledged(5, 5))
        for key in keys:
            state = await third.serving.share_persister.read(key, 2)
            assert state.batches == (acknowledged(0, 2), acknowledged(5, 5))
            with pytest.raises(KafkaError, match="FENCED_LEADER_EPOCH"):
                await write(first, key, 1, acknowledged(9, 9))
        summaries = await second.serving.share_persister.summaries(keys)
        assert summaries == dict.fromkeys(keys, ShareSummary(1, 2, 0, 4))
        assert set((await first.serving.share_persister.delete(keys)).values()) == {ErrorCode.NONE}
        assert not any(node.serving.share_states.state_count() for node in nodes)
        assert len(first.serving.topics.require(SHARE_STATE_TOPIC).partitions) == 6
