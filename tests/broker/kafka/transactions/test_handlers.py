"""Transactions on the wire, against a real node: both versions, isolation, offsets, errors, tools, restarts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from anabranch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from anabranch.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from anabranch.s3stream.errors import CatalogUnavailable, OutcomeUnknown
from tests.support.node import NodeProcess, running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

pytestmark = pytest.mark.slow

READ_COMMITTED = 1
V1, V2 = 11, 12
"""Versions of Produce on either side of KIP-890."""


class TransactionalClient:
    """A transactional producer that sends exactly the requests of the test."""

    def __init__(self, raw: RawClient, name: str = "id") -> None:
        self.raw = raw
        self.name = name
        self.producer_id = -1
        self.epoch = -1
        self.sequence = 0

    async def open(self) -> "TransactionalClient":
        await self.raw.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        for key_type, key in ((0, "g"), (1, self.name)):
            found = await self.raw.call(FindCoordinatorRequest(key=key, key_type=key_type), 3)
            assert found.error_code == ErrorCode.NONE
        await self.init()
        return self

    async def init(self, version: int = 4, **fields: int) -> InitProducerIdResponse:
        wanted = {"transaction_timeout_ms": 60_000, **fields}
        got: InitProducerIdResponse
        while True:
            got = await self.raw.call(InitProducerIdRequest(transactional_id=self.name, **wanted), version)
            if got.error_code not in {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}:
                break
        if not got.error_code:
            self.producer_id, self.epoch, self.sequence = got.producer_id, got.producer_epoch, 0
        return got

    async def produce(
        self, *values: bytes, version: int = V2, partition: int = 0, epoch: int | None = None, name: str | None = ""
    ) -> ErrorCode:
        batch = batch_of(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        request = ProduceRequest(
            transactional_id=self.name if name == "" else name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=bytes(batch))])
            ],
        )
        response = await self.raw.call(request, version)
        error = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if not error:
            self.sequence += len(values)
        return error

    async def add(self, *partitions: int, topic: str = "t", version: int = 3) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        (result,) = (await self.raw.call(request, version)).results_by_topic_v3_and_below
        return [ErrorCode(each.partition_error_code) for each in result.results_by_partition]

    async def end(self, *, commit: bool, version: int = 5) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        ended: EndTxnResponse = await self.raw.call(request, version)
        if version >= 5 and not ended.error_code:
            self.producer_id, self.epoch, self.sequence = ended.producer_id, ended.producer_epoch, 0
        return ended

    async def fetch(self, offset: int = 0, *, isolation: int = READ_COMMITTED) -> PartitionData:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            topics=[FetchTopic(topic="t", partitions=[partition])],
            isolation_level=isolation,
            max_wait_ms=0,
            max_bytes=1 << 20,
        )
        data: PartitionData = (await self.raw.call(request, 12)).responses[0].partitions[0]
        return data

    async def latest(self, isolation: int) -> int:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            isolation_level=isolation, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
        )
        offset: int = (await self.raw.call(request, 7)).topics[0].partitions[0].offset
        return offset

    async def commit_offset(self, offset: int, *, version: int = 5, member: str = "") -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="note"
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id="g",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            member_id=member,
            generation_id_or_member_epoch=1 if member else -1,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        while True:
            response = await self.raw.call(request, version)
            error = ErrorCode(response.topics[0].partitions[0].error_code)
            if error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return error

    async def offset(self, *, stable: bool = True) -> tuple[ErrorCode, int]:
        group = OffsetFetchRequestGroup(
            group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        while True:
            response = await self.raw.call(OffsetFetchRequest(groups=[group], require_stable=stable), 9)
            if response.groups[0].error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
        found = response.groups[0].topics[0].partitions[0]
        return ErrorCode(found.error_code), found.committed_offset

    async def state(self) -> str:
        response = await self.raw.call(DescribeTransactionsRequest(transactional_ids=[self.name]), 0)
        state: str = response.transaction_states[0].transaction_state
        return state


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, topic_num_partitions=3) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[TransactionalClient]:
    async with raw_client(node.bootstrap) as raw:
        yield await TransactionalClient(raw).open()


async def test_version_2_is_what_clients_are_told(client: TransactionalClient) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    for version in (3, 4):
        told = await client.raw.call(request, version)
        finalized = {feature.name: feature.max_version_level for feature in told.finalized_features}
        assert finalized["transaction.version"] == 2
        assert told.finalized_features_epoch >= 0


async def test_readers_of_committed_data_stop_at_an_open_transaction(client: TransactionalClient) -> None:
    assert await client.produce(b"a", b"b") is ErrorCode.NONE
    assert (await client.fetch()).last_stable_offset == 0
    assert not (await client.fetch()).records
    assert (await client.fetch(isolation=0)).records
    assert (await client.latest(READ_COMMITTED), await client.latest(0)) == (0, 2)
    await client.end(commit=True)
    while (data := await client.fetch()).last_stable_offset == 0:
        pass
    assert (data.last_stable_offset, data.high_watermark, data.aborted_transactions) == (3, 3, ())
    assert await client.latest(READ_COMMITTED) == 3


async def test_aborted_transactions_are_named(client: TransactionalClient) -> None:
    for commit in (False, True, False):
        assert await client.produce(b"a", b"b") is ErrorCode.NONE
        assert (await client.end(commit=commit)).error_code == ErrorCode.NONE
    while (data := await client.fetch()).last_stable_offset < 9:
        pass
    assert data.aborted_transactions is not None
    assert [(each.producer_id, each.first_offset) for each in data.aborted_transactions] == [
        (client.producer_id, 0),
        (client.producer_id, 6),
    ]
    assert (await client.fetch(isolation=0)).aborted_transactions is None
    tail = (await client.fetch(8)).aborted_transactions
    assert tail is not None
    assert [each.first_offset for each in tail] == [6]


async def test_version_2_gives_each_transaction_an_epoch(client: TransactionalClient) -> None:
    assert await client.produce(b"a") is ErrorCode.NONE
    assert await client.state() == "Ongoing"
    before = client.epoch
    await client.end(commit=True)
    assert client.epoch == before + 1
    client.sequence = 1
    late = await client.produce(b"late", epoch=before)
    assert late is ErrorCode.INVALID_PRODUCER_EPOCH
    client.sequence = 0
    assert await client.produce(b"next") is ErrorCode.NONE


async def test_version_1_must_name_partitions_first(client: TransactionalClient) -> None:
    assert await client.produce(b"a", version=9) is ErrorCode.INVALID_TXN_STATE
    assert await client.produce(b"a", version=V1) is ErrorCode.TRANSACTION_ABORTABLE
    assert await client.add(0, 1) == [ErrorCode.NONE] * 2
    assert await client.produce(b"a", version=9) is ErrorCode.NONE
    assert await client.produce(b"b", version=V1) is ErrorCode.NONE
    epoch = client.epoch
    assert (await client.end(commit=True, version=3)).error_code == ErrorCode.NONE
    assert client.epoch == epoch
    assert (await client.end(commit=True, version=3)).error_code in {
        ErrorCode.NONE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }, "repeated"
    assert await client.add(0) == [ErrorCode.NONE]
    assert await client.produce(b"c", version=9) is ErrorCode.NONE


@pytest.mark.parametrize("commit", [False, True])
async def test_a_sequence_number_of_an_ended_transaction_hides_no_record(
    client: TransactionalClient, *, commit: bool
) -> None:
    """As of librdkafka: the ack of a record was lost, an abort has dropped it, and the next one gets its number."""
    await client.add(0)
    assert await client.produce(b"a", version=9) is ErrorCode.NONE
    client.sequence = 0
    assert await client.produce(b"a", version=9) is ErrorCode.NONE, "repeated before the end"
    assert (await client.end(commit=commit, version=3)).error_code == ErrorCode.NONE
    await client.add(0)
    client.sequence = 0
    assert await client.produce(b"b", version=9) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert (await client.end(commit=False, version=3)).error_code == ErrorCode.NONE
    await client.init(producer_id=client.producer_id, producer_epoch=client.epoch)
    await client.add(0)
    assert await client.produce(b"b", version=9) is ErrorCode.NONE, "with the next epoch"
    assert await client.latest(isolation=0) == 4, "a, two markers, b"


async def test_what_a_transaction_cannot_take_in(client: TransactionalClient) -> None:
    unknown, rest = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert await client.add(0, 9) == [rest, unknown]
    assert await client.add(0, topic="none") == [unknown]
    assert await client.produce(b"a", name=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await client.produce(b"a", name="other") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_a_zombie_is_fenced_everywhere(client: TransactionalClient, node: Node) -> None:
    async with raw_client(node.bootstrap) as raw:
        zombie = await TransactionalClient(raw).open()
        assert await zombie.produce(b"a") is ErrorCode.NONE
        await client.init()
        assert await zombie.produce(b"b") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.produce(b"b", partition=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.add(1) == [ErrorCode.PRODUCER_FENCED]
        assert await zombie.add(1, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert (await zombie.end(commit=True)).error_code == ErrorCode.PRODUCER_FENCED
        assert (await zombie.end(commit=True, version=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.commit_offset(1) is ErrorCode.INVALID_PRODUCER_EPOCH
        old = {"producer_id": zombie.producer_id, "producer_epoch": zombie.epoch}
        assert (await zombie.init(**old)).error_code == ErrorCode.PRODUCER_FENCED
        assert (await zombie.init(3, **old)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_an_epoch_nobody_has_does_not_slip_into_an_open_transaction(client: TransactionalClient) -> None:
    """Such an epoch would make the transaction's marker look outdated and pin the last stable offset forever."""
    assert await client.produce(b"a") is ErrorCode.NONE
    sequence, client.sequence = client.sequence, 0
    for above in (1, 2, 1000):
        assert await client.produce(b"intruder", epoch=client.epoch + above) is ErrorCode.INVALID_PRODUCER_EPOCH
    client.sequence = sequence
    assert await client.produce(b"b") is ErrorCode.NONE
    assert (await client.end(commit=True)).error_code == ErrorCode.NONE
    async with asyncio.timeout(20):
        while await client.state() != "CompleteCommit":
            pass
    assert await client.latest(0) == await client.latest(READ_COMMITTED) == 3, "two records and the marker"


