"""Transactions whose coordinator, partitions and groups are on two nodes; late and lost messages between these."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest

from anabranch.broker.kafka.coordination.internal_topics import TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.transactions import marker_router, markers
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.broker.node.net.exchange import Peer
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from anabranch.protocol.messages.write_txn_markers import (
    MarkerSender,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from anabranch.protocol.records import ControlType
from tests.broker.kafka.transactions.cluster import CALL_S, TOPICS, Client, Cluster, ClusterNode, segments
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

LATE_S = 3.0
"""Later than a call is given up, and than its repetition is answered."""
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
"""Partitions on node 0, where the coordinator is, and on node 1."""
NAMES = [name for name in map(str, range(100)) if partition_of(name, TOPICS[TRANSACTION_TOPIC]) == 0]
"""Transactional ids that node 0 coordinates."""
GROUP = next(name for name in map(str, range(100)) if partition_of(name, 2) == 1)
"""A group that node 1 coordinates."""
both_versions = pytest.mark.parametrize("adds", [True, False], ids=["version 1", "version 2"])


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        run_virtual(test(**arguments))

    return run


@asynccontextmanager
async def started() -> AsyncIterator[Cluster]:
    """Two nodes."""
    cluster = await Cluster(random.Random(1)).start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def client_of(cluster: Cluster, *, adds: bool, name: str = NAMES[0]) -> Client:
    return await Client(cluster, name, group=GROUP, adds=adds).opened()


def verdicts(cluster: Cluster, where: TopicPartition) -> list[tuple[list[bytes], bool | None]]:
    return [(each.values, each.committed) for each in segments(cluster.files[where])]


def refusal_of(request: WriteTxnMarkersRequest, code: int | None) -> WriteTxnMarkersResponse:
    """Return the response with a code for every partition; with None nothing is answered for."""
    if code is None:
        return WriteTxnMarkersResponse()
    results = [
        WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=[
                WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=[
                        WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )
        for marker in request.markers
    ]
    return WriteTxnMarkersResponse(markers=results)


def fate_of(
    message: type, *fates: tuple[list[float], float | None]
) -> Callable[[Any], tuple[list[float], float | None]]:
    """Return the fates of the first requests of a type; the others arrive at once and are answered."""
    left = list(fates)
    return lambda request: left.pop(0) if isinstance(request, message) and left else ([0.0], 0.0)


@both_versions
@pytest.mark.parametrize("commit", [True, False])
@virtual
async def test_a_transaction_ends_alike_on_both_nodes(*, adds: bool, commit: bool) -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=adds)
        for partition in (0, 1):
            assert await client.write(partition, b"v") is ErrorCode.NONE
        assert cluster.partition(THERE).last_stable_offset == 0
        assert await client.end(commit=commit) is ErrorCode.NONE
        await client.settled()
        assert verdicts(cluster, HERE) == verdicts(cluster, THERE) == [([b"v"], commit)]
        assert cluster.partition(THERE).last_stable_offset == 2


@both_versions
@pytest.mark.parametrize("commit", [True, False])
@virtual
async def test_offsets_of_a_group_on_another_node_are_part_of_the_transaction(*, adds: bool, commit: bool) -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=adds)
        assert await client.write(0, b"v") is ErrorCode.NONE
        assert await client.commit_offset(7) is ErrorCode.NONE
        assert client.committed_offset() is None
        assert await client.end(commit=commit) is ErrorCode.NONE
        await client.settled()
        assert client.committed_offset() == (7 if commit else None)


@virtual
async def test_an_open_transaction_is_not_verified_again() -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        assert await client.write(1, b"a") is ErrorCode.NONE
        assert await client.commit_offset(1) is ErrorCode.NONE
        before = len(cluster.network.sent)
        assert before == 2
        assert await client.write(1, b"b") is ErrorCode.NONE
        assert await client.commit_offset(2) is ErrorCode.NONE
        assert len(cluster.network.sent) == before


@virtual
async def test_what_was_not_added_is_refused_with_the_code_of_the_version() -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        assert await client.produce(1, b"a", version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert await client.produce(1, b"a", version=9) is ErrorCode.INVALID_TXN_STATE
        client.producer = client.producer._replace(epoch=client.producer.epoch + 1)
        assert await client.produce(1, b"a") is ErrorCode.INVALID_PRODUCER_EPOCH
        client.name = NAMES[1]
        assert await client.produce(1, b"a") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert cluster.files[THERE].batches == []


@both_versions
@virtual
async def test_without_the_coordinator_clients_are_told_to_try_again(*, adds: bool) -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=adds)
        assert not adds or await client.add(1) is ErrorCode.NONE
        cluster.network.fate = lambda _: ([], None)
        assert await client.produce(1, b"a") is ErrorCode.NOT_ENOUGH_REPLICAS
        client.producer = client.producer._replace(producer_id=client.producer.producer_id + 1)  # it has nothing open
        client.adds, version = False, 4 if adds else 5
        assert await client.commit_offset(2, version=version) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@both_versions
@virtual
async def test_a_lost_question_is_repeated(*, adds: bool) -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=adds)
        cluster.network.fate = fate_of(AddPartitionsToTxnRequest, ([0.0], None))
        assert await client.write(1, b"a") is ErrorCode.NONE
        assert len(cluster.network.sent) == 2


@both_versions
@virtual
async def test_markers_reach_a_node_that_was_away(*, adds: bool) -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=adds)
        assert await client.write(0, b"v") is ErrorCode.NONE
        assert await client.write(1, b"v") is ErrorCode.NONE
        cluster.kill(1)
        assert await client.end(commit=True) is ErrorCode.NONE
        await asyncio.sleep(30)
        assert client.status() is TransactionStatus.PREPARE_COMMIT
        assert verdicts(cluster, THERE) == [([b"v"], None)]
        await cluster.start_node(1)
        cluster.announce(lambda: 0.5)
        await client.settled()
        assert verdicts(cluster, THERE) == [([b"v"], True)]


@pytest.mark.parametrize("moves", [False, True])
@virtual
async def test_a_late_marker_does_not_end_the_next_transaction_of_its_epoch(*, moves: bool) -> None:
    """The first request is given up and repeated; then, within the next transaction, it arrives."""
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        assert await client.write(1, b"first") is ErrorCode.NONE
        cluster.network.fate = fate_of(WriteTxnMarkersRequest, ([LATE_S], 0.0))
        assert await client.end(commit=True) is ErrorCode.NONE
        if moves:  # the repetition goes to another node, and the late copy to one that has opened the partition anew
            await asyncio.sleep(CALL_S / 2)
            cluster.move(THERE, 0)
            cluster.announce(lambda: 0.0)
        await client.settled()
        assert verdicts(cluster, THERE) == [([b"first"], True)]
        if moves:
            cluster.move(THERE, 1)
            cluster.announce(lambda: 0.0)
            await asyncio.sleep(0.1)
        assert await client.write(1, b"second") is ErrorCode.NONE
        await asyncio.sleep(LATE_S)
        assert verdicts(cluster, THERE) == [([b"first"], True), ([b"second"], None)]
        assert await client.write(1, b"third") is ErrorCode.NONE
        assert await client.end(commit=False) is ErrorCode.NONE
        await client.settled()
        assert verdicts(cluster, THERE) == [([b"first"], True), ([b"second", b"third"], False)]


@pytest.mark.parametrize("next_ends", [False, True])
@virtual
async def test_nothing_is_appended_after_a_marker_that_came_before_the_answer(*, next_ends: bool) -> None:
    """The producer ends the transaction while the coordinator's answer, which allows the batch, is under way."""
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        assert await client.add(1) is ErrorCode.NONE
        cluster.network.fate = fate_of(AddPartitionsToTxnRequest, ([0.0], 0.8))
        late = asyncio.ensure_future(client.produce(1, b"late"))
        await asyncio.sleep(0.1)
        assert await client.end(commit=True) is ErrorCode.NONE
        await client.settled()
        if next_ends:  # another transaction with that partition ends, too
            assert await client.add(1) is ErrorCode.NONE
            assert await client.end(commit=True) is ErrorCode.NONE
            await client.settled()
        assert await late is ErrorCode.TRANSACTION_ABORTABLE
        assert verdicts(cluster, THERE) == []


