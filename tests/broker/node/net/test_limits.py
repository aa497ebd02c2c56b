"""Many clients, a flood of requests, and clients that hold on to memory: the others must notice none of them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch.protocol.codec import encode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.varint import uvarint
from tests.support.metrics import Samples
from tests.support.node import NodeProcess, running_node
from tests.support.raw_client import RawClient, batch_of, connect, raw_client, request_frame
from tests.support.waiting import until, wait_until

CONNECTIONS = 2000
TOPICS = 100
LARGE_BYTES = 50 << 20


@pytest.mark.slow
async def test_thousands_of_idle_connections(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, AsyncExitStack() as crowd:
        for _ in range(CONNECTIONS):
            await crowd.enter_async_context(raw_client(node.bootstrap))
        async with raw_client(node.bootstrap) as client:
            assert (await client.call(MetadataRequest(topics=()), 9)).brokers[0].node_id == 1
        assert len(node.ports.clients.connections) >= CONNECTIONS


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
        server = node.ports.clients
        await until(lambda: server.budget.waiting > 0)
        async with raw_client(node.bootstrap) as client:
            assert (await client.call(MetadataRequest(topics=()), 9)).brokers[0].node_id == 1
        assert server.bytes_held <= server.budget.bytes_max


async def test_a_request_that_waits_holds_no_memory_for_its_frame(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        server = node.ports.clients
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        topic = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
        fetch = encode(FetchRequest(max_wait_ms=(1 << 31) - 1, min_bytes=1, max_bytes=1 << 20, topics=[topic]), 12)
        unknown = b"\x01" + uvarint(99) + uvarint(LARGE_BYTES) + bytes(LARGE_BYTES)
        taken = server.bytes_in
        client.send_bytes(request_frame(1, 12, fetch[:-1] + unknown, correlation_id=7))
        await until(lambda: server.bytes_in - taken > LARGE_BYTES)
        assert not all(connection.idle for connection in server.connections), "it waits for records"
        assert server.bytes_held == 0
        await other.produce("t", [batch_of(b"x")])
        _, response = await client.receive(FetchRequest, 12)
        assert response.responses[0].partitions[0].records
        assert server.bytes_held == 0


FRAME_BYTES = 8 << 20
SENT_BYTES = 15 << 19
LIMIT_BYTES = 32 << 20
CROWD = 60
HALF_FRAME = FRAME_BYTES.to_bytes(4, "big") + bytes(SENT_BYTES)
RESERVED = LIMIT_BYTES * 7 // 8 // (FRAME_BYTES + 4)
"""Number of such frames that fit into the budget, without the part reserved for small frames."""
LIMITS = {"network_request_bytes_max": FRAME_BYTES, "network_node_bytes_max": LIMIT_BYTES}


async def crowd_of_half_frames(stack: AsyncExitStack, bootstrap: str, count: int = CROWD) -> list[RawClient]:
    crowd = []
    for _ in range(count):
        client = await connect(bootstrap)
        stack.push_async_callback(client.abort)  # the node never reads most of its data
        client.send_bytes(HALF_FRAME)
        crowd.append(client)
    return crowd


async def test_half_sent_frames_hold_no_more_than_the_limit(tmp_path: Path) -> None:
    patient = {**LIMITS, "network_frame_timeout_ms": 600_000}
    async with running_node(tmp_path, **patient) as node, AsyncExitStack() as stack:
        await crowd_of_half_frames(stack, node.bootstrap)
        server = node.ports.clients
        await until(lambda: server.budget.waiting == CROWD - RESERVED)
        await until(lambda: server.bytes_in >= RESERVED * SENT_BYTES)
        assert server.bytes_held == RESERVED * (FRAME_BYTES + 4)
        assert server.bytes_in <= LIMIT_BYTES, "what has no memory reserved is not read"
        async with raw_client(node.bootstrap) as client:
            assert (await client.call(MetadataRequest(topics=()), 9)).brokers[0].node_id == 1
            assert (await client.produce("t", [batch_of(b"small")])).responses, "small requests are served meanwhile"


@pytest.mark.slow
async def test_who_sends_all_is_served_and_who_stalls_is_cut_off(tmp_path: Path) -> None:
    impatient = {**LIMITS, "network_frame_timeout_ms": 50, "topic_max_message_bytes": FRAME_BYTES}
    async with running_node(tmp_path, wal_capacity_bytes=64 << 20, **impatient) as node, AsyncExitStack() as stack:
        server = node.ports.clients
        crowd = await crowd_of_half_frames(stack, node.bootstrap)
        client = await stack.enter_async_context(raw_client(node.bootstrap))
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        await until(lambda: server.budget.waiting > 0)
        answer = await client.produce("t", [batch_of(b"x" * (7 << 20))])
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert server.stats.closed_stalled >= CROWD - 2 * RESERVED, "those before it had their turn"
        assert await crowd[0].closed()


async def test_who_does_not_read_is_cut_off_while_others_wait(tmp_path: Path) -> None:
    impatient = {**LIMITS, "network_frame_timeout_ms": 50}
    async with running_node(tmp_path, wal_capacity_bytes=64 << 20, **impatient) as node, AsyncExitStack() as stack:
        server = node.ports.clients
        client = await stack.enter_async_context(raw_client(node.bootstrap))
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        for _ in range(10):
            await client.produce("t", [batch_of(b"x" * 1_000_000)])
        partition = FetchPartition(partition=0, partition_max_bytes=10 << 20)
        fetch = FetchRequest(max_bytes=10 << 20, topics=[FetchTopic(topic="t", partitions=[partition])])
        deaf = await connect(node.bootstrap)
        stack.push_async_callback(deaf.abort)
        for _ in range(5):
            deaf.send(fetch, 12)
        await until(lambda: any(each.transfer is not None for each in server.connections))
        (held,) = (each for each in server.connections if each.transfer is not None)
        large_bytes = LIMIT_BYTES * 7 // 8
        assert server.budget.reserve(held, large_bytes), "as if it had sent so much before"
        held._bytes_held += large_bytes  # noqa: SLF001 - of responses that would take long to send
        held._large_bytes_held += large_bytes  # noqa: SLF001
        assert (await client.produce("t", [batch_of(b"x" * 1_000_000)])).responses
        assert held not in server.connections
        assert server.stats.closed_stalled == 1


async def test_a_frame_may_take_its_time_while_nobody_waits(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, **LIMITS, network_frame_timeout_ms=10) as node,
        raw_client(node.bootstrap) as slow,
        raw_client(node.bootstrap) as client,
    ):
        slow.send_bytes(HALF_FRAME)
        server = node.ports.clients
        await until(lambda: server.bytes_in >= SENT_BYTES)
        for _ in range(50):
            await client.call(MetadataRequest(topics=()), 9)
        assert not server.budget.waiting, "nobody waits: the slow one has all the time"
        assert len(server.connections) == 2


async def test_peers_that_go_while_they_wait_leave_nothing_behind(tmp_path: Path) -> None:
    patient = {**LIMITS, "network_frame_timeout_ms": 600_000}
    async with running_node(tmp_path, **patient) as node, AsyncExitStack() as stack:
        server = node.ports.clients
        crowd = await crowd_of_half_frames(stack, node.bootstrap, RESERVED)
        await until(lambda: server.bytes_in >= RESERVED * SENT_BYTES)
        late_ones = await stack.enter_async_context(AsyncExitStack())
        for _ in range(20):
            late = await late_ones.enter_async_context(raw_client(node.bootstrap))
            late.send_bytes(HALF_FRAME[:1000])
        await until(lambda: server.budget.waiting == 20)
        await late_ones.aclose()
        await until(lambda: len(server.connections) == RESERVED, pause_s=0.01)
        assert server.budget.waiting == 0
        assert server.bytes_held == RESERVED * (FRAME_BYTES + 4)
        for client in crowd:
            await client.abort()
        await until(lambda: not server.connections)
        assert server.bytes_held == 0
        assert not server.budget.crowded


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@pytest.mark.slow
async def test_a_process_under_attack_stays_small(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, **LIMITS, network_frame_timeout_ms=600_000) as node:
        async with AsyncExitStack() as stack:
            before = resident_bytes(node.pid)
            await crowd_of_half_frames(stack, node.bootstrap)

            def settled() -> bool:
                samples = Samples(node.ask("/metrics"))
                waiting = samples.value("anabranch_requests_waiting_for_memory")
                return waiting == CROWD - RESERVED and samples.value("anabranch_network_received_bytes_total") >= (
                    RESERVED * SENT_BYTES
                )

            await asyncio.to_thread(wait_until, settled, "the crowd waits for memory")
            grown = resident_bytes(node.pid) - before
            assert grown < 2 * LIMIT_BYTES < CROWD * SENT_BYTES / 4