async def test_init_checks_what_it_is_asked(client: TransactionalClient) -> None:
    assert (await client.init(transaction_timeout_ms=900_001)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (await client.init(transaction_timeout_ms=0)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (await client.init(producer_id=5)).error_code == ErrorCode.INVALID_REQUEST
    client.name = ""
    assert (await client.init()).error_code == ErrorCode.INVALID_REQUEST
    assert (await client.end(commit=True)).error_code == ErrorCode.INVALID_REQUEST
    client.name = "unknown"
    assert (await client.end(commit=True)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_transaction_ends_once_it_is_known_whether_its_topic_was_deleted(
    client: TransactionalClient, node: Node, deleted: bool
) -> None:
    """Given up too early, its marker would be missing in a topic that is served again: open forever for readers."""
    assert await client.produce(b"a") is ErrorCode.NONE
    really = node.serving.catalog.delete_topics

    async def answer_lost(topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
        if deleted:
            await really(topic_ids, now_ms=now_ms, delete_after_ms=delete_after_ms)
        raise OutcomeUnknown("a commit was not answered")

    async def away(*, settled: bool = False) -> NoReturn:
        raise CatalogUnavailable("the catalog does not answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.serving.catalog, "delete_topics", answer_lost)
        patch.setattr(node.serving.catalog, "list_topics_and_detached", away)  # else the next beat resolves it
        with pytest.raises(OutcomeUnknown):
            await node.serving.topic_commands.delete("t")
        assert (await client.end(commit=True)).error_code == ErrorCode.NONE
        await node.serving.transactions.retry()
        with pytest.raises(CatalogUnavailable):
            await node.serving.membership.complete_changes()
        assert await client.state() == "PrepareCommit"
    await node.serving.membership.complete_changes()
    async with asyncio.timeout(20):
        while await client.state() != "CompleteCommit":
            pass
    if deleted:
        assert node.serving.topics.get("t") is None
    else:
        assert await client.latest(0) == await client.latest(READ_COMMITTED) == 2, "the record and the marker"


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_hold_when_the_transaction_commits(
    client: TransactionalClient, version: int, *, commit: bool
) -> None:
    if version < 5:
        assert await client.commit_offset(5, version=version) is ErrorCode.INVALID_TXN_STATE
        request = AddOffsetsToTxnRequest(
            transactional_id=client.name, producer_id=client.producer_id, producer_epoch=client.epoch, group_id="g"
        )
        assert (await client.raw.call(request, 3)).error_code == ErrorCode.NONE
    assert await client.commit_offset(5, version=version) is ErrorCode.NONE
    assert await client.offset() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert await client.offset(stable=False) == (ErrorCode.NONE, -1)
    await client.end(commit=commit, version=version)
    while (found := await client.offset())[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT:
        pass
    assert found == (ErrorCode.NONE, 5 if commit else -1)


async def test_offsets_of_a_stranger_are_refused(client: TransactionalClient) -> None:
    assert await client.commit_offset(5, member="nobody") in {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }


async def test_brokers_ask_for_many_transactions_at_once(client: TransactionalClient) -> None:
    await client.add(0)

    async def ask(partition: int, *, verify_only: bool, epoch: int = 0) -> ErrorCode:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=client.name,
            producer_id=client.producer_id,
            producer_epoch=client.epoch + epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name="t", partitions=[partition])],
        )
        response = await client.raw.call(AddPartitionsToTxnRequest(transactions=[transaction]), 5)
        (result,) = response.results_by_transaction
        return ErrorCode(result.topic_results[0].results_by_partition[0].partition_error_code)

    assert await ask(0, verify_only=True) is ErrorCode.NONE
    assert await ask(1, verify_only=True) is ErrorCode.TRANSACTION_ABORTABLE
    assert await ask(1, verify_only=False) is ErrorCode.NONE
    assert await ask(1, verify_only=True) is ErrorCode.NONE
    assert await ask(1, verify_only=True, epoch=1) is ErrorCode.PRODUCER_FENCED


async def test_tools_find_and_end_a_hanging_transaction(client: TransactionalClient) -> None:
    assert await client.produce(b"a") is ErrorCode.NONE
    asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 9])])
    found, missing = (await client.raw.call(asked, 0)).topics[0].partitions
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (producer,) = found.active_producers
    assert (producer.producer_id, producer.producer_epoch) == (client.producer_id, client.epoch)
    assert (producer.last_sequence, producer.current_txn_start_offset) == (0, 0)
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    written = await client.raw.call(WriteTxnMarkersRequest(markers=[marker]), 1)
    codes = [each.error_code for each in written.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await client.fetch()).last_stable_offset == 2
    (producer,) = (await client.raw.call(asked, 0)).topics[0].partitions[0].active_producers
    assert producer.current_txn_start_offset == -1


