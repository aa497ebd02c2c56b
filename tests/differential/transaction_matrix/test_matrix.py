"""Nodes over logs in memory answer each request of a transaction, at each moment of the one before, as Kafka does."""

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.protocol import codec
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.produce import ProduceRequest
from anabranch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from anabranch.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from tests.broker.kafka.transactions.cluster import TOPICS, Client, Cluster
from tests.differential.transaction_matrix.matrix import (
    EXPIRED,
    HELD,
    MOMENTS,
    NEAR,
    TOPIC,
    Answers,
    ask_all,
    from_text,
    to_text,
)
from tests.differential.transaction_matrix.record import FILE
from tests.support.virtual_time import run_virtual

COMPARED_MIN = 800
FOREVER_S = 1e9


class MemoryNodes:
    """Nodes in memory: `matrix.Cluster`. Of several, no two lead NEAR, lead HELD or coordinate the ids."""

    topic_id = TOPIC.encode().ljust(16)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.group = next(name for at in count() if cluster.group_coordinator(name := f"group-{at}") == 0)
        self.group_partition = partition_of(self.group, TOPICS[OFFSETS_TOPIC])
        self._last = max(cluster.node_ids)
        stream = cluster.files[TopicPartition(TOPIC, HELD)].stream
        assert stream is not None
        self._stream = stream

    def name_of(self, name: str) -> str:
        """Return an id that the second node coordinates, if there is one."""
        coordinator = min(self._last, 1)
        return next(found for at in count() if self._cluster.coordinator(found := f"{name}{at}") == coordinator)

    async def begin(self, transactional_id: str, timeout_ms: int, epoch: int) -> Producer:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        response = await self.ask(request, 4)
        if epoch:
            entry = self._coordinator.shard(transactional_id).entries[transactional_id]
            entry.state = replace(entry.state, epoch=epoch)
        return Producer(response.producer_id, epoch)

    @property
    def _coordinator(self) -> Any:
        return self._cluster.nodes[min(self._last, 1)].serving.transactions

    async def ask(self, request: Any, version: int) -> Any:
        match request:
            case DescribeProducersRequest(topics=[topic]):
                node_id = self._cluster.leader(TopicPartition(topic.name, topic.partition_indexes[0]))
            case ProduceRequest() | WriteTxnMarkersRequest():
                node_id = self._cluster.leader(TopicPartition(TOPIC, NEAR))
            case TxnOffsetCommitRequest():
                node_id = self._cluster.group_coordinator(request.group_id)
            case _:
                node_id = min(self._last, 1)
        response = await self._cluster.ask(node_id, request, version)
        return codec.decode_exact(type(response), codec.encode(response, version), version)

    async def hold(self) -> None:
        self._stream.delay_s = lambda: FOREVER_S

    async def release(self) -> None:
        self._stream.delay_s = self._cluster.flush_s
        self._stream.flush()

    async def expire(self, _transactional_ids: Collection[str]) -> None:
        coordinator = self._coordinator
        coordinator.settings = cast("Any", SimpleNamespace(**{**vars(coordinator.settings), "id_expiration_ms": 0}))
        await coordinator.expire()
        await asyncio.sleep(1)


async def answers_of_nodes(nodes: int) -> Answers:
    cluster = await Cluster(random.Random(0), nodes).start()
    memory = MemoryNodes(cluster)
    try:
        await Client(cluster, memory.name_of("first"), adds=True).opened()  # from now on the coordinator is loaded
        return await ask_all(memory, [*MOMENTS, EXPIRED], memory.name_of, versions=every if nodes == 1 else ends)
    finally:
        await cluster.stop()


def every(versions: Sequence[int]) -> Sequence[int]:
    return versions


def ends(versions: Sequence[int]) -> Sequence[int]:
    """The first version and the newest one."""
    return sorted({versions[0], versions[-1]})


@pytest.mark.parametrize("nodes", [1, 3])
def test_each_request_at_each_moment_is_answered_as_apache_kafka_does(nodes: int) -> None:
    kafka = from_text(FILE.read_text())
    ours = run_virtual(answers_of_nodes(nodes))
    found, compared = [], 0
    for moment, requests in ours.items():
        for request, by_version in requests.items():
            for version, answer in by_version.items():
                compared += 1
                expected = kafka[moment][request][version]
                if answer != expected:
                    found.append(f"{moment}: {request} v{version}: {answer}, Apache Kafka: {expected}")
    assert not found, f"{len(found)} of {compared} differ:\n" + "\n".join(found)
    assert compared >= COMPARED_MIN


def test_answers_are_read_as_they_were_written() -> None:
    text = FILE.read_text()
    assert to_text(from_text(text)) == text
