"""What a crowd, a flood and a hoarder can do to a node: nothing that others notice."""

from contextlib import AsyncExitStack
from pathlib import Path

from protocol.errors import ErrorCode
from protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from protocol.messages.metadata import MetadataRequest
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client

CONNECTIONS = 2000
TOPICS = 100
LARGE_BYTES = 50 << 20


async def test_thousands_of_idle_connections(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, AsyncExitStack() as crowd:
        for _ in range(CONNECTIONS):
            await crowd.enter_async_context(raw_client(node.bootstrap))
        async with raw_client(node.bootstrap) as client:
            assert (await client.call(MetadataRequest(topics=()), 9)).brokers[0].node_id == 1
        assert len(node.node.server.connections) >= CONNECTIONS


async def test_many_topics_in_one_request(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        topics = [CreatableTopic(name=f"t{at}", num_partitions=2, replication_factor=1) for at in range(TOPICS)]
        client.send(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
        async with raw_client(node.bootstrap) as other:
            assert (await other.call(MetadataRequest(topics=()), 9)).brokers[0].node_id == 1, "served meanwhile"
        _, created = await client.receive(CreateTopicsRequest, 7)
        assert {topic.error_code for topic in created.topics} == {ErrorCode.NONE}
        found = (await client.call(MetadataRequest(topics=None), 12)).topics
        assert len(found) == TOPICS
        assert {part.leader_id for topic in found for part in topic.partitions} == {1}
        named = [DeleteTopicState(name=topic.name) for topic in topics]
        deleted = await client.call(DeleteTopicsRequest(topics=named), 6)
        assert {topic.error_code for topic in deleted.responses} == {ErrorCode.NONE}


async def test_messages_too_large_are_refused_and_frames_too_large_closed(tmp_path: Path) -> None:
    async with running_node(tmp_path, network_request_bytes_max=4 << 20) as node, raw_client(node.bootstrap) as client:
        await client.call(
            CreateTopicsRequest(
                topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=30_000
            ),
            7,
        )

        async def produce(size: int) -> int:
            answer = await client.produce("t", [batch_of(b"x" * size)])
            return int(answer.responses[0].partition_responses[0].error_code)

        assert await produce(2 << 20) == ErrorCode.MESSAGE_TOO_LARGE
        assert await produce(1) == ErrorCode.NONE
        async with raw_client(node.bootstrap) as flood:
            flood.send_bytes(((4 << 20) + 1).to_bytes(4, "big"))
            assert await flood.closed()
        assert await produce(1) == ErrorCode.NONE


async def test_frames_that_never_come_take_no_memory_from_others(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, AsyncExitStack() as hoarders:
        for _ in range(20):
            hoarder = await hoarders.enter_async_context(raw_client(node.bootstrap))
            hoarder.send_bytes(LARGE_BYTES.to_bytes(4, "big") + b"\0\0\0\x0d")
        async with raw_client(node.bootstrap) as client:
            assert (await client.call(MetadataRequest(topics=()), 9)).brokers[0].node_id == 1
        assert node.node.server.bytes_held < LARGE_BYTES, "only what has come counts"