async def test_transactions_are_listed_and_described(client: TransactionalClient, node: Node) -> None:
    assert await client.produce(b"a", partition=1) is ErrorCode.NONE
    async with raw_client(node.bootstrap) as raw:
        await TransactionalClient(raw, "other").open()

    async def listed(version: int = 1, **fields: object) -> tuple[list[str], list[str]]:
        response = await client.raw.call(ListTransactionsRequest(**fields), version)  # type: ignore[arg-type] # by name
        states = sorted(f"{each.transactional_id} {each.transaction_state}" for each in response.transaction_states)
        return states, list(response.unknown_state_filters)

    assert await listed() == (["id Ongoing", "other Empty"], [])
    assert await listed(state_filters=["Empty", "Bogus"]) == (["other Empty"], ["Bogus"])
    assert await listed(producer_id_filters=[client.producer_id]) == (["id Ongoing"], [])
    assert "id Ongoing" not in (await listed(duration_filter=10**9))[0]
    asked = DescribeTransactionsRequest(transactional_ids=["id", "none"])
    described, unknown = (await client.raw.call(asked, 0)).transaction_states
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (described.producer_id, described.producer_epoch) == (client.producer_id, client.epoch)
    assert [(topic.topic, list(topic.partitions)) for topic in described.topics] == [("t", [1])]
    assert described.transaction_timeout_ms == 60_000


