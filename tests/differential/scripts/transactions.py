"""Transactions: their life cycle, errors, and administrators' requests about them."""

from collections.abc import Sequence
from typing import Any

from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest
from anabranch.protocol.messages.describe_producers import TopicRequest as ProducersOf
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
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
from tests.differential.answers import error_name
from tests.differential.script import MAIN, Script
from tests.differential.scripts.groups import coordinator as group_coordinator
from tests.support.raw_client import batch_of

FOREVER = str(2**63 - 1)
"""Apache Kafka begins a new segment after a batch dated back, and a Fetch response does not go past it."""
COMPLETE = ("CompleteCommit", "CompleteAbort")
ROUNDS = 10
CONCURRENT = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS)


def _init(
    transactional_id: str, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def _coordinator(script: Script) -> None:
    """Wait until transactions are coordinated."""
    script.until(FindCoordinatorRequest(key="any", key_type=1), 3, lambda answer: not answer.error_code)
    script.until(_init("any"), 3, lambda answer: not answer.error_code)


def _producer(script: Script, transactional_id: str) -> tuple[int, int]:
    answer = script.until(_init(transactional_id), 4, lambda answer: not answer.error_code)
    return answer.producer_id, answer.producer_epoch


def _add(
    transactional_id: str, producer: tuple[int, int], *topics: tuple[str, Sequence[int]]
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics],
    )


def _end(transactional_id: str, producer: tuple[int, int], *, committed: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )


def _produce(
    transactional_id: str | None, producer: tuple[int, int], topic: str, sequence: int, *values: bytes
) -> ProduceRequest:
    batch = batch_of(
        *values,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        attributes=TRANSACTIONAL_MASK,
    )
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])]
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5000, topic_data=data)


def _fetch(topic: str, isolation: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=isolation, topics=topics)