@virtual
async def test_no_offset_is_appended_after_a_marker_that_came_before_the_answer() -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        cluster.network.fate = fate_of(AddPartitionsToTxnRequest, ([0.0], 0.8))
        late = asyncio.ensure_future(client.commit_offset(7))
        await until(lambda: bool(cluster.network.sent), pause_s=0.01)
        await asyncio.sleep(0.1)
        assert await client.end(commit=True) is ErrorCode.NONE
        await client.settled()
        assert await late is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        where = TopicPartition("__consumer_offsets", 1)
        assert not cluster.partition(where).transactions.open


@virtual
async def test_the_marker_of_the_previous_transaction_costs_a_batch_a_second_question_only() -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=False)
        assert await client.write(1, b"first") is ErrorCode.NONE
        cluster.network.fate = fate_of(WriteTxnMarkersRequest, ([0.3], 0.0))
        assert await client.end(commit=True) is ErrorCode.NONE
        assert await client.write(1, b"second") is ErrorCode.NONE
        assert await client.end(commit=False) is ErrorCode.NONE
        await client.settled()
        assert verdicts(cluster, THERE) == [([b"first"], True), ([b"second"], False)]


@virtual
async def test_a_coordinator_that_was_replaced_is_not_believed() -> None:
    """It has seen the transaction open. Its successor has ended it, and is not known to the partition's node yet."""
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        assert await client.write(1, b"a") is ErrorCode.NONE
        partition = cluster.partition(THERE)
        asked_at = asyncio.get_running_loop().time()
        durable = partition.append_marker(
            ControlType.COMMIT,
            producer_id=client.producer.producer_id,
            producer_epoch=client.producer.epoch,
            coordinator_epoch=cluster.files[TopicPartition(TRANSACTION_TOPIC, 0)].info.leader_epoch + 1,
        )
        assert durable is not None
        await durable
        assert await client.produce(1, b"late") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert asyncio.get_running_loop().time() > asked_at + 1, "it looks for the successor for a while"
        assert verdicts(cluster, THERE) == [([b"a"], True)]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 9999, None], ids=str)
