"""The moments of a transaction and the requests that may follow, for any cluster that can be asked.

Each pair of a moment and a request has a transactional id of its own, whose transaction writes to a partition NEAR its
coordinator and includes a partition HELD. While the leader of that one is held, so is the end of the transaction.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.state_machine import EPOCH_LAST, VERSION_1, VERSION_2
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
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
from tests.support.raw_client import batch_of

TOPIC = "t"
NEAR, HELD = 0, 2
TIMEOUT_MS = 5_000
"""Timeout of the transactions that shall exceed it."""
LONG_MS = 900_000
TOPIC_IDS_SINCE = 13
PRODUCE_ADDS_SINCE = 12
S = TransactionStatus
PREPARED = {S.PREPARE_COMMIT.label, S.PREPARE_ABORT.label}
COMPLETE = {S.COMPLETE_COMMIT.label, S.COMPLETE_ABORT.label}


class Cluster(Protocol):
    """Brokers under test."""

    topic_id: bytes
    """Id of TOPIC."""
    group: str
    """Group whose offsets are committed."""
    group_partition: int
    """Its partition of `__consumer_offsets`."""

    async def begin(self, transactional_id: str, timeout_ms: int, epoch: int) -> Producer:
        """Return the producer of a new transactional id, with that epoch."""
        ...

    async def ask(self, request: Any, version: int) -> Any:
        """Send a request to the broker that it is for."""
        ...

    async def hold(self) -> None:
        """Hold the leader of the partition HELD, so that it writes no markers."""
        ...

    async def release(self) -> None:
        """Let it go on."""
        ...

    async def expire(self, transactional_ids: Collection[str]) -> None:
        """Have the transactional ids expire."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in the life of a transaction: how it ended, and whether its markers are written."""

    end: str
    version: int
    held: bool = False
    epoch: int = 0
    offsets: bool = False
    """The transaction has committed offsets, too."""

    def __str__(self) -> str:
        markers = ", markers out" if self.held else ""
        epoch = ", last epoch" if self.epoch else ""
        offsets = ", with offsets" if self.offsets else ""
        return f"{self.end}, version {1 if self.version == VERSION_1 else 2}{epoch}{markers}{offsets}"


ENDS = ("commit", "abort", "timeout", "fence")
MOMENTS = (
    Moment("begun", VERSION_1),
    Moment("open", VERSION_1),
    Moment("open", VERSION_2),
    *(Moment(end, version) for version in (VERSION_1, VERSION_2) for end in ENDS),
    *(Moment(end, version, held=True) for version in (VERSION_1, VERSION_2) for end in ENDS),
    *(Moment(end, VERSION_2, epoch=EPOCH_LAST) for end in ("begun", "open", "commit", "abort", "timeout", "fence")),
    *(Moment(end, VERSION_2, held=True, epoch=EPOCH_LAST) for end in ENDS),
    *(Moment(end, version, offsets=True) for version in (VERSION_1, VERSION_2) for end in ("open", *ENDS)),
    *(Moment(end, version, held=True, offsets=True) for version in (VERSION_1, VERSION_2) for end in ENDS),
)
EXPIRED = Moment("expire", VERSION_1)
"""Apart from the others, as Apache Kafka expires all ids after the same time."""


Build = Callable[[str, Producer, int], Any]
"""Makes a request from a transactional id, its producer and a version."""


class Question(NamedTuple):
    """A request that one of the producers sends: `build` makes it."""

    name: str
    who: str
    versions: Sequence[int]
    build: Build
    of_offsets: bool = False
    """Asked also when the transaction has committed offsets."""


class Life(NamedTuple):
    """A transactional id and its producers at the moment of a question."""

    name: str
    old: Producer
    """The producer of the transaction."""
    next: Producer | None
    """The producer of the next one, where it differs and is known."""

    def producer(self, who: str) -> Producer | None:
        if who == "other":
            return Producer(self.old.producer_id + (1 << 50), self.old.epoch)
        return self.old if who == "old" else self.next


def _init(name: str, producer: Producer, _version: int) -> Any:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=LONG_MS,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _anew(name: str, _producer: Producer, version: int) -> Any:
    return _init(name, Producer(-1, -1), version)


