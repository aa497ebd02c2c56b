"""Compressed frames are taken from producers if Apache Kafka's consumers can read them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from anabranch.broker.kafka.partitions.partition import InspectionWait, Partition
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.support.frames import FAMILIES, READ, REFUSALS, REFUSED, REFUSED_HERE, VERDICTS
from tests.support.node import running_node
from tests.support.raw_client import raw_client

SHAPED_WELL = {
    "gzip: checksums wrong",
    "gzip: cut",
    "gzip: several members",
    "lz4: block checksum",
    "lz4: garbage inside",
    "lz4: large: block above its class",
    "snappy: raw",
    "snappy: raw, cut",
    "snappy: raw, first bytes",
    "snappy: raw, first tag",
    "snappy: raw, tail",
    "snappy: xerial, cut",
    "zstd: block type",
    "zstd: checksum",
    "zstd: content size",
    "zstd: descriptor",
}
"""Families with frames of the usual shape that cannot be decompressed, or hold other records."""
TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "gzip": {"compression.type": "gzip"},
    "zstd": {"compression.type": "zstd"},
}


async def append(partition: Partition, batch: bytearray) -> str:
    try:
        appended = partition.append(batch)
        if isinstance(appended, InspectionWait):
            partition.append(batch, prepared=await appended.inspect())
    except KafkaError as error:
        return REFUSED if error.code in REFUSALS else str(error)
    return READ


@pytest.mark.parametrize("configs", TOPICS.values(), ids=TOPICS)
async def test_a_frame_is_taken_if_kafka_consumers_read_it(tmp_path: Path, configs: Mapping[str, str]) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        given = [CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=given)
        await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        partition = node.serving.topics.partition("t", 0)
        refused: set[tuple[str, int]] = set()
        taken: set[tuple[str, int]] = set()
        for name, family in FAMILIES.items():
            for number, (batch, kafka) in enumerate(zip(family.batches(), VERDICTS[name], strict=True)):
                ours = await append(partition, batch)
                if ours != kafka:
                    (refused if kafka == READ else taken).add((name, number))
    assert refused == REFUSED_HERE
    only = configs.get("compression.type", "") if "cleanup.policy" not in configs else None
    assert {name for name, _ in taken} == {name for name in SHAPED_WELL if only is not None and name.startswith(only)}
