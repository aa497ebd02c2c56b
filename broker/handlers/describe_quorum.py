"""DescribeQuorum: the living nodes as voters, led by the controller.

The catalog replaces Kafka's metadata log: its offset is the number of the last change that this node has seen.
"""

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
    now_ms, version, members = node.now_ms(), node.follower.version, node.members
    controller = members.get(members.controller_id)
    assert controller is not None, "it is one of the living nodes"
    partition = PartitionDataResponse(
        error_message="",
        leader_id=controller.node_id,
        leader_epoch=controller.epoch,
        high_watermark=version,
        current_voters=[
            ReplicaState(
                replica_id=member.node_id,
                log_end_offset=version,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for member in members.living()
        ],
    )
    return DescribeQuorumResponse(
        error_message="",
        topics=(TopicDataResponse(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,)),),
        nodes=[_node(member) for member in members.living()] if exchange.api_version >= NODES_SINCE else (),
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
