"""Replicas in other racks than the leader's: when a leader names them for the newest records, and what they serve."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner

from anabranch.broker.api.handlers.follow_tail import PARTITION_BYTES
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics import replicas, tails
from anabranch.broker.kafka.topics.tail_partition import TailPartition
from anabranch.broker.node.peers.relay import relay
from anabranch.broker.operator.cli import main
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
)
from anabranch.protocol.messages.fetch import PartitionData
from anabranch.protocol.messages.internal.follow_tail import (
    FollowedPartition,
    FollowTailRequest,
    FollowTailResponse,
    PartitionTail,
)
from anabranch.s3stream.errors import OutcomeUnknown
from anabranch.s3stream.model import StreamInfo
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.broker.api.handlers.test_replicas import NEVER_S, NOT_LEADER, fetch, leader_of, look_always, move, offsets
from tests.broker.api.handlers.test_replicas import produce as produce_to
from tests.support.admin_api import api_client
from tests.support.node import running_nodes
from tests.support.raw_client import raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow

RACK = "b"
"""Rack of the readers, and of the second node only."""


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Three nodes, the second in the readers' rack; `t` has a partition that the first leads, and a replica on each."""
    look_always(monkeypatch)
    async with running_nodes(tmp_path, 3, rack=("a", RACK, "a")) as running:
        assert await create(running[0], assigned("t", [1, 2, 3])) == [(0, None)]
        await all_serve(running, "t")
        yield running


async def produce(nodes: list[Node], *values: bytes) -> None:
    await produce_to(nodes[leader_of(nodes[0]) - 1], *values)


async def read(node: Node, offset: int, *, committed: bool = False, min_bytes: int = 0) -> PartitionData:
    return await fetch(node, offset, rack=RACK, committed=committed, min_bytes=min_bytes)


async def followed(nodes: list[Node], offset: int) -> TailPartition:
    """Read from the leader, at an offset with records, until it names the replica; return what that one has."""
    leader, replica = nodes[leader_of(nodes[0]) - 1], nodes[1]
    async with asyncio.timeout(30):
        while (found := await read(leader, offset)).preferred_read_replica < 0:
            assert offsets(found)[0] <= offset, "the leader serves until then"
    assert found.preferred_read_replica == replica.serving.node_id
    assert offsets(found) == []
    tail = tail_of(nodes)
    assert tail is not None
    return tail


def tail_of(nodes: list[Node]) -> TailPartition | None:
    topic = nodes[1].serving.topics.get("t")
    assert topic is not None
    return nodes[1].serving.replicas.tails.get(topic.info.partitions[0].stream_id)


async def test_a_reader_is_sent_to_the_replica_in_its_rack_when_that_one_follows_and_waits_there_for_more(
    nodes: list[Node],
) -> None:
    leader, replica = nodes[:2]
    await produce(nodes, b"0", b"1")
    assert (await fetch(leader, 1, rack="a")).preferred_read_replica == -1, "the leader is in its rack"
    assert tail_of(nodes) is None
    tail = await followed(nodes, 1)
    assert tail.window_offset == 1
    assert (leader.serving.replicas.readers_sent, replica.serving.replicas.readers_returned) == (1, 0)
    found = await read(replica, 1)
    assert (offsets(found), found.high_watermark, found.last_stable_offset, found.log_start_offset) == ([1], 2, 2, 0)
    assert (await read(replica, 0)).preferred_read_replica == 1, "it is in the leader's log only"
    assert (leader.serving.replicas.readers_sent, replica.serving.replicas.readers_returned) == (1, 1)

    waiting = [asyncio.create_task(read(replica, 2, min_bytes=1)) for _ in range(3)]
    await until(lambda: tail.has_listeners, timeout_s=30, pause_s=0.01)
    await produce(nodes, b"2")
    for each in waiting:
        assert offsets(await each) == [2]


