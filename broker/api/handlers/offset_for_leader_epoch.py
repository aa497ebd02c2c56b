"""OffsetForLeaderEpoch (KIP-320): end offset of an epoch, by which a client detects that the log was truncated."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TOPIC_DENIED, Passed, Verdict, merged, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import partitions
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


def handle(serving: Serving, request: OffsetForLeaderEpochRequest, _exchange: Exchange) -> OffsetForLeaderEpochResponse:
    """Look up every partition."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_lookup(serving, topic.topic, requested) for requested in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _lookup(serving: Serving, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = serving.topics.partition(topic, requested.partition)
        partition.check_leader_epoch(requested.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=requested.partition)
    epoch, end_offset = partition.epochs.end_offset_of(requested.leader_epoch, partition.high_watermark)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)


def guard(caller: Caller, request: OffsetForLeaderEpochRequest) -> Verdict:
    """Check CLUSTER_ACTION on the cluster, or DESCRIBE on each topic."""
    if caller.may_cluster(AclOperation.CLUSTER_ACTION, audited=False):
        return Passed(request)
    describable = caller.topics(AclOperation.DESCRIBE, (topic.topic for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.topic in describable)
    return merged(replace(request, topics=allowed), [_epochs(topic) for topic in denied])


def _epochs(topic: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[EpochEndOffset(error_code=TOPIC_DENIED, partition=each.partition) for each in topic.partitions],
    )


API = declare(
    OffsetForLeaderEpochRequest,
    handle,
    guard=guard,
    waits_for=partitions(
        lambda request: ((topic.topic, each.partition) for topic in request.topics for each in topic.partitions)
    ),
)
