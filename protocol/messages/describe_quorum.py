"""DescribeQuorum: the state of the metadata quorum (KIP-595, KIP-836, KIP-853).

Versions:
    v0  first version. flexible
    v1  response adds topics.partitions.current_voters.last_fetch_timestamp,
        topics.partitions.current_voters.last_caught_up_timestamp, topics.partitions.observers.last_fetch_timestamp,
        topics.partitions.observers.last_caught_up_timestamp
    v2  response adds error_message, topics.partitions.error_message,
        topics.partitions.current_voters.replica_directory_id, topics.partitions.observers.replica_directory_id, nodes
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 55


@message
class PartitionData:
    partition_index: int = wire.int32("0+")


@message
class TopicData:
    topic_name: str = wire.string("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: Sequence[TopicData] = wire.array(TopicData, "0+")


@message
class ReplicaState:
    replica_id: int = wire.int32("0+")
    replica_directory_id: bytes = wire.uuid("2+")
    log_end_offset: int = wire.int64("0+")
    last_fetch_timestamp: int = wire.int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = wire.int64("1+", default=-1, ignorable=True)


@message
class PartitionDataResponse:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("2+", nullable="2+", ignorable=True)
    leader_id: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    high_watermark: int = wire.int64("0+")
    current_voters: Sequence[ReplicaState] = wire.array(ReplicaState, "0+")
    observers: Sequence[ReplicaState] = wire.array(ReplicaState, "0+")


@message
class TopicDataResponse:
    topic_name: str = wire.string("0+")
    partitions: Sequence[PartitionDataResponse] = wire.array(PartitionDataResponse, "0+")


@message
class Listener:
    name: str = wire.string("2+")
    host: str = wire.string("2+")
    port: int = wire.uint16("2+")


@message
class Node:
    node_id: int = wire.int32("2+")
    listeners: Sequence[Listener] = wire.array(Listener, "2+")


@message(versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("2+", nullable="2+", ignorable=True)
    topics: Sequence[TopicDataResponse] = wire.array(TopicDataResponse, "0+")
    nodes: Sequence[Node] = wire.array(Node, "2+")
