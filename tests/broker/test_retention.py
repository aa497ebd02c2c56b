"""Old records go from the start of the log on, and nothing else goes."""

from pathlib import Path

import pytest

from broker.retention import enforce
from protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.records import Record, build_batch
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

T = 1_700_000_000_000


async def create(client: RawClient, **configs: str) -> None:
    values = [CreatableTopicConfig(name=name.replace("_", "."), value=configs[name]) for name in configs]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=values)
    assert (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0].error_code == 0


async def fill(client: RawClient, *ages_ms: int) -> None:
    """One batch of two records each, the newer one so old at T."""
    for age_ms in ages_ms:
        response = await client.produce("t", [batch_of(b"a", b"b", timestamp_ms=T - age_ms - 1)])
        assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_batches_go_up_to_the_first_young_one(tmp_path: Path, flushed: bool) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms="1000")
        await fill(client, 5000, 1001, 1000, 3000, 0)
        if flushed:
            await node.node.storage.flush()
        partition = node.node.topics.partition("t", 0)
        assert await enforce(partition, T) == 4
        assert await enforce(partition, T) == 0
        assert partition.log_start_offset == 4, "the old one behind the young one waits"
        assert await enforce(partition, T + 1001) == 6
        assert (partition.log_start_offset, partition.high_watermark) == (10, 10)
        await fill(client, 0)
        assert partition.high_watermark == 12


@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "compact", "retention_ms": "1"}, {"retention_ms": "-1"}])
async def test_nothing_goes_unasked(tmp_path: Path, configs: dict[str, str]) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, **configs)
        keyed = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)])
        assert (await client.produce("t", [keyed])).responses[0].partition_responses[0].error_code == 0
        assert await enforce(node.node.topics.partition("t", 0), T) == 0


async def test_it_happens_by_itself(tmp_path: Path) -> None:
    settings = {"topic_retention_ms": 1000, "topic_retention_check_interval_ms": 20}
    async with running_node(tmp_path, **settings) as node, raw_client(node.bootstrap) as client:
        await create(client)
        await fill(client, 0)
        partition = node.node.topics.partition("t", 0)
        await until(lambda: partition.log_start_offset == 2, pause_s=0.01)