async def test_no_reader_is_sent_to_a_replica_that_was_told_nothing_yet(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, followers = nodes[0], nodes[0].serving.replicas.followers
    monkeypatch.setattr(TailPartition, "take", lambda *_: 0)
    note, asked = followers.note, asyncio.Semaphore(0)

    def noted(*args: Any) -> None:
        note(*args)
        asked.release()

    monkeypatch.setattr(followers, "note", noted)
    await produce(nodes, b"0")
    assert offsets(await read(leader, 0)) == [0], "the replica is invited"
    await asked.acquire()
    assert offsets(await read(leader, 0)) == [0], "and asks"


async def test_the_leader_sends_one_copy_however_many_readers_there_are(nodes: list[Node]) -> None:
    leader, replica = nodes[:2]
    await produce(nodes, b"0")
    tail = await followed(nodes, 0)
    fetched, followers = leader.serving.fetched_bytes, leader.serving.replicas.followers
    for number in range(1, 20):
        await produce(nodes, b"%d" % number)
    await until(lambda: tail.next_offset == 20, timeout_s=30, pause_s=0.01)
    answers = await asyncio.gather(*(read(replica, 0) for _ in range(5)))
    assert all(offsets(each) == list(range(20)) for each in answers)
    assert leader.serving.fetched_bytes == fetched
    assert followers.sent_bytes == replica.serving.replicas.tails.received_bytes == len(answers[0].records or b"")
    partition, served = leader.serving.topics.partition("t", 0), replica.serving.replicas
    assert partition.sent_bytes == fetched + followers.sent_bytes, "what it costs counts as that of readers"
    assert (served.tail_bytes, served.object_bytes, served.answers) == (5 * followers.sent_bytes, 0, 5)


async def test_readers_of_committed_records_see_on_the_replica_what_the_leader_shows(nodes: list[Node]) -> None:
    leader, replica = nodes[:2]
    producer = AIOKafkaProducer(bootstrap_servers=leader.bootstrap, transactional_id="x")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"0", partition=0)
    await producer.abort_transaction()  # 0, and its marker at 1
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"2", partition=0)
    tail = await followed(nodes, 0)
    await until(lambda: tail.next_offset == 3, timeout_s=30, pause_s=0.01)

    found = await read(replica, 0, committed=True)
    assert (offsets(found), found.high_watermark, found.last_stable_offset) == ([0, 1], 3, 2)
    assert [each.first_offset for each in found.aborted_transactions or ()] == [0]
    assert offsets(await read(replica, 0)) == [0, 1, 2]
    assert offsets(await read(replica, 1)) == [1, 2]
    waiting = asyncio.create_task(read(replica, 2, committed=True, min_bytes=1))
    await until(lambda: tail.has_listeners, timeout_s=30, pause_s=0.01)
    await producer.abort_transaction()
    found = await waiting
    assert offsets(found) == [2, 3]
    assert [each.first_offset for each in found.aborted_transactions or ()] == [2]
    assert (await read(leader, 2, committed=True)).preferred_read_replica == 2
    await producer.stop()


async def test_an_answer_without_room_tells_what_was_aborted_of_records_that_were_told_before(
    nodes: list[Node],
) -> None:
    """Its last stable offset is past them."""
    leader, replica = nodes[:2]
    producer = AIOKafkaProducer(bootstrap_servers=leader.bootstrap, transactional_id="x")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"0", partition=0)
    tail = await followed(nodes, 0)

    async def ask(bytes_max: int, *starts: int) -> Sequence[PartitionTail]:
        asked = [
            FollowedPartition(
                topic_id=tail.led.topic_id, index=0, leader_epoch=tail.leader_epoch, window_offset=0, offset=offset
            )
            for offset in starts
        ]
        request = FollowTailRequest(node_id=2, wait_ms=0, bytes_max=bytes_max, partitions=asked)
        assert replica.serving.links is not None
        response: FollowTailResponse = await relay(replica.serving.links, 1, request, 0)
        return response.partitions

    await producer.abort_transaction()  # its marker, at 1, is written after the answer
    await producer.stop()
    partition = leader.serving.topics.partition("t", 0)
    await until(lambda: partition.last_stable_offset == 2, timeout_s=30, pause_s=0.01)
    (all_of_it,) = await ask(1 << 20, 0)
    room = 2 * PARTITION_BYTES + len(all_of_it.records)
    first, second = await ask(room, 0, 1)
    assert (first.records, second.records) == (all_of_it.records, b"")
    assert second.last_stable_offset == 2
    assert [(each.first_offset, each.last_offset) for each in second.aborted] == [(0, 1)]


async def test_a_reader_goes_on_from_history_to_the_newest_records(nodes: list[Node]) -> None:
    _, replica, third = nodes
    await produce(nodes, b"0", b"1")
    await nodes[0].serving.storage.flush()
    await move(nodes, 3)  # it has nothing of that in memory
    assert (await read(third, 0)).preferred_read_replica == 2
    assert offsets(await read(replica, 0)) == [0, 1]
    assert tail_of(nodes) is None, "history needs none"
    assert offsets(await read(replica, 2)) == []
    tail = tail_of(nodes)
    assert tail is not None
    await produce(nodes, b"2")
    assert offsets(await read(replica, 2, min_bytes=1)) == [2]
    assert offsets(await read(replica, 1)) == [1], "objects end where the window begins"


