"""The use that a node tells: traffic by the racks of clients, traffic with other nodes, calls to stores."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from anabranch.broker.cluster.balancer import loads
from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.usage import describe_usage
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.broker.node.net.traffic import DELETED
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

FETCH_VERSION = 12
BATCH = batch_of(b"x" * 100)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        await running.serving.topic_commands.create_all([TopicSpec("t", 2, {})])
        yield running


async def greet(client: RawClient) -> None:
    await client.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)


async def fetch(client: RawClient, rack: str = "") -> None:
    topics = [
        FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)])
    ]
    await client.call(FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=topics, rack_id=rack), FETCH_VERSION)


def traffic_of(node: Node) -> dict[str, tuple[int, int]]:
    """Bytes received and sent, by rack."""
    return {
        rack.rack: (
            sum(each.received_bytes for each in rack.streams),
            sum(each.sent_bytes for each in rack.streams),
        )
        for rack in describe_usage(node).racks
    }


async def test_bytes_are_counted_by_the_rack_of_clients(node: Node) -> None:
    size = len(BATCH)
    async with raw_client(node.bootstrap, "orders,rack=a") as producer, raw_client(node.bootstrap) as other:
        await greet(producer)
        for _ in range(3):
            await producer.produce("t", [BATCH])
        await other.produce("t", [BATCH], partition=1)
        await fetch(other, rack="b")
        await fetch(producer)
        await other.produce("t", [BATCH], partition=1)  # its rack is known by now
    assert traffic_of(node) == {"": (size, 0), "a": (3 * size, 3 * size), "b": (size, 3 * size)}
    streams = {index: node.serving.topics.partition("t", index).stream.stream_id for index in range(2)}
    [found] = [each for each in describe_usage(node).racks if each.rack == "b"]
    assert {each.stream_id: (each.received_bytes, each.sent_bytes) for each in found.streams} == {
        streams[0]: (0, 3 * size),
        streams[1]: (size, 0),
    }


async def test_calls_to_stores_are_counted_as_they_are_priced(node: Node) -> None:
    before = describe_usage(node)
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [BATCH])
    await node.serving.storage.flush()
    [was], [now] = before.stores, describe_usage(node).stores
    assert now.store == was.store == node.serving.settings.objects.store
    assert now.writes > was.writes
    assert before.log_disk_bytes == node.wal.capacity_bytes > 0


async def test_counts_of_deleted_topics_do_not_pile_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "COUNTS_MIN", 0)
    traffic = node.ports.clients.traffic
    for stream_id in range(1_000_000, 1_000_100):
        traffic.of("").note_sent(stream_id, 1)
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [BATCH])
    node.upkeep.meter.forget_deleted()
    assert traffic.of("").sent == {DELETED: 100}
    assert traffic.of("").received_bytes == len(BATCH)


async def test_traffic_between_nodes_is_counted_where_it_was_asked_for(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as nodes:
        for node, other in (nodes, reversed(nodes)):
            await until(partial(bool, node.serving.links.exchanged), pause_s=0.01)
            [link] = describe_usage(node).links
            assert link.node_id == other.serving.node_id
            assert link.exchanged_bytes > 0