def _ended(script: Script, transactional_id: str) -> None:
    """Wait until the markers are written: Apache Kafka answers before."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    script.until(request, 0, lambda answer: answer.transaction_states[0].transaction_state in COMPLETE)


class TransactionalProducer:
    """Produces to partition 0 of a topic in transactions; nothing is noted."""

    def __init__(self, script: Script, transactional_id: str, topic: str) -> None:
        _coordinator(script)
        self._script = script
        self._id = transactional_id
        self._topic = topic
        self._producer = _producer(script, transactional_id)
        self._sequence = 0

    def produce(self, *values: bytes) -> None:
        """Produce a batch, which begins a transaction unless there is one."""
        for request, version in (
            (_add(self._id, self._producer, (self._topic, (0,))), 3),
            (_produce(self._id, self._producer, self._topic, self._sequence, *values), 9),
        ):
            self._script.ask(request, version)
        self._sequence += len(values)

    def end(self, *, committed: bool) -> None:
        """End the transaction, and wait for its markers."""
        self._script.ask(_end(self._id, self._producer, committed=committed), 3)
        _ended(self._script, self._id)


def _read(script: Script, name: str, topic: str) -> None:
    script.call(f"{name}, read uncommitted", _fetch(topic, 0), 12)
    script.call(f"{name}, read committed", _fetch(topic, 1), 12)


def transaction_life(script: Script) -> None:
    """Version 1 of transactions: the requests of a client without support for transaction.version 2."""
    _coordinator(script)
    script.topic("tl-a", 2, segment_ms=FOREVER)
    who = script.call("init", _init("tl"), 4)
    producer = (who.producer_id, who.producer_epoch)
    describe = DescribeTransactionsRequest(transactional_ids=["tl"])
    script.call("described when empty", describe, 0)
    script.call("end of nothing", _end("tl", producer, committed=True), 3)
    script.call("produce before it is added", _produce("tl", producer, "tl-a", 0, b"x"), 9)
    for version in range(4):
        script.call("add a partition", _add("tl", producer, ("tl-a", [0])), version)
    script.call("add an unknown topic", _add("tl", producer, ("tl-x", [0]), ("tl-a", [1])), 3)
    script.call("add an unknown partition", _add("tl", producer, ("tl-a", [9])), 3)
    script.call("produce", _produce("tl", producer, "tl-a", 0, b"one", b"two"), 9)
    script.call("produce again", _produce("tl", producer, "tl-a", 0, b"one", b"two"), 9)
    script.call("produce without its id", _produce(None, producer, "tl-a", 2, b"x"), 9)
    script.call("described", describe, 0)
    _read(script, "open", "tl-a")
    producers = DescribeProducersRequest(topics=[ProducersOf(name="tl-a", partition_indexes=[0, 1, 9])])
    script.call("producers", producers, 0)
    script.call("commit", _end("tl", producer, committed=True), 3)
    _ended(script, "tl")
    script.call("commit again", _end("tl", producer, committed=True), 1, 2, 3)
    script.call("abort what is committed", _end("tl", producer, committed=False), 3)
    _read(script, "committed", "tl-a")
    script.call("add for the next", _add("tl", producer, ("tl-a", [0])), 3)
    script.call("produce for the next", _produce("tl", producer, "tl-a", 2, b"three"), 9)
    script.call("abort", _end("tl", producer, committed=False), 3)
    _ended(script, "tl")
    _read(script, "aborted", "tl-a")
    script.call("described at the end", describe, 0)
    script.call("producers at the end", producers, 0)
    script.ask(_add("tl", producer, ("tl-a", [0])), 3)
    script.call("another with a number that was aborted", _produce("tl", producer, "tl-a", 2, b"four"), 9)
    script.ask(_end("tl", producer, committed=False), 3)
    _ended(script, "tl")
    _read(script, "without it", "tl-a")
    again = script.call("init again", _init("tl"), 4)
    script.call("the one before is fenced", _add("tl", producer, ("tl-a", [0])), 0, 2, 3)
    script.call("and cannot end", _end("tl", producer, committed=True), 0, 3)
    script.call("nor produce", _produce("tl", producer, "tl-a", 3, b"x"), 9)
    newest = (again.producer_id, again.producer_epoch)
    script.call("init with its epoch", _init("tl", producer_id=newest[0], epoch=newest[1]), 4)
    script.call("init with an old epoch", _init("tl", producer_id=newest[0], epoch=newest[1] - 1), 3, 4)
    script.call("init with another id", _init("tl", producer_id=newest[0] + 1_000_000, epoch=0), 3, 4)


def transaction_life_2(script: Script) -> None:
    """Version 2 of transactions (KIP-890): a produce adds its partition, and every end raises the epoch."""
    _coordinator(script)
    script.topic("tw-a", segment_ms=FOREVER)
    producer = _producer(script, "tw")
    script.call("produce adds", _produce("tw", producer, "tw-a", 0, b"one"), 12)
    script.call("described", DescribeTransactionsRequest(transactional_ids=["tw"]), 0)
    ended = script.call("commit", _end("tw", producer, committed=True), 5)
    _ended(script, "tw")
    _read(script, "committed", "tw-a")
    script.call("commit again with the old epoch", _end("tw", producer, committed=True), 5)
    producer = (ended.producer_id, ended.producer_epoch)
    script.call("produce in the next", _produce("tw", producer, "tw-a", 0, b"two"), 12)
    ended = script.call("abort", _end("tw", producer, committed=False), 5)
    _ended(script, "tw")
    _read(script, "aborted", "tw-a")
    script.call("produce with the old epoch", _produce("tw", producer, "tw-a", 1, b"x"), 11, 12)
    producer = (ended.producer_id, ended.producer_epoch)
    script.call("abort nothing", _end("tw", producer, committed=False), 5)
    _ended(script, "tw")
    script.call("commit nothing", _end("tw", producer, committed=True), 5)


def transactions_without_a_pause(script: Script) -> None:
    """Begin and end each transaction while the markers of the one before may be on their way."""
    _coordinator(script)
    script.topic("tp-a", segment_ms=FOREVER)
    in_turn(script, "tp", "tp-a", to_coordinator=MAIN, to_leader=MAIN)


def in_turn(script: Script, transactional_id: str, topic: str, *, to_coordinator: str, to_leader: str) -> None:
    """Repeat only what gets CONCURRENT_TRANSACTIONS, or its like, as clients do; note the answers after that."""
    answer = script.until(_init(transactional_id), 4, lambda answer: not answer.error_code, on=to_coordinator)

    def end(name: str, *, committed: bool) -> None:
        nonlocal answer
        request = _end(transactional_id, (answer.producer_id, answer.producer_epoch), committed=committed)
        answer = script.until(
            request, 5, lambda answer: answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS, on=to_coordinator
        )
        script.note(name, [error_name(answer.error_code), answer.producer_epoch])

    for number in range(ROUNDS):
        for committed in (True, False):
            name = f"{'commit' if committed else 'abort'} {number}"
            request = _produce(transactional_id, (answer.producer_id, answer.producer_epoch), topic, 0, name.encode())
            written = script.until(request, 12, lambda answer: _code(answer) not in CONCURRENT, on=to_leader)
            script.note(f"produce before {name}", error_name(_code(written)))
            end(name, committed=committed)
        end(f"abort nothing {number}", committed=False)


def _code(answer: Any) -> int:
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def transaction_refusals(script: Script) -> None:
    _coordinator(script)
    script.topic("tr-a")
    unknown = (1 << 40, 0)
    script.call("timeout too long", _init("tr", timeout_ms=10_000_000), 3, 5)
    script.call("timeout zero", _init("tr", timeout_ms=0), 3)
    script.call("timeout negative", _init("tr", timeout_ms=-1), 3)
    script.call("add for an unknown id", _add("tr-x", unknown, ("tr-a", [0])), 0, 3)
    script.call("end of an unknown id", _end("tr-x", unknown, committed=True), 0, 3, 4, 5)
    script.call("no id", _add("", unknown, ("tr-a", [0])), 3)
    producer = _producer(script, "tr")
    script.call("another producer id", _add("tr", unknown, ("tr-a", [0])), 3)
    script.call("a later epoch", _add("tr", (producer[0], producer[1] + 1), ("tr-a", [0])), 3)
    script.call("add nothing", _add("tr", producer), 3)
    script.call("produce of another id", _produce("tr-x", producer, "tr-a", 0, b"x"), 9)
    verify = AddPartitionsToTxnTransaction(
        transactional_id="tr",
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name="tr-a", partitions=[0])],
    )
    script.call("verify what is not added", AddPartitionsToTxnRequest(transactions=[verify]), 4, 5)
    script.ask(_add("tr", producer, ("tr-a", [0])), 3)
    script.call("verify what is added", AddPartitionsToTxnRequest(transactions=[verify]), 4, 5)
    describe = DescribeTransactionsRequest(transactional_ids=["tr-x", "tr", ""])
    script.call("described with an unknown one", describe, 0)
    script.call("described: none", DescribeTransactionsRequest(), 0)
    script.call(
        "producers of an unknown topic",
        DescribeProducersRequest(topics=[ProducersOf(name="tr-x", partition_indexes=[0])]),
        0,
    )
    marker = WritableTxnMarker(
        producer_id=1 << 41,
        producer_epoch=0,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in ("tr-a", "tr-x")],
        coordinator_epoch=0,
    )
    script.call("a marker of nobody's", WriteTxnMarkersRequest(markers=[marker]), 1)
    script.call("no markers", WriteTxnMarkersRequest(), 1, 2)


def transaction_lists(script: Script) -> None:
    _coordinator(script)
    script.topic("ts-a")
    empty = _producer(script, "ts-empty")
    open_one = _producer(script, "ts-open")
    script.ask(_add("ts-open", open_one, ("ts-a", [0])), 3)

    def listed(name: str, states: Sequence[str] = (), ids: Sequence[int] = (), **fields: Any) -> None:
        request = ListTransactionsRequest(state_filters=states, producer_id_filters=ids, **fields)
        script.call(name, request, *((1,) if fields else (0, 1)), own="ts-")

    listed("all")
    listed("empty", ["Empty"])
    listed("ongoing", ["Ongoing"])
    listed("in lower case", ["ongoing"])
    listed("in an unknown state", ["Nonsense", "Ongoing"])
    listed("only in an unknown state", ["Nonsense"])
    listed("by producer", (), [empty[0]])
    listed("by another producer", (), [1 << 42])
    listed("by both", ["Ongoing"], [empty[0]])
    listed("longer than an hour", duration_filter=3_600_000)
    for pattern in (
        None,
        "",
        "ts-open",
        "open",
        "ts-.*",
        "(?i)TS-OPEN",
        "ts-(open|empty)",
        "ts-[a-m]+",
        "ts.\\w{4}",
        "(",
        "[",
        "a**",
        "(?=ts)",
        "(a)\\1",
        "nothing",
    ):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        script.call(f"by the pattern {pattern}", request, 2, own="ts-")
    ongoing = ListTransactionsRequest(transactional_id_pattern="ts-.*", state_filters=["Ongoing"])
    script.call("by a pattern and a state", ongoing, 2, own="ts-")
    listed("longer than nothing", duration_filter=0)


def transaction_offsets(script: Script) -> None:
    _coordinator(script)
    group_coordinator(script)
    topic_id = script.topic("to-a")
    producer = _producer(script, "to")

    def add(name: str, group: str, *versions: int, who: tuple[int, int] = producer) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id="to", producer_id=who[0], producer_epoch=who[1], group_id=group
        )
        script.call(name, request, *versions)

    def commit(name: str, offset: int, *versions: int, **fields: Any) -> None:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=fields.pop("index", 0),
            committed_offset=offset,
            committed_leader_epoch=fields.pop("leader_epoch", -1),
            committed_metadata=fields.pop("note", "n"),
        )
        topic = TxnOffsetCommitRequestTopic(
            name=fields.pop("topic", "to-a"), topic_id=fields.pop("topic_id", topic_id), partitions=[partition]
        )
        who = fields.pop("who", producer)
        request = TxnOffsetCommitRequest(
            transactional_id="to",
            group_id=fields.pop("group", "to-group"),
            producer_id=who[0],
            producer_epoch=who[1],
            topics=[topic],
            **fields,
        )
        script.call(name, request, *versions)

    fetch = OffsetFetchRequest(
        group_id="to-group", topics=[OffsetFetchRequestTopic(name="to-a", partition_indexes=[0])], require_stable=True
    )
    plain = OffsetFetchRequest(group_id="to-group", topics=fetch.topics)
    add("add", "to-group", 0, 1, 2, 3, 4)
    add("add for a group without name", "", 3)
    add("add of an unknown producer", "to-group", 3, who=(1 << 40, 0))
    for version in range(7):
        commit("commit", 10 + version, version)
    commit("to an unknown topic", 1, 3, 6, topic="to-x", topic_id=b"\1" * 16)
    commit("to a topic without id", 1, 6, topic_id=bytes(16))
    commit("to an unknown partition", 1, 3, 6, index=9)
    commit("to a negative partition", 1, 3, 6, index=-1)
    commit("with too much metadata", 1, 3, 6, note="m" * 5000)
    commit("without metadata", 17, 6, note=None)
    commit("of a leader epoch", 18, 6, leader_epoch=3)
    commit("for a group without name", 1, 3, 6, group="")
    commit("of an unknown member", 1, 3, 5, 6, member_id="someone", generation_id_or_member_epoch=3)
    commit("of an unknown member of an unknown group", 1, 3, 5, 6, group="to-x", generation_id_or_member_epoch=3)
    commit("of an old epoch", 1, 3, 6, who=(producer[0], producer[1] - 1))
    commit("of an unknown producer", 1, 6, who=(1 << 40, 0))
    script.call("of several topics, some unknown", _several(producer, topic_id), 6)
    script.call("fetched while it is open", fetch, 7)
    script.call("fetched without heed", plain, 7)
    script.call("end", _end("to", producer, committed=True), 3)
    _ended(script, "to")
    script.until(fetch, 7, lambda answer: not answer.topics[0].partitions[0].error_code)
    script.call("fetched when it is committed", fetch, 7)
    ended = script.ask(_init("to"), 4)
    producer_2 = (ended.producer_id, ended.producer_epoch)
    commit("version 2 adds the group", 77, 5, who=producer_2)
    commit("by id, too", 78, 6, who=producer_2)
    script.call("fetched while that is open", fetch, 7)
    script.call("abort", _end("to", producer_2, committed=False), 5)
    _ended(script, "to")
    script.until(fetch, 7, lambda answer: not answer.topics[0].partitions[0].error_code)
    script.call("fetched when that is aborted", fetch, 7)
    ended = script.ask(_init("to"), 4)
    producer_3 = (ended.producer_id, ended.producer_epoch)
    commit("by id alone", 79, 6, who=producer_3)
    script.call("committed", _end("to", producer_3, committed=True), 5)
    _ended(script, "to")
    script.until(fetch, 7, lambda answer: not answer.topics[0].partitions[0].error_code)
    script.call("fetched when that is committed", fetch, 7)


def _several(producer: tuple[int, int], topic_id: bytes) -> TxnOffsetCommitRequest:
    """Commit to unknown topics, and to partitions that do and do not exist."""
    partitions = [TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=20) for index in (0, 9)]
    ids = (b"\1" * 16, topic_id, b"\2" * 16)
    return TxnOffsetCommitRequest(
        transactional_id="to",
        group_id="to-group",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(topic_id=each, partitions=partitions) for each in ids],
    )


SCRIPTS = (
    transaction_life,
    transaction_life_2,
    transactions_without_a_pause,
    transaction_refusals,
    transaction_lists,
    transaction_offsets,
)
