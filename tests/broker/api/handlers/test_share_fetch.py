"""ShareFetch and ShareAcknowledge against a real node."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.share.interface import DeliveryState, InitialState, ShareKey
from anabranch.protocol.batch import TRANSACTIONAL_MASK, iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.records import ControlType
from tests.broker.api.handlers.test_client_quotas import alter
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.share_member import ACCEPT, GROUP, RELEASE, RENEW, Member, ranges
from tests.support.waiting import until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with the topic `t` of one partition, whose states are initialised for a group."""
    async with running_node(tmp_path, topic_num_partitions=1) as running:
        async with raw_client(running.bootstrap) as client:
            await client.call(
                MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True), 9
            )
        topic = running.serving.topics.require("t")
        key = ShareKey(GROUP, topic.topic_id, 0)
        codes = await running.serving.share_persister.initialize({key: InitialState(0, 0)})
        assert set(codes.values()) == {ErrorCode.NONE}
        yield running


async def test_records_are_acquired_acknowledged_and_passed(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b")])
        await client.produce("t", [batch_of(b"c")])
        ann = Member(node, client, "ann")
        got = await ann.fetch()
        assert ranges(got) == [(0, 2, 1)]
        assert isinstance(got.records, memoryview)
        assert [header.base_offset for header, _ in iterate_batches(got.records)] == [0, 2]
        assert await ann.acknowledge(0, 2, ACCEPT, RELEASE, ACCEPT) == ErrorCode.NONE
        assert ranges(await ann.fetch()) == [(1, 1, 2)]
        assert (await ann.fetch((1, 1, [ACCEPT]), max_wait_ms=0)).acknowledge_error_code == ErrorCode.NONE
        key = ShareKey(GROUP, ann.topic_id, 0)
        [led] = node.serving.share_partitions
        assert (led.key, led.machine.start_offset) == (key, 3)
        state = await node.serving.share_persister.read(key, led.partition.leader_epoch)
        assert all(batch.delivery_state == DeliveryState.ACKNOWLEDGED for batch in state.batches)


async def test_a_request_with_all_records_that_it_asks_for_does_not_wait_for_more_bytes(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b")])
        await client.produce("t", [batch_of(b"c")])
        got = await Member(node, client, "ann").fetch(max_records=2, min_bytes=1 << 20, max_wait_ms=1 << 30)
        assert ranges(got) == [(0, 1, 1)]


async def test_members_share_records_and_wait_for_them(node: Node) -> None:
    async with raw_client(node.bootstrap) as client, raw_client(node.bootstrap) as other:
        ann, bob = Member(node, client, "ann"), Member(node, other, "bob")
        await ann.begin()
        await bob.begin()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ann.fetch())
            [led] = node.serving.share_partitions
            await until(lambda: led.waiting == 1)
            second = group.create_task(bob.fetch())
            await until(lambda: led.waiting == 2)
            async with raw_client(node.bootstrap) as producer:
                await producer.produce("t", [batch_of(b"a")])
                await until(first.done)
                assert led.waiting == 1, "the one who came first got the record"
                await producer.produce("t", [batch_of(b"b")])
        assert ranges(first.result()) == [(0, 0, 1)]
        assert ranges(second.result()) == [(1, 1, 1)]


async def test_what_a_lost_member_has_goes_to_those_who_wait(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a")])
        bob = Member(node, client, "bob")
        async with raw_client(node.bootstrap) as lost:
            assert ranges(await Member(node, lost, "ann").fetch()) == [(0, 0, 1)]
            await bob.begin()
            await lost.abort()
        assert ranges(await bob.fetch()) == [(0, 0, 2)]
        await until(lambda: len(node.serving.share_partitions.sessions) == 1)


async def test_a_lock_ends_in_time(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a")])
        ann = Member(node, client, "ann")
        await ann.fetch()
        [led] = node.serving.share_partitions
        await node.serving.cluster_configs.alter(
            "group", GROUP, set_configs={"share.record.lock.duration.ms": "1000"}, unset=()
        )
        assert await ann.acknowledge(0, 0, RENEW, is_renew_ack=True) == ErrorCode.NONE
        assert ranges(await ann.fetch()) == [(0, 0, 2)]
        assert led.machine.count(DeliveryState.ACQUIRED) == 1


async def test_sessions_have_epochs(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        ann = Member(node, client, "ann")
        assert (await ann.fetch_all(share_session_epoch=1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await ann.acknowledge(0, 0, ACCEPT, share_session_epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await ann.acknowledge(0, 0, ACCEPT, share_session_epoch=5) == ErrorCode.SHARE_SESSION_NOT_FOUND
        ann.epoch = 0
        await ann.begin()
        assert (await ann.fetch_all(share_session_epoch=7)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await ann.fetch_all((0, 0, [ACCEPT]), share_session_epoch=0)).error_code == ErrorCode.INVALID_REQUEST
        ann.epoch = 1
        assert (await ann.fetch_all(max_wait_ms=0)).error_code == ErrorCode.NONE
        assert (await ann.fetch_all(share_session_epoch=-1)).error_code == ErrorCode.NONE
        assert (await ann.fetch_all(share_session_epoch=3)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_the_end_of_a_session_releases(node: Node) -> None:
    async with raw_client(node.bootstrap) as client, raw_client(node.bootstrap) as other:
        await client.produce("t", [batch_of(b"a", b"b")])
        ann, bob = Member(node, client, "ann"), Member(node, other, "bob")
        await ann.fetch()
        await bob.begin()
        assert await ann.acknowledge(0, 0, ACCEPT, share_session_epoch=-1) == ErrorCode.NONE
        assert ranges(await bob.fetch()) == [(1, 1, 2)]


@pytest.mark.parametrize(
    ("first", "last", "types", "code"),
    [
        (1, 0, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (0, 1, [], ErrorCode.INVALID_REQUEST),
        (0, 1, [ACCEPT, ACCEPT, ACCEPT], ErrorCode.INVALID_REQUEST),
        (0, 1, [5], ErrorCode.INVALID_REQUEST),
        (0, 1, [-1], ErrorCode.INVALID_REQUEST),
        (0, 1, [RENEW], ErrorCode.INVALID_REQUEST),
        (0, 9, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (5, 9, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (0, 1, [ACCEPT], ErrorCode.NONE),
    ],
)
async def test_acknowledgements_are_checked(node: Node, first: int, last: int, types: list[int], code: int) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b")])
        ann = Member(node, client, "ann")
        await ann.fetch()
        assert await ann.acknowledge(first, last, *types) == code


async def test_a_renewal_fetches_nothing(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a")])
        await client.produce("t", [batch_of(b"b")])
        ann = Member(node, client, "ann")
        await ann.fetch(max_records=1)
        assert (await ann.fetch_all((0, 0, [RENEW]), is_renew_ack=True)).error_code == ErrorCode.INVALID_REQUEST
        ann.epoch = 1
        nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
        got = await ann.fetch((0, 0, [RENEW]), is_renew_ack=True, **nothing)
        assert (got.acknowledge_error_code, ranges(got)) == (ErrorCode.NONE, [])


async def test_deleted_records_are_passed(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b", b"c", b"d")])
        partitions = [DeleteRecordsPartition(partition_index=0, offset=3)]
        await client.call(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)]))
        assert ranges(await Member(node, client, "ann").fetch()) == [(3, 3, 1)]


async def test_a_committed_reader_gets_nothing_of_open_and_aborted_transactions(node: Node) -> None:
    await node.serving.cluster_configs.alter(
        "group", GROUP, set_configs={"share.isolation.level": "read_committed"}, unset=()
    )
    partition = node.serving.topics.partition("t", 0)
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a")])
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_MASK}
        _ = partition.append(memoryview(batch_of(b"b", b"c", **fields)), verify=lambda *_: True)
        await client.produce("t", [batch_of(b"d")])
        ann = Member(node, client, "ann")
        assert ranges(await ann.fetch()) == [(0, 0, 1)]
        partition.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0)
        assert ranges(await ann.fetch()) == [(3, 4, 1)], "its members drop the marker"
        assert await ann.acknowledge(0, 0, ACCEPT) == ErrorCode.NONE
        [led] = node.serving.share_partitions
        assert led.machine.start_offset == 3


async def test_what_is_deleted_while_it_is_loaded_is_passed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the records go the transactions, and nothing tells any more that these were aborted."""
    await node.serving.cluster_configs.alter(
        "group", GROUP, set_configs={"share.isolation.level": "read_committed"}, unset=()
    )
    partition = node.serving.topics.partition("t", 0)
    async with raw_client(node.bootstrap) as client, raw_client(node.bootstrap) as admin:
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_MASK}
        _ = partition.append(memoryview(batch_of(b"a", b"b", **fields)), verify=lambda *_: True)
        partition.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0)
        await client.produce("t", [batch_of(b"d")])
        stream = type(partition.stream)
        read, read_cached = stream.read, stream.read_cached

        missed = False

        async def load(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = await read(self, *args, **kwargs)
            if self is partition.stream:
                partitions = [DeleteRecordsPartition(partition_index=0, offset=3)]
                await admin.call(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)]))
            return found

        def miss_once(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal missed
            if self is not partition.stream or missed:
                return read_cached(self, *args, **kwargs)
            missed = True
            return None

        monkeypatch.setattr(stream, "read", load)
        monkeypatch.setattr(stream, "read_cached", miss_once)
        assert ranges(await Member(node, client, "ann").fetch()) == [(3, 3, 1)]


async def test_a_restart_forgets_locks_and_nothing_else(tmp_path: Path) -> None:
    async with running_node(tmp_path, topic_num_partitions=1) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True), 9)
        key = ShareKey(GROUP, node.serving.topics.require("t").topic_id, 0)
        await node.serving.share_persister.initialize({key: InitialState(0, 0)})
        for value in (b"a", b"b", b"c"):
            await client.produce("t", [batch_of(value)])
        ann = Member(node, client, "ann")
        assert ranges(await ann.fetch()) == [(0, 2, 1)]
        assert await ann.acknowledge(1, 2, ACCEPT, RELEASE) == ErrorCode.NONE
    async with running_node(tmp_path, topic_num_partitions=1) as node, raw_client(node.bootstrap) as client:
        bob = Member(node, client, "bob")
        got = await bob.fetch()
        assert [(each.first_offset, each.last_offset) for each in got.acquired_records] == [(0, 0), (2, 2)]
        assert got.acquired_records[1].delivery_count == 2
        partition = node.serving.topics.partition("t", 0)
        assert partition.loaded_bytes >= partition.sent_bytes > 0, "they came from objects, and count as such"


async def test_a_deleted_topic_ends_the_wait(node: Node) -> None:
    async with raw_client(node.bootstrap) as client, raw_client(node.bootstrap) as admin:
        ann = Member(node, client, "ann")
        await ann.begin()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(ann.fetch())
            [led] = node.serving.share_partitions
            await until(lambda: led.waiting == 1)
            await admin.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
        assert waiting.result().error_code in {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert not list(node.serving.share_partitions)


async def test_a_member_over_its_quota_gets_nothing_and_locks_nothing(node: Node) -> None:
    async with raw_client(node.bootstrap) as client, raw_client(node.bootstrap, client_id="reader") as throttled:
        await alter(client, {"client-id": "reader"}, consumer_byte_rate=1000)
        await client.produce("t", [batch_of(b"x" * 100)])
        ann, bob = Member(node, throttled, "ann"), Member(node, client, "bob")
        assert ranges(await ann.fetch()) == [(0, 0, 1)]
        await client.produce("t", [batch_of(b"y" * 5000)])
        node.ports.client_quotas.fetched("ANONYMOUS", "reader", 9000, at_least_ms=0)
        answer = await ann.fetch_all((0, 0, [ACCEPT]))
        assert answer.throttle_time_ms > 0
        assert [each.acknowledge_error_code for each in answer.responses[0].partitions] == [ErrorCode.NONE]
        assert ranges(answer.responses[0].partitions[0]) == []
        assert ranges(await bob.fetch()) == [(1, 1, 1)]
