"""DescribeQuorum: the living nodes as voters, the controller as their leader.

The catalog replaces Kafka's metadata log. All offsets are the number of the last change that this node has seen, so
that no voter lags.
"""

from collections.abc import Sequence

from broker.cluster.members import Member
from broker.net.exchange import Exchange
from broker.node import Node
from broker.topics.names import CLUSTER_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages import describe_quorum
from protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    PartitionDataResponse,
    ReplicaState,
    TopicData,
    TopicDataResponse,
)

LISTENER = "PLAINTEXT"
NODES_SINCE = 2


def handle(node: Node, request: DescribeQuorumRequest, exchange: Exchange) -> DescribeQuorumResponse:
    """Describe partition 0 of the metadata log. A request for anything else is refused."""
    requested = [
        (topic.topic_name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    if requested != [(CLUSTER_METADATA_TOPIC, 0)]:
        return DescribeQuorumResponse(
            error_message="", topics=[_unknown(topic, exchange.api_version) for topic in request.topics]
        )
    living = node.members.living()
    partition = _describe(living, node.members.controller_id, node.follower.version, node.now_ms())
    return DescribeQuorumResponse(
        error_message="",
        topics=(TopicDataResponse(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,)),),
        nodes=[_node(member) for member in living] if exchange.api_version >= NODES_SINCE else (),
    )


def _describe(living: Sequence[Member], leader_id: int, end_offset: int, now_ms: int) -> PartitionDataResponse:
    """Describe the quorum of the living nodes, all of which have reached `end_offset`."""
    return PartitionDataResponse(
        error_message="",
        leader_id=leader_id,
        leader_epoch=next(member.epoch for member in living if member.node_id == leader_id),
        high_watermark=end_offset,
        current_voters=[
            ReplicaState(
                replica_id=member.node_id,
                log_end_offset=end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for member in living
        ],
    )


def _node(member: Member) -> describe_quorum.Node:
    listener = Listener(name=LISTENER, host=member.host, port=member.port)
    return describe_quorum.Node(node_id=member.node_id, listeners=(listener,))


def _unknown(topic: TopicData, version: int) -> TopicDataResponse:
    message = "This server does not host this topic-partition." if version >= NODES_SINCE else ""
    return TopicDataResponse(
        topic_name=topic.topic_name,
        partitions=[
            PartitionDataResponse(
                partition_index=partition.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=message,
            )
            for partition in topic.partitions
        ],
    )