@pytest.mark.parametrize("clean", [True, False])
async def test_an_open_transaction_outlives_a_restart(tmp_path: Path, *, clean: bool) -> None:
    """Clean: all is in objects and snapshots. Killed: all is in the log."""
    with NodeProcess(tmp_path, topic_num_partitions=3) as node:
        async with raw_client(node.bootstrap) as raw:
            client = await TransactionalClient(raw).open()
            assert await client.produce(b"a", b"b") is ErrorCode.NONE
            assert (await client.end(commit=False)).error_code == ErrorCode.NONE
            assert await client.produce(b"c") is ErrorCode.NONE
            assert await client.commit_offset(7) is ErrorCode.NONE
        if clean:
            assert node.terminate() == 0
        else:
            node.kill9()
        node.start()
        async with raw_client(node.bootstrap) as raw:
            client.raw = raw
            data = await client.fetch()
            assert (data.last_stable_offset, data.high_watermark) == (3, 4)
            assert data.aborted_transactions is not None
            assert [each.first_offset for each in data.aborted_transactions] == [0]
            assert await client.offset() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
            while (ended := await client.end(commit=True)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                pass
            assert ended.error_code == ErrorCode.NONE
            while (await client.fetch()).last_stable_offset < 5:
                pass
            assert await client.offset() == (ErrorCode.NONE, 7)
