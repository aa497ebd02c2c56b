"""Requests about a partition to brokers that do not lead it."""

from typing import Any

from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest
from anabranch.protocol.messages.describe_producers import TopicRequest as ProducersOf
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.differential.cluster_script import NODES, ClusterScript
from tests.support.raw_client import batch_of

LARGE = 1 << 20
EVERY = (0, 1, 2)


def produce(topic: str | bytes, *indexes: int, acks: int = -1, value: bytes = b"x") -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=bytes(batch_of(value))) for index in indexes]
    wanted = (
        TopicProduceData(name=topic, partition_data=data)
        if isinstance(topic, str)
        else TopicProduceData(topic_id=topic, partition_data=data)
    )
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[wanted])


def produce_to_each(script: ClusterScript) -> None:
    topic_id = script.place("cw-a", 1, 2, 3)
    for version in range(3, 13):
        script.call_each("all partitions", produce("cw-a", *EVERY), version)
    script.call_each("all partitions by id", produce(topic_id, *EVERY), 13)
    script.call_each("one partition", produce("cw-a", 1), 9, 12)
    script.call_each("acks 1", produce("cw-a", *EVERY, acks=1), 11)
    script.call_each("an unknown partition", produce("cw-a", 1, 7), 9, 12)
    script.call_each("an unknown topic", produce("cw-x", 1), 9, 12)
    script.call_each("an unknown id", produce(b"\1" * 16, 1), 13)
    for node_id in NODES:
        script.ask_nothing(produce("cw-a", node_id - 1, acks=0), 9, on=str(node_id))
        script.call(f"after acks 0, at {node_id}", produce("cw-a", node_id - 1), 9, on=str(node_id))
    script.send(produce("cw-a", 1, acks=0), 9)
    script.call("after acks 0 at another", produce("cw-a", 0), 9)


def fetch(
    topic: str | bytes, *partitions: FetchPartition, wait_ms: int = 0, min_bytes: int = 0, **fields: Any
) -> FetchRequest:
    wanted = (
        FetchTopic(topic=topic, partitions=partitions)
        if isinstance(topic, str)
        else FetchTopic(topic_id=topic, partitions=partitions)
    )
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=LARGE, topics=[wanted], **fields)


def part(index: int, offset: int = 0, epoch: int = -1) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=LARGE, current_leader_epoch=epoch)


def fetch_from_each(script: ClusterScript) -> None:
    topic_id = script.place("cf-a", 1, 2, 3)
    for node_id in NODES:
        script.ask(produce("cf-a", node_id - 1), 9, on=str(node_id))
    every = [part(index) for index in EVERY]
    for version in range(4, 13):
        script.call_each("all partitions", fetch("cf-a", *every), version)
    for version in range(13, 19):
        script.call_each("all partitions by id", fetch(topic_id, *every), version)
    script.call_each("one partition", fetch("cf-a", part(1)), 4, 12)
    script.call_each("one partition by id", fetch(topic_id, part(1)), 15, 17)
    script.call_each("an unknown partition", fetch(topic_id, part(7), part(1)), 17)
    script.call_each("an unknown id", fetch(b"\1" * 16, part(0)), 17)
    script.call_each(
        "with a wait that the error ends",
        fetch(topic_id, *[part(index, 1) for index in EVERY], wait_ms=20_000, min_bytes=1000),
        17,
    )
    script.call_each("past the end", fetch(topic_id, part(1, 99)), 17)
    script.call_each("of a later epoch", fetch(topic_id, part(1, 0, 1 << 30)), 17)


def fetch_sessions_at_each(script: ClusterScript) -> None:
    topic_id = script.place("cs-a", 1, 2, 3)
    for node_id in NODES:
        script.ask(produce("cs-a", node_id - 1), 9, on=str(node_id))
    begin = fetch(topic_id, *[part(index) for index in (0, 2, 1)], session_epoch=0)
    begun = script.call("a session begins", begin, 17, on="2")
    go_on = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=LARGE, session_id=begun.session_id, session_epoch=1)
    script.call("it goes on", go_on, 17, on="2")
    script.call("at another broker", go_on, 17, on="1")
    forgotten = [ForgottenTopic(topic_id=topic_id, partitions=[0, 2])]
    last = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=LARGE,
        session_id=begun.session_id,
        session_epoch=2,
        forgotten_topics_data=forgotten,
    )
    script.call("without those that are led elsewhere", last, 17, on="2")


def offsets_of_each(script: ClusterScript) -> None:
    script.place("co-a", 1, 2, 3)

    def listed(timestamp: int, *indexes: int, topic: str = "co-a", epoch: int = -1) -> ListOffsetsRequest:
        asked = [
            ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
            for index in indexes
        ]
        return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])

    for version in range(1, 12):
        script.call_each("latest", listed(-1, *EVERY), version)
    script.call_each("earliest", listed(-2, *EVERY), 1, 11)
    script.call_each("by time", listed(1_600_000_000_000, *EVERY), 7)
    script.call_each("largest timestamp", listed(-3, *EVERY), 8)
    script.call_each("of a later epoch", listed(-1, 1, epoch=1 << 30), 7)
    script.call_each("unknown ones", listed(-1, 1, 7), 7)

    def end_of(
        epoch: int, current: int = -1, topic: str = "co-a", indexes: tuple[int, ...] = EVERY
    ) -> OffsetForLeaderEpochRequest:
        asked = [
            OffsetForLeaderPartition(partition=index, leader_epoch=epoch, current_leader_epoch=current)
            for index in indexes
        ]
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=asked)])

    script.call_each("end of an epoch", end_of(1 << 20), 2, 3, 4)
    script.call_each("end of an epoch, later current", end_of(1 << 20, 1 << 30), 4)
    script.call_each("end of an epoch of unknown ones", end_of(0, indexes=(1, 7)), 4)

    def delete(offset: int, *indexes: int, topic: str = "co-a") -> DeleteRecordsRequest:
        wanted = [DeleteRecordsPartition(partition_index=index, offset=offset) for index in indexes]
        return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=wanted)], timeout_ms=30_000)

    script.call_each("delete records", delete(0, *EVERY), 0, 1, 2)
    script.call_each("delete records of unknown ones", delete(0, 1, 7), 2)
    producers = DescribeProducersRequest(topics=[ProducersOf(name="co-a", partition_indexes=[*EVERY, 7])])
    script.call_each("producers", producers, 0)


def producer_ids(script: ClusterScript) -> None:
    """Ids of all brokers are distinct: the same one would have the same name twice in the answers."""
    for version in range(6):
        script.call_each("an id", InitProducerIdRequest(transaction_timeout_ms=1000), version)


SCRIPTS = (produce_to_each, fetch_from_each, fetch_sessions_at_each, offsets_of_each, producer_ids)
