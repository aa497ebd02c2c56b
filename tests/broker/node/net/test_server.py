"""Limits over all connections, against a real node."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import ProduceRequest
from tests.support.node import running_node
from tests.support.raw_client import batch_of, produce_request, raw_client
from tests.support.waiting import until


@pytest.mark.parametrize("limit", ["network_connections_max", "network_connections_per_address_max"])
async def test_connections_beyond_the_limits_are_closed(tmp_path: Path, limit: str) -> None:
    limits: dict[str, Any] = {limit: 2}
    async with running_node(tmp_path, **limits) as node:
        async with raw_client(node.bootstrap) as first, raw_client(node.bootstrap) as second:
            await first.call(MetadataRequest(topics=()), 9)
            await second.call(MetadataRequest(topics=()), 9)
            async with raw_client(node.bootstrap) as third:
                assert await third.closed()
            await first.call(MetadataRequest(topics=()), 9)
        await until(lambda: not node.ports.clients.connections)
        async with raw_client(node.bootstrap) as again:
            await again.call(MetadataRequest(topics=()), 9)
        assert node.ports.clients.stats.refused_limit == 1


async def test_idle_connections_are_closed_and_waiting_ones_are_not(tmp_path: Path) -> None:
    async with running_node(tmp_path, network_idle_timeout_ms=500) as node:
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=()), 9)
            assert await client.closed()
        assert node.ports.clients.stats.closed_idle == 1


async def test_many_clients_share_the_memory_for_requests(tmp_path: Path) -> None:
    limits = {"network_request_bytes_max": 1 << 20, "network_node_bytes_max": 1 << 20}
    async with running_node(tmp_path, **limits) as node:
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)

        async def work() -> None:
            async with raw_client(node.bootstrap) as client:
                for _ in range(10):
                    client.send(produce_request("t", [batch_of(b"x" * 300_000)]), 9)
                for _ in range(10):
                    _, response = await client.receive(ProduceRequest, 9)
                    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(work())
        assert node.serving.topics.partition("t", 0).high_watermark == 80
        await until(lambda: not node.ports.clients.connections)
        assert node.ports.clients.bytes_held == 0


async def test_a_slow_reader_does_not_hold_up_others(tmp_path: Path) -> None:
    from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    async with running_node(tmp_path, wal_capacity_bytes=64 << 20) as node:
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            for _ in range(10):
                await client.produce("t", [batch_of(b"x" * 1_000_000)])
        partition = FetchPartition(partition=0, partition_max_bytes=10 << 20)
        request = FetchRequest(max_bytes=10 << 20, topics=[FetchTopic(topic="t", partitions=[partition])])
        async with raw_client(node.bootstrap) as slow, raw_client(node.bootstrap) as other:
            for _ in range(50):
                slow.send(request, 12)
            await until(lambda: any(each.transfer is not None for each in node.ports.clients.connections))
            response = await other.call(request, 12)
            assert len(response.responses[0].partitions[0].records) > 9_000_000
            for _ in range(50):
                await slow.receive(FetchRequest, 12)