def _add(name: str, producer: Producer, _version: int) -> Any:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[NEAR, HELD])],
    )


def _of_broker(*, verify_only: bool) -> Build:
    def build(name: str, producer: Producer, _version: int) -> Any:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[NEAR, HELD])],
        )
        return AddPartitionsToTxnRequest(transactions=[transaction])

    return build


def _end(*, commit: bool) -> Build:
    def build(name: str, producer: Producer, _version: int) -> Any:
        return EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )

    return build


def _produce(topic_id: bytes, sequence: int) -> Build:
    def build(name: str, producer: Producer, version: int) -> Any:
        batch = batch_of(
            b"value",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        topic = {"topic_id": topic_id} if version >= TOPIC_IDS_SINCE else {"name": TOPIC}
        partitions = [PartitionProduceData(index=NEAR, records=memoryview(bytearray(batch)))]
        data = TopicProduceData(**topic, partition_data=partitions)
        return ProduceRequest(transactional_id=name, acks=-1, timeout_ms=5000, topic_data=[data])

    return build


def _add_offsets(group: str) -> Build:
    def build(name: str, producer: Producer, _version: int) -> Any:
        return AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id=group
        )

    return build


def _commit_offsets(topic_id: bytes, group: str) -> Build:
    def build(name: str, producer: Producer, _version: int) -> Any:
        partition = TxnOffsetCommitRequestPartition(partition_index=NEAR, committed_offset=7)
        return TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, topic_id=topic_id, partitions=[partition])],
        )

    return build


def _abort_by_marker(_name: str, producer: Producer, _version: int) -> Any:
    """Build what an administrator sends to the leader of a partition to end a hanging transaction."""
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[NEAR])],
        coordinator_epoch=-1,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def _describe(name: str, _producer: Producer, _version: int) -> Any:
    return DescribeTransactionsRequest(transactional_ids=[name])


def _questions(topic_id: bytes, group: str) -> Iterator[Question]:
    """Yield all requests; `topic_id` is that of TOPIC."""
    yield Question("InitProducerId", "old", range(6), _anew)
    for who in ("old", "next", "other"):
        yield Question("InitProducerId with its producer", who, range(3, 6), _init)
        yield Question("AddPartitionsToTxn", who, range(4), _add)
        yield Question("EndTxn to commit", who, range(6), _end(commit=True))
        yield Question("EndTxn to abort", who, range(6), _end(commit=False))
    for who in ("old", "next"):
        yield Question("AddPartitionsToTxn of a broker", who, range(4, 6), _of_broker(verify_only=False))
        yield Question("AddPartitionsToTxn of a broker to verify", who, range(4, 6), _of_broker(verify_only=True))
        yield Question("AddOffsetsToTxn", who, range(5), _add_offsets(group), of_offsets=True)
        yield Question("TxnOffsetCommit", who, range(7), _commit_offsets(topic_id, group), of_offsets=True)
        yield Question("Produce", who, range(3, 14), _produce(topic_id, int(who == "old")))
        yield Question("WriteTxnMarkers to abort", who, range(1, 3), _abort_by_marker)
    yield Question("DescribeTransactions", "old", range(1), _describe)


def _code(response: Any) -> ErrorCode:
    """Return the error code for the request, or for its first partition."""
    match response:
        case response if hasattr(response, "results_by_transaction") and response.results_by_transaction:
            (transaction,) = response.results_by_transaction
            return ErrorCode(transaction.topic_results[0].results_by_partition[0].partition_error_code)
        case response if hasattr(response, "results_by_topic_v3_and_below"):
            results = response.results_by_topic_v3_and_below
            return ErrorCode(
                results[0].results_by_partition[0].partition_error_code if results else response.error_code
            )
        case response if hasattr(response, "transaction_states"):
            return ErrorCode(response.transaction_states[0].error_code)
        case response if hasattr(response, "markers"):
            return ErrorCode(response.markers[0].topics[0].partitions[0].error_code)
        case response if hasattr(response, "topics"):
            return ErrorCode(response.topics[0].partitions[0].error_code)
        case response if hasattr(response, "responses"):
            return ErrorCode(response.responses[0].partition_responses[0].error_code)
    return ErrorCode(response.error_code)


