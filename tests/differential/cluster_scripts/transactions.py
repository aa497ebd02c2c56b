"""Transactions in a cluster: partitions of several leaders, and requests to brokers that do not coordinate them."""

from anabranch.protocol.batch import TRANSACTIONAL_MASK
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
from tests.differential.cluster_script import NODES, ClusterScript
from tests.differential.scripts.transactions import in_turn
from tests.support.raw_client import batch_of

Producer = tuple[int, int]
"""Id and epoch."""
FOREVER = str(2**63 - 1)
COMPLETE = ("CompleteCommit", "CompleteAbort")


def _init(transactional_id: str, producer: Producer = (-1, -1), timeout_ms: int = 60_000) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )


def _begin(script: ClusterScript, transactional_id: str, node_id: int) -> Producer:
    answer = script.until(_init(transactional_id), 4, lambda answer: not answer.error_code, on=str(node_id))
    return answer.producer_id, answer.producer_epoch


def _add(transactional_id: str, producer: Producer, topic: str, *indexes: int) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=indexes)],
    )


def _verify(transactional_id: str, producer: Producer, topic: str, *indexes: int) -> AddPartitionsToTxnRequest:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=indexes)],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def _end(transactional_id: str, producer: Producer, *, committed: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )


def _produce(transactional_id: str, producer: Producer, topic: str, sequence: int, *indexes: int) -> ProduceRequest:
    batch = batch_of(
        b"in %d" % sequence,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        attributes=TRANSACTIONAL_MASK,
    )
    data = [PartitionProduceData(index=index, records=bytes(batch)) for index in indexes]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5000, topic_data=topics)


def _fetch(topic: str, index: int) -> FetchRequest:
    partition = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1, topics=topics)


