"""Reads from nodes that do not lead: whom a leader names (KIP-392), and what that one serves, as long as it may."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import AIOKafkaProducer

from anabranch.broker.api.handlers import fetch as fetch_handler
from anabranch.broker.cluster.balancer.loads import LoadMeter
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics import replicas
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.node.net.traffic import ClientTraffic
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import CatalogUnavailable, CorruptObject, OutcomeUnknown, StoreError
from anabranch.s3stream.model import ReadResult, StreamBatch, StreamInfo
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.support.node import running_nodes
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow

RACK = "a"
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
ALWAYS_S, NEVER_S = -1.0, 1e9


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Two nodes in one rack; `t` has a partition with a replica on each, which the first leads. Readings never rest."""
    look_always(monkeypatch)
    async with running_nodes(tmp_path, 2, rack=RACK) as running:
        assert await create(running[0], assigned("t", [1, 2])) == [(0, None)]
        await all_serve(running, "t")
        yield running


def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a replica look at the catalog for each request."""
    for module in (replicas, fetch_handler):
        monkeypatch.setattr(module, "FRESH_S", ALWAYS_S)
        monkeypatch.setattr(module, "NEW_S", ALWAYS_S)


async def produce(node: Node, *values: bytes) -> None:
    data = [PartitionProduceData(index=0, records=bytes(batch_of(value))) for value in values]
    async with raw_client(node.bootstrap) as client:
        for each in data:
            request = ProduceRequest(
                acks=-1, timeout_ms=9000, topic_data=[TopicProduceData(name="t", partition_data=[each])]
            )
            answer = await client.call(request, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0


async def fetch(
    node: Node,
    offset: int,
    *,
    rack: str = RACK,
    version: int = 12,
    committed: bool = False,
    min_bytes: int = 0,
    max_wait_ms: int = 5000,
    topic: str = "t",
    client: RawClient | None = None,
    **part: Any,
) -> PartitionData:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **part)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=[partition])],
        rack_id=rack,
    )
    async with nullcontext(client) if client is not None else raw_client(node.bootstrap) as connection:
        answer = await connection.call(request, version)
    found: PartitionData = answer.responses[0].partitions[0]
    return found


def offsets(data: PartitionData) -> list[int]:
    """Base offsets of the batches of an answer."""
    assert data.error_code == 0
    assert isinstance(data.records, bytes | bytearray | memoryview)
    return [header.base_offset for header, _ in iterate_batches(memoryview(data.records))]


async def move(nodes: list[Node], to_node: int) -> None:
    """Let a node lead the partition. It has nothing of what is uploaded in memory then."""
    await nodes[0].serving.move_requests.request({Place("t", 0): to_node}, MoveReason.GATHERING)
    await until(lambda: leader_of(nodes[0]) == leader_of(nodes[1]) == to_node, timeout_s=30, pause_s=0.01)
    await all_serve(nodes, "t")
    await until(lambda: any(nodes[to_node - 1].serving.topics.led_partitions()), timeout_s=30, pause_s=0.01)


def leader_of(node: Node) -> int:
    topic = node.serving.topics.get("t")
    assert topic is not None
    return topic.info.partitions[0].leader


async def history(nodes: list[Node]) -> tuple[Node, Node]:
    """Three records that are in objects only; returns the leader and the replica."""
    await produce(nodes[0], b"0", b"1", b"2")
    await nodes[0].serving.storage.flush()
    await move(nodes, 2)
    return nodes[1], nodes[0]


async def test_a_reader_of_history_is_sent_to_a_replica_in_its_rack_and_back_at_the_end(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    told = await fetch(leader, 0)
    assert (told.preferred_read_replica, told.high_watermark, offsets(told)) == (1, 3, [])
    assert offsets(await fetch(leader, 0, rack="")) == [0, 1, 2]
    assert offsets(await fetch(leader, 0, rack="b")) == [0, 1, 2], "no replica is there"
    assert offsets(await fetch(leader, 0, version=10)) == [0, 1, 2], "such clients know no replicas"

    found = await fetch(replica, 0)
    assert (offsets(found), found.high_watermark, found.last_stable_offset, found.log_start_offset) == (
        [0, 1, 2],
        3,
        3,
        0,
    )
    assert offsets(await fetch(replica, 2)) == [2]
    assert (await fetch(replica, 0, version=10)).error_code == NOT_LEADER
    end = await fetch(replica, 3)
    assert (end.preferred_read_replica, end.high_watermark, offsets(end)) == (2, 3, [])
    stale = await fetch(replica, 3, rack="")
    assert (stale.error_code, stale.current_leader.leader_id) == (NOT_LEADER, 2)

    await produce(leader, b"3")
    assert (await fetch(replica, 3)).preferred_read_replica == 2, "it is in the leader's log only"
    assert offsets(await fetch(leader, 3)) == [3], "and in its memory"
    await leader.serving.storage.flush()
    assert offsets(await fetch(replica, 3)) == [3]


async def test_a_reader_that_a_replica_gives_nothing_is_served_by_the_leader_for_a_while(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, _ = await history(nodes)
    async with raw_client(leader.bootstrap) as client:
        assert (await fetch(leader, 0, client=client)).preferred_read_replica == 1
        assert (await fetch(leader, 1, client=client)).preferred_read_replica == 1, "it has read a record there"
        assert offsets(await fetch(leader, 1, client=client)) == [1, 2], "it has come back for the same offset"
        assert offsets(await fetch(leader, 2, client=client)) == [2]
        assert (await fetch(leader, 1)).preferred_read_replica == 1, "it is another consumer, of the same name"
        monkeypatch.setattr(replicas, "RETURNED_S", NEVER_S)
        assert (await fetch(leader, 2, client=client)).preferred_read_replica == -1
        monkeypatch.setattr(replicas, "RETURNED_S", ALWAYS_S)
        assert (await fetch(leader, 2, client=client)).preferred_read_replica == 1


async def test_a_reader_of_a_replica_that_cannot_read_its_store_is_sent_back_and_stays(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreError("the store is away")

    leader, replica = await history(nodes)
    monkeypatch.setattr(replica.serving.storage, "read_committed", fail)
    async with raw_client(leader.bootstrap) as client:
        assert (await fetch(leader, 0, client=client)).preferred_read_replica == 1
        sent_back = await fetch(replica, 0)
        assert (sent_back.error_code, sent_back.preferred_read_replica) == (0, 2)
        assert offsets(await fetch(leader, 0, client=client)) == [0, 1, 2]
    assert (await fetch(replica, 0, rack="")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_snapshot_is_read_once_and_not_kept(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    _, replica = await history(nodes)
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    read, found = replica.serving.catalog.read_streams, []

    async def noted(*args: Any) -> Any:
        found.append((args[1], await read(*args)))
        return found[-1][1]

    monkeypatch.setattr(replica.serving.catalog, "read_streams", noted)
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    ((known, answer),) = found
    assert [each.snapshot for each in (*known.values(), *answer.values())] == [None, None]


async def test_readings_that_keep_many_transactions_are_forgotten_but_for_the_one_used_last(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "TRANSACTIONS_MAX", 0)
    assert await create(nodes[0], assigned("u", [1, 2])) == [(0, None)]
    await all_serve(nodes, "u")
    producer = AIOKafkaProducer(bootstrap_servers=nodes[0].bootstrap, transactional_id="x")
    await producer.start()
    await producer.begin_transaction()
    for topic in ("t", "u"):
        await producer.send_and_wait(topic, b"0", partition=0)
    await producer.abort_transaction()
    partitions = [nodes[0].serving.topics.partition(topic, 0) for topic in ("t", "u")]
    await until(lambda: all(each.high_watermark == 2 for each in partitions), timeout_s=30, pause_s=0.01)
    await nodes[0].serving.storage.flush()
    assert offsets(await fetch(nodes[1], 0)) == [0, 1]
    assert len(nodes[1].serving.replicas) == 1, "it is kept alone"
    assert offsets(await fetch(nodes[1], 0, topic="u")) == [0, 1]
    assert len(nodes[1].serving.replicas) == 1
    assert offsets(await fetch(nodes[1], 0)) == [0, 1]
    await producer.stop()


async def test_what_a_leader_has_in_memory_it_serves_itself(nodes: list[Node]) -> None:
    await produce(nodes[0], b"0")
    await nodes[0].serving.storage.flush()
    assert offsets(await fetch(nodes[0], 0)) == [0]


async def test_a_reader_of_history_costs_the_leader_what_it_costs_a_replica(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    clock_ms = itertools.count(0, 1000)
    costs = []
    for node, rack in ((leader, ""), (replica, RACK)):
        meter = LoadMeter(node.serving.topics, node.serving.replicas, ClientTraffic(), partial(next, clock_ms))
        if node is leader:
            await meter.sample()  # its partitions are counted from then on
        assert offsets(await fetch(node, 0, rack=rack)) == [0, 1, 2]
        await meter.sample()
        costs.append(meter.cores)
    assert costs[0] == pytest.approx(costs[1]), "at both it is loaded from objects"
    assert costs[0] > 0


async def test_a_draining_or_unlisted_replica_is_not_named(nodes: list[Node]) -> None:
    leader, _ = await history(nodes)
    await leader.serving.move_requests.set_draining(1, draining=True)
    assert offsets(await fetch(leader, 0)) == [0, 1, 2]


async def test_only_replicas_serve(nodes: list[Node]) -> None:
    leader, other = await history(nodes)
    await leader.serving.move_requests.request({Place("t", 0): 2}, MoveReason.REASSIGNMENT, {Place("t", 0): (2,)})
    await other.serving.membership.catch_up()
    assert (await fetch(other, 0, rack="")).error_code == NOT_LEADER
    assert (await fetch(other, 0, version=10)).error_code == NOT_LEADER
    assert offsets(await fetch(leader, 0)) == [0, 1, 2]

    epoch = leader.serving.topics.partition("t", 0).leader_epoch
    for known in (-1, epoch):
        sent_back = await fetch(other, 0, current_leader_epoch=known)
        assert (sent_back.error_code, sent_back.preferred_read_replica) == (0, 2), "some clients would stay here"
    assert (await fetch(other, 0, current_leader_epoch=epoch - 1)).error_code == NOT_LEADER, "it learns a new leader"
    assert (await fetch(other, 0, current_leader_epoch=epoch + 1)).error_code == NOT_LEADER, "it knows a later leader"


async def test_a_partition_whose_snapshot_is_damaged_is_left_to_its_leader(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(stream_id: int, _data: bytes) -> None:
        raise CorruptObject(f"stream {stream_id}: snapshot is cut short")

    _, replica = await history(nodes)
    monkeypatch.setattr(replicas, "decode_transactions", damaged)
    assert (await fetch(replica, 0)).preferred_read_replica == 2


async def test_a_replica_compares_leader_epochs(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    partition = leader.serving.topics.partition("t", 0)
    epoch = partition.leader_epoch
    assert offsets(await fetch(replica, 0, current_leader_epoch=epoch)) == [0, 1, 2]
    assert (await fetch(replica, 0, current_leader_epoch=epoch - 1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await fetch(replica, 0, current_leader_epoch=epoch + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_deleted_records_are_deleted_on_replicas(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    async with raw_client(leader.bootstrap) as client:
        await client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=9000), 2)
    assert (await fetch(replica, 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(await fetch(replica, 2)) == [2]


async def test_a_leader_that_lost_the_answer_to_a_deletion_names_no_replica_for_what_may_be_deleted(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, replica = await history(nodes)
    trim = leader.serving.catalog.trim_stream

    async def unanswered(*args: Any, **options: Any) -> StreamInfo:
        await trim(*args, **options)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(leader.serving.catalog, "trim_stream", unanswered)
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    async with raw_client(leader.bootstrap) as client:
        answer = await client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=9000), 2)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR

    assert (await fetch(replica, 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(await fetch(leader, 0)) == [0, 1, 2], "or consumers go to and fro for ever"
    assert (await fetch(leader, 2)).preferred_read_replica == replica.serving.node_id


async def test_a_replica_that_is_cut_off_from_the_catalog_serves_for_a_while_only(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, replica = await history(nodes)
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]

    async def away(*_: object) -> None:
        raise CatalogUnavailable("away")

    monkeypatch.setattr(replica.serving.catalog, "read_streams", away)
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    monkeypatch.setattr(replicas, "VALID_S", ALWAYS_S)
    assert (await fetch(replica, 0)).preferred_read_replica == 2
    assert leader.serving.storage.error is None


async def test_the_catalog_is_asked_once_a_second_for_all(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    _, replica = await history(nodes)
    monkeypatch.setattr(fetch_handler, "FRESH_S", NEVER_S)
    monkeypatch.setattr(replicas, "NEW_S", NEVER_S)
    answers = await asyncio.gather(*(fetch(replica, 0) for _ in range(5)))
    assert [offsets(each) for each in answers] == [[0, 1, 2]] * 5
    assert replica.serving.replicas.looks == 1


async def test_the_next_request_looks_again_if_compaction_has_merged_what_comes_next_across_the_end(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, replica = await history(nodes)
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    for module in (replicas, fetch_handler):
        monkeypatch.setattr(module, "FRESH_S", NEVER_S)
    looks = replica.serving.replicas.looks
    with monkeypatch.context() as merged:
        batch = StreamBatch(0, 0, 5, 5, 0, b"five records")
        merged.setattr(replica.serving.storage, "read_committed", AsyncMock(return_value=ReadResult([batch], 5)))
        assert offsets(await fetch(replica, 0)) == []
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    assert replica.serving.replicas.looks == looks + 1


async def test_readers_of_committed_records_see_on_a_replica_what_its_objects_decide(nodes: list[Node]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=nodes[0].bootstrap, transactional_id="x")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"0", partition=0)
    await producer.abort_transaction()  # 0, and its marker at 1
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"2", partition=0)
    await nodes[0].serving.storage.flush()
    await move(nodes, 2)
    leader, replica = nodes[1], nodes[0]

    found = await fetch(replica, 0, committed=True)
    assert (offsets(found), found.high_watermark, found.last_stable_offset) == ([0, 1], 3, 2)
    assert [each.first_offset for each in found.aborted_transactions or ()] == [0]
    assert offsets(await fetch(replica, 0)) == [0, 1, 2]
    assert (await fetch(replica, 2, committed=True)).preferred_read_replica == 2, (
        "as far as it knows the transaction is open"
    )
    assert (await fetch(leader, 0, committed=True)).preferred_read_replica == 1

    await producer.commit_transaction()
    await until(lambda: leader.serving.topics.partition("t", 0).last_stable_offset == 4, timeout_s=30, pause_s=0.01)
    told = await fetch(leader, 2, committed=True)
    assert (told.preferred_read_replica, offsets(told)) == (-1, [2, 3]), "the marker is in the leader's log only"
    assert (await fetch(leader, 2)).preferred_read_replica == 1
    await leader.serving.storage.flush()
    assert offsets(await fetch(replica, 2, committed=True)) == [2, 3]
    await producer.stop()