def _told(response: Any, old: Producer) -> str:
    """Return the answer in words: the error's name, or how the producer in it differs from the old one."""
    code = _code(response)
    if not code and hasattr(response, "transaction_states"):
        return _described(response.transaction_states[0], old)
    if code or getattr(response, "producer_id", -1) < 0:
        return code.name
    if response.producer_id != old.producer_id:
        return f"NONE, new id, epoch {response.producer_epoch}"
    return f"NONE, epoch {response.producer_epoch - old.epoch:+}"


def _described(state: TransactionState, old: Producer) -> str:
    """Return a transaction in words."""
    is_new = state.producer_id != old.producer_id
    epoch = f"new id, epoch {state.producer_epoch}" if is_new else f"epoch {state.producer_epoch - old.epoch:+}"
    partitions = sorted(f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions)
    return " ".join([f"{state.transaction_state}, {epoch}", *partitions])


async def _begin(cluster: Cluster, moment: Moment, name: str) -> Producer:
    """Bring a new id to the state before the moment's end."""
    producer = await cluster.begin(name, TIMEOUT_MS if moment.end == "timeout" else LONG_MS, moment.epoch)
    if moment.end == "begun":
        return producer
    version_1 = moment.version == VERSION_1
    steps = [(_add, 3) if version_1 else (_of_broker(verify_only=False), 5)]
    steps.append((_produce(cluster.topic_id, 0), PRODUCE_ADDS_SINCE - version_1))
    if moment.offsets and version_1:
        steps.append((_add_offsets(cluster.group), 3))
    if moment.offsets:
        steps.append((_commit_offsets(cluster.topic_id, cluster.group), 3 if version_1 else 5))
    for build, version in steps:
        response = await cluster.ask(build(name, producer, version), version)
        assert not _code(response), (moment, response)
    return producer


async def _finish(cluster: Cluster, moment: Moment, name: str, old: Producer) -> Life:
    """End the transaction, as its own producer or as its successor."""
    following: Producer | None = None
    if moment.end in {"commit", "abort", "expire"}:
        version = 3 if moment.version == VERSION_1 else 5
        response = await cluster.ask(_end(commit=moment.end != "abort")(name, old, version), version)
        assert not response.error_code, (moment, response)
        if moment.version == VERSION_2:
            following = Producer(response.producer_id, response.producer_epoch)
    elif moment.end == "fence" and moment.held:
        response = await cluster.ask(_anew(name, old, 4), 4)
        assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS, (moment, response)
    elif moment.end == "fence":
        while (response := await cluster.ask(_anew(name, old, 4), 4)).error_code:
            assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            await asyncio.sleep(0.01)
        following = Producer(response.producer_id, response.producer_epoch)
    if (moment.end == "timeout" or (moment.end == "fence" and moment.held)) and not moment.epoch:
        following = Producer(old.producer_id, old.epoch + 1)
    return Life(name, old, following)


async def _until(cluster: Cluster, names: Sequence[str], states: Collection[str]) -> None:
    """Wait until the transactional ids are in one of the states."""
    request = DescribeTransactionsRequest(transactional_ids=names)
    while True:
        found = (await cluster.ask(request, 0)).transaction_states
        if all(each.transaction_state in states for each in found):
            return
        await asyncio.sleep(0.02)


async def _until_marked(cluster: Cluster, topic: str, index: int, producers: Collection[Producer]) -> None:
    """Wait until their transactions have ended there: a coordinator tells of an end before it sends the markers."""
    ids = {producer.producer_id for producer in producers}
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[index])])
    while True:
        (partition,) = (await cluster.ask(request, 0)).topics[0].partitions
        assert not partition.error_code, partition
        found = [producer for producer in partition.active_producers if producer.producer_id in ids]
        if all(producer.current_txn_start_offset < 0 for producer in found):
            return
        await asyncio.sleep(0.02)