async def test_another_leader_ends_what_the_one_before_has_told(nodes: list[Node]) -> None:
    replica = nodes[1]
    await produce(nodes, b"0")
    tail = await followed(nodes, 0)
    epoch = tail.leader_epoch
    assert offsets(await fetch(replica, 0, rack=RACK, current_leader_epoch=epoch)) == [0]
    assert (await fetch(replica, 0, rack=RACK, current_leader_epoch=epoch - 1)).error_code == (
        ErrorCode.FENCED_LEADER_EPOCH
    )
    await move(nodes, 3)
    await until(lambda: bool(tail.end_reason), timeout_s=30, pause_s=0.01)
    assert (await fetch(replica, 1, rack="", current_leader_epoch=epoch)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    await produce(nodes, b"1")
    later = await followed(nodes, 1)
    assert later.leader_epoch > epoch
    assert offsets(await read(replica, 1)) == [1]


async def test_deleted_records_are_deleted_on_the_replica(nodes: list[Node]) -> None:
    leader, replica = nodes[:2]
    await produce(nodes, b"0", b"1", b"2")
    tail = await followed(nodes, 0)
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    async with raw_client(leader.bootstrap) as client:
        await client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=9000), 2)
    await until(lambda: tail.log_start_offset == 2, timeout_s=30, pause_s=0.01)
    assert (await read(replica, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(await read(replica, 2)) == [2]


async def test_the_start_does_not_go_back_for_readers_of_a_tail_whose_leader_lost_the_answer_to_a_deletion(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, replica = nodes[:2]
    await produce(nodes, b"0", b"1", b"2")
    await leader.serving.storage.flush()
    await produce(nodes, b"3")
    await followed(nodes, 3)
    trim = leader.serving.catalog.trim_stream

    async def unanswered(*args: Any, **options: Any) -> StreamInfo:
        await trim(*args, **options)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(leader.serving.catalog, "trim_stream", unanswered)
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    async with raw_client(leader.bootstrap) as client:
        await client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=9000), 2)
    assert (await read(replica, 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    found = await read(replica, 3)
    assert (offsets(found), found.log_start_offset) == ([3], 2)


async def test_a_batch_that_does_not_fit_into_an_answer_is_left_to_the_leader(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = nodes[0]
    monkeypatch.setattr(tails, "ANSWER_BYTES_MAX", 200)
    await produce(nodes, b"0")
    tail = await followed(nodes, 0)
    monkeypatch.setattr(replicas, "RETURNED_S", NEVER_S)
    await produce(nodes, b"1" * 300)
    await until(lambda: bool(tail.end_reason), timeout_s=30, pause_s=0.01)
    assert tail.end_reason == "the leader answers MESSAGE_TOO_LARGE"
    assert nodes[1].serving.replicas.tails.lost == 1
    assert offsets(await read(leader, 1)) == [1]


async def test_who_follows_is_shown_and_how_far_it_is_behind(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "UNUSED_S", NEVER_S)
    await produce(nodes, b"0")
    await followed(nodes, 0)
    monkeypatch.setattr(TailPartition, "lag", 5)
    async with api_client(nodes[2]) as api:
        topic = await api.get("/topics/t")
        storage = await api.get("/topics/t/partitions/0/storage")
    assert (
        topic["partitions"][0]["replicas"] == storage["replicas"] == [{"node": 2, "lag": 5}, {"node": 3, "lag": None}]
    )
    for asked in (None, [DescribableLogDirTopic(topic="t", partitions=[0])]):
        async with raw_client(nodes[1].bootstrap) as client:
            (found,) = (await client.call(DescribeLogDirsRequest(topics=asked), 4)).results
        assert [(each.name, list(each.partitions)) for each in found.topics] == [
            ("t", [DescribeLogDirsPartition(partition_index=0, offset_lag=5)])
        ]
    command = ["topic", "describe", "t", "--bootstrap-server", nodes[2].bootstrap]
    shown = await asyncio.to_thread(CliRunner().invoke, main, command, env={"COLUMNS": "200"})
    assert "1, 2 (5 behind), 3 " in shown.output
    monkeypatch.setattr(TailPartition, "lag", 0)
    shown = await asyncio.to_thread(CliRunner().invoke, main, command, env={"COLUMNS": "200"})
    assert "1, 2 (follows), 3 " in shown.output


async def test_an_answer_has_no_more_than_was_asked_for_and_the_rest_follows(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "ANSWER_BYTES_MAX", 300)
    for number in range(10):
        await produce(nodes, b"%d" % number * 100)
    tail = await followed(nodes, 0)
    await until(lambda: tail.next_offset == 10, timeout_s=30, pause_s=0.01)
    assert offsets(await read(nodes[1], 0)) == list(range(10))


async def test_a_reader_past_the_end_is_sent_back_when_its_time_is_over(nodes: list[Node]) -> None:
    replica = nodes[1]
    await produce(nodes, b"0")
    tail = await followed(nodes, 0)
    assert tail.high_watermark == 1
    for wait_ms in (0, 10):
        found = await fetch(replica, 2, rack=RACK, max_wait_ms=wait_ms, min_bytes=1)
        assert (found.preferred_read_replica, found.high_watermark) == (1, 1)
    assert (await fetch(replica, 2, rack="", max_wait_ms=0)).error_code == NOT_LEADER
    waiting = asyncio.create_task(read(replica, 2, min_bytes=1))
    await until(lambda: tail.has_listeners, timeout_s=30, pause_s=0.01)
    await produce(nodes, b"1", b"2")
    assert offsets(await waiting) == [2], "it knew from the leader what the replica did not know yet"
