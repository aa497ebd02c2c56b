"""OffsetForLeaderEpoch (KIP-320): end offset of an epoch, by which a client detects that the log was truncated."""

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(node: Node, request: OffsetForLeaderEpochRequest, _exchange: Exchange) -> OffsetForLeaderEpochResponse:
    """Look up every partition."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_lookup(node, topic.topic, requested) for requested in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _lookup(node: Node, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = node.topics.partition(topic, requested.partition)
        partition.check_leader_epoch(requested.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=requested.partition)
    epoch, end_offset = partition.epochs.end_offset_of(requested.leader_epoch, partition.high_watermark)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)