async def _until_all_but_one_are_marked(cluster: Cluster, names: Sequence[str]) -> None:
    """Wait until the coordinator knows that only HELD has no marker, which it hears after a marker is written."""
    request = DescribeTransactionsRequest(transactional_ids=names)
    while True:
        found = (await cluster.ask(request, 0)).transaction_states
        if all([(topic.topic, *topic.partitions) for topic in each.topics] == [(TOPIC, HELD)] for each in found):
            return
        await asyncio.sleep(0.02)


Answers = dict[str, dict[str, dict[int, str]]]
"""Answers by moment, request and version."""


async def ask_all(
    cluster: Cluster,
    moments: Sequence[Moment],
    name_of: Callable[[str], str],
    *,
    versions: Callable[[Sequence[int]], Sequence[int]] = lambda versions: versions,
) -> Answers:
    """Ask everything at each of the moments. `name_of` makes a transactional id of a name."""
    found: Answers = {}
    questions = list(_questions(cluster.topic_id, cluster.group))
    for moment in moments:
        asked = [
            (question, version)
            for question in questions
            if question.of_offsets or not moment.offsets
            for version in versions(question.versions)
        ]
        names = [name_of(f"{moment} {question.name} {question.who} {version} ") for question, version in asked]
        producers = await asyncio.gather(*(_begin(cluster, moment, name) for name in names))
        if moment.held:
            await cluster.hold()
        lives = await asyncio.gather(
            *(_finish(cluster, moment, name, old) for name, old in zip(names, producers, strict=True))
        )
        if moment.end in {"commit", "abort", "expire", "timeout"} or moment.held:
            await _until(cluster, names, PREPARED if moment.held else COMPLETE)
            await _until_marked(cluster, TOPIC, NEAR, producers)
            if moment.offsets:
                await _until_marked(cluster, OFFSETS_TOPIC, cluster.group_partition, producers)
            if moment.held:
                await _until_all_but_one_are_marked(cluster, names)
        if moment.end == "expire":
            await cluster.expire(names)
        told = await asyncio.gather(
            *(
                _ask(cluster, moment, question, version, life)
                for (question, version), life in zip(asked, lives, strict=True)
            )
        )
        answers = found.setdefault(str(moment), {})
        for (question, version), answer in zip(asked, told, strict=True):
            if answer is not None:
                answers.setdefault(f"{question.name}, {question.who}", {})[version] = answer
        if moment.held:
            await cluster.release()
            await _until(cluster, names, {status.label for status in S} - PREPARED)
    return found


async def _ask(cluster: Cluster, moment: Moment, question: Question, version: int, life: Life) -> str | None:
    """Return the answer, or None if the request has no sender at that moment.

    A request that aborts a transaction first is repeated, as clients do: a node may wait for the end of the abort.
    """
    producer = life.producer(question.who)
    if producer is None:
        return None
    while True:
        response = await cluster.ask(question.build(life.name, producer, version), version)
        if moment.held or _code(response) != ErrorCode.CONCURRENT_TRANSACTIONS:
            return _told(response, life.old)
        await asyncio.sleep(0.01)


def to_text(answers: Answers) -> str:
    """Write answers, one line for each request, with the versions that share an answer together."""
    lines = []
    for moment, requests in answers.items():
        lines.append(f"# {moment}")
        for request, by_version in requests.items():
            groups: list[tuple[int, int, str]] = []
            for version, answer in sorted(by_version.items()):
                if groups and groups[-1][2] == answer and groups[-1][1] == version - 1:
                    groups[-1] = (groups[-1][0], version, answer)
                else:
                    groups.append((version, version, answer))
            lines.append(f"{request}: " + "; ".join(f"v{first}-{last} {answer}" for first, last, answer in groups))
    return "\n".join(lines) + "\n"


def from_text(text: str) -> Answers:
    """Read answers."""
    found: Answers = {}
    requests: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            requests = found.setdefault(line[2:], {})
            continue
        request, _, groups = line.partition(": ")
        by_version = requests.setdefault(request, {})
        for group in groups.split("; "):
            versions, _, answer = group.partition(" ")
            first, _, last = versions[1:].partition("-")
            by_version.update(dict.fromkeys(range(int(first), int(last) + 1), answer))
    return found
