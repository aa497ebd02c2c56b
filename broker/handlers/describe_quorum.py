"""DescribeQuorum: this node as the one voter.

The catalog replaces Kafka's metadata log, so all offsets are 0 and no voter lags.
"""

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
    now_ms = node.now_ms()
    voter = ReplicaState(replica_id=node.node_id, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms)
    partition = PartitionDataResponse(
        error_message="",
        leader_id=node.node_id,
        leader_epoch=node.node_epoch,
        current_voters=(voter,),
    )
    listener = Listener(name=LISTENER, host=node.advertised.host, port=node.advertised.port)
    return DescribeQuorumResponse(
        error_message="",
        topics=(TopicDataResponse(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,)),),
        nodes=(
            (describe_quorum.Node(node_id=node.node_id, listeners=(listener,)),)
            if exchange.api_version >= NODES_SINCE
            else ()
        ),
    )


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