@virtual
async def test_a_marker_is_repeated_until_its_leader_reports_it(*, code: int | None) -> None:
    """The leader has not heard of the topic, or its answer is of no use."""
    async with started() as cluster:
        client = await client_of(cluster, adds=False)
        assert await client.write(1, b"v") is ErrorCode.NONE
        node = cluster.nodes[1]
        refused: list[WriteTxnMarkersRequest] = []

        async def answer(request: Any, version: int, peer: Peer | None = None) -> Any:
            if not isinstance(request, WriteTxnMarkersRequest) or len(refused) == 3:
                return await ClusterNode.handle(node, request, version, peer)
            refused.append(request)
            return refusal_of(request, code)

        node.handle = answer  # type: ignore[method-assign]
        assert await client.end(commit=True) is ErrorCode.NONE
        await client.settled()
        assert len(refused) == 3
        assert verdicts(cluster, THERE) == [([b"v"], True)]


@virtual
async def test_a_coordinator_gives_up_markers_that_a_newer_one_has_written() -> None:
    async with started() as cluster:
        client = await client_of(cluster, adds=True)
        assert await client.write(1, b"v") is ErrorCode.NONE
        durable = cluster.partition(THERE).append_marker(
            ControlType.COMMIT,
            producer_id=client.producer.producer_id,
            producer_epoch=client.producer.epoch,
            coordinator_epoch=100,
        )
        assert durable is not None
        await durable
        assert await client.end(commit=True) is ErrorCode.NONE
        await client.settled()
        assert len(cluster.files[THERE].batches) == 2


@pytest.mark.parametrize(
    ("place", "admitted"),
    [((1, 5, 4), True), ((1, 5, 3), False), ((1, 4, 9), False), ((1, 6, 1), True), ((2, 1, 1), True)],
)
def test_requests_are_taken_in_the_order_of_their_sender(place: tuple[int, int, int], *, admitted: bool) -> None:
    writer = MarkerWriter(Any, Any)  # type: ignore[arg-type]
    assert writer.admit(MarkerSender(node_id=1, node_epoch=5, sequence=3))
    node_id, node_epoch, sequence = place
    assert writer.admit(MarkerSender(node_id=node_id, node_epoch=node_epoch, sequence=sequence)) is admitted


def test_only_so_many_senders_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "SENDERS_MAX", 2)
    writer = MarkerWriter(Any, Any)  # type: ignore[arg-type]
    senders = [MarkerSender(node_id=node_id, sequence=at) for at, node_id in enumerate((1, 2, 3, 2))]
    assert [writer.admit(sender) for sender in senders] == [True, True, False, True]


@virtual
async def test_markers_of_many_transactions_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_router, "MARKERS_PER_REQUEST_MAX", 4)
    async with started() as cluster:
        clients = [await client_of(cluster, adds=False, name=name) for name in NAMES[:10]]
        for client in clients:
            assert await client.write(1, b"v") is ErrorCode.NONE
        cluster.network.sent.clear()
        cluster.network.fate = fate_of(WriteTxnMarkersRequest, ([0.5], 0.0))
        for client in clients:
            assert await client.end(commit=True) is ErrorCode.NONE
        for client in clients:
            await client.settled()
        sizes = [len(request.markers) for _, request in cluster.network.sent]
        assert sum(sizes) == len(clients)
        assert max(sizes) == 4, "what comes while a request is under way goes with the next, up to the limit"
        assert [request.sender.sequence for _, request in cluster.network.sent] == list(range(1, len(sizes) + 1))
        assert len(segments(cluster.files[THERE])) == len(clients)