def _ended(script: ClusterScript, transactional_id: str, node_id: int) -> None:
    """Wait until the markers are written: Apache Kafka answers before."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    script.until(request, 0, lambda answer: answer.transaction_states[0].transaction_state in COMPLETE, on=str(node_id))


def _read(script: ClusterScript, name: str, topic: str) -> None:
    """Record what each leader returns to readers of committed records."""
    for node_id in NODES:
        script.call(f"{name}, read at {node_id}", _fetch(topic, node_id - 1), 12, on=str(node_id))


def transactions_at_others(script: ClusterScript) -> None:
    """All requests about transactions, sent to each broker: only broker 2 coordinates the id."""
    script.place("xo-a", 1, 2, 3)
    name = script.key_at("xo", 2)
    producer = _begin(script, name, 2)
    for version in range(6):
        script.call("init at 1", _init(name), version, on="1")
        script.call("init at 3", _init(name, producer if version >= 3 else (-1, -1)), version, on="3")
    script.call_each("added", _add(name, producer, "xo-a", 0, 1, 2), 0, 1, 2, 3)
    script.call_each("verified", _verify(name, producer, "xo-a", 0, 1, 2), 4, 5)
    script.call_each("verified and refused", _verify(name, producer, "xo-x", 0), 4)
    add = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id="xo-group"
    )
    script.call_each("group added", add, 0, 1, 2, 3, 4)
    script.call_each("described", DescribeTransactionsRequest(transactional_ids=[name, "xo-unknown"]), 0)
    script.call_each("listed", ListTransactionsRequest(), 0, 1, own="xo-")
    script.call_each("listed by pattern", ListTransactionsRequest(transactional_id_pattern="xo-.*"), 2, own="xo-")
    for node_id in (1, 3):
        script.call(f"ended at {node_id}", _end(name, producer, committed=True), 0, 3, 4, on=str(node_id))
    script.call("ended at 2", _end(name, producer, committed=True), 0, on="2")
    _ended(script, name, 2)  # until then, Apache Kafka may answer that the transaction is being ended
    script.call("ended at 2 again", _end(name, producer, committed=True), 3, 4, on="2")
    script.call("ended at 1 in version 5", _end(name, producer, committed=True), 5, on="1")
    script.call("described at the end", DescribeTransactionsRequest(transactional_ids=[name]), 0, on="2")


def transactions_of_several_leaders(script: ClusterScript) -> None:
    """Version 1 of transactions over partitions of all brokers."""
    script.place("xs-a", 1, 2, 3, segment_ms=FOREVER)
    name = script.key_at("xs", 1)
    producer = _begin(script, name, 1)
    for node_id in NODES:
        request = _produce(name, producer, "xs-a", 0, node_id - 1)
        script.call(f"before it is added, at {node_id}", request, 9, 11, on=str(node_id))
    script.call("added", _add(name, producer, "xs-a", 0, 1, 2), 3)
    for node_id in NODES:
        script.call_each(f"produced to {node_id}", _produce(name, producer, "xs-a", 0, node_id - 1), 9)
    _read(script, "open", "xs-a")
    producers = DescribeProducersRequest(topics=[ProducersOf(name="xs-a", partition_indexes=[0, 1, 2])])
    script.call_each("producers", producers, 0)
    script.call("described", DescribeTransactionsRequest(transactional_ids=[name]), 0)
    script.call("committed", _end(name, producer, committed=True), 3)
    _ended(script, name, 1)
    _read(script, "committed", "xs-a")
    script.ask(_add(name, producer, "xs-a", 1, 2), 3)
    for node_id in (2, 3):
        script.ask(_produce(name, producer, "xs-a", 1, node_id - 1), 9, on=str(node_id))
    script.call("aborted", _end(name, producer, committed=False), 3)
    _ended(script, name, 1)
    _read(script, "aborted", "xs-a")
    script.ask(_init(name), 4)
    for node_id in NODES:
        request = _produce(name, producer, "xs-a", 1 if node_id == 1 else 2, node_id - 1)
        script.call(f"of the one before, at {node_id}", request, 9, on=str(node_id))


def transactions_2_of_several_leaders(script: ClusterScript) -> None:
    """Version 2 of transactions: the leaders add their partitions at the coordinator."""
    script.place("xv-a", 1, 2, 3, segment_ms=FOREVER)
    name = script.key_at("xv", 3)
    producer = _begin(script, name, 3)
    for committed in (True, False):
        what = "to be committed" if committed else "to be aborted"
        for node_id in NODES:
            request = _produce(name, producer, "xv-a", 0, node_id - 1)
            script.call(f"{what}, at {node_id}", request, 12, on=str(node_id))
        script.call(f"{what}, described", DescribeTransactionsRequest(transactional_ids=[name]), 0, on="3")
        ended = script.call(f"{what}, ended", _end(name, producer, committed=committed), 5, on="3")
        _ended(script, name, 3)
        _read(script, f"{what}, done", "xv-a")
        for node_id in NODES:
            request = _produce(name, producer, "xv-a", 1, node_id - 1)
            script.call(f"{what}, the epoch before, at {node_id}", request, 12, on=str(node_id))
        producer = ended.producer_id, ended.producer_epoch


def transaction_offsets_at_others(script: ClusterScript) -> None:
    """Offsets in a transaction, whose coordinators of group and transaction are different brokers."""
    topic_id = script.place("xg-a", 1)
    name, group = script.key_at("xg", 3), script.key_at("xg-group", 1)
    producer = _begin(script, name, 3)
    add = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id=group
    )

    def commit(offset: int, who: Producer = producer) -> TxnOffsetCommitRequest:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="note"
        )
        return TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=who[0],
            producer_epoch=who[1],
            topics=[TxnOffsetCommitRequestTopic(name="xg-a", topic_id=topic_id, partitions=[partition])],
        )

    stable = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name="xg-a", partition_indexes=[0])], require_stable=True
    )
    script.call("commit before the group is added", commit(1), 3, 4, on="1")
    script.call("group added", add, 3, on="3")
    for version in (*range(5), 6):
        script.call_each("commit", commit(10 + version), version)
    script.call("fetched while it is open", stable, 7, on="1")
    script.call("ended", _end(name, producer, committed=True), 3, on="3")
    _ended(script, name, 3)
    script.until(stable, 7, lambda answer: not answer.topics[0].partitions[0].error_code, on="1")
    script.call("fetched when it is committed", stable, 7, on="1")
    second = _begin(script, name, 3)
    script.call_each("version 5 adds the group", commit(77, second), 5)
    script.call_each("as version 6 does", commit(78, second), 6)
    script.call("fetched while that is open", stable, 7, on="1")
    script.call("aborted", _end(name, second, committed=False), 5, on="3")
    _ended(script, name, 3)
    script.until(stable, 7, lambda answer: not answer.topics[0].partitions[0].error_code, on="1")
    script.call("fetched when that is aborted", stable, 7, on="1")


def transactions_of_others_without_a_pause(script: ClusterScript) -> None:
    """Begin and end each transaction while another broker may still get the marker of the one before."""
    script.place("xp-a", 2, segment_ms=FOREVER)
    in_turn(script, script.key_at("xp", 1), "xp-a", to_coordinator="1", to_leader="2")


def transactions_of_all(script: ClusterScript) -> None:
    """Ids of all coordinators, named together in requests to each broker; and markers at brokers that do not lead."""
    script.place("xa-a", 1, 2, 3)
    ids = [script.key_at("xa", node_id) for node_id in NODES]
    for node_id, name in zip(NODES, ids, strict=True):
        producer = _begin(script, name, node_id)
        script.ask(_add(name, producer, "xa-a", 0, 1, 2), 3, on=str(node_id))
    script.call_each("described", DescribeTransactionsRequest(transactional_ids=ids), 0)
    script.call_each("listed", ListTransactionsRequest(), 0, 1, own="xa-")
    marker = WritableTxnMarker(
        producer_id=1 << 41,
        producer_epoch=0,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="xa-a", partition_indexes=[0, 1, 2])],
        coordinator_epoch=0,
    )
    script.call_each("a marker of nobody's", WriteTxnMarkersRequest(markers=[marker]), 1)


SCRIPTS = (
    transactions_at_others,
    transactions_of_several_leaders,
    transactions_2_of_several_leaders,
    transaction_offsets_at_others,
    transactions_of_others_without_a_pause,
    transactions_of_all,
)
