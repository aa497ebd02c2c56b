"""OffsetCommit: store committed offsets of a group. Answered when they are durable.

Since consumers commit often, the request needs no task, and commits of one turn of the loop share one record batch.
"""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, Passed, Refused, Verdict, split, topic_error
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

MEMBER_EPOCH_VERSION = 9
"""First version in which members of consumer groups may commit (KIP-848)."""
TOPIC_ID_VERSION = 10
NO_RETENTION_MS = -1
TIMESTAMP_MAX_MS = (1 << 63) - 1

Refusals = dict[tuple[int, int], ErrorCode]
"""Errors by position of topic and partition in the request. The others get the outcome of the write."""


def handle(serving: Serving, request: OffsetCommitRequest, exchange: Exchange) -> OffsetCommitResponse | None:
    """Check every partition, pass the valid ones to the group. None: answered later."""
    offsets, refused = _plan(serving, request, exchange.api_version)
    if not offsets:
        return _response(request, refused, ErrorCode.NONE)
    try:
        serving.groups.shard(request.group_id).offsets.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            offsets,
            lambda error: exchange.complete(_response(request, refused, _commit_error(error))),
            knows_member_epochs=exchange.api_version >= MEMBER_EPOCH_VERSION,
        )
    except KafkaError as error:
        return _response(request, refused, error.code)
    return None


def _plan(
    serving: Serving, request: OffsetCommitRequest, version: int
) -> tuple[list[tuple[TopicPartition, CommittedOffset]], Refusals]:
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: Refusals = {}
    now_ms = serving.now_ms()
    retention_ms = request.retention_time_ms
    expire_timestamp_ms = -1 if retention_ms == NO_RETENTION_MS else min(now_ms + retention_ms, TIMESTAMP_MAX_MS)
    metadata_bytes_max = serving.settings.group.offset_metadata_bytes_max
    for topic_index, requested in enumerate(request.topics):
        topic = _topic(serving, requested, version)
        for partition_index, partition in enumerate(requested.partitions):
            if error := _check(topic, partition, version, metadata_bytes_max):
                refused[topic_index, partition_index] = error
                continue
            assert topic is not None, "partitions of unknown topics are refused"
            committed = CommittedOffset(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_timestamp_ms,
            )
            offsets.append((TopicPartition(topic.name, partition.partition_index), committed))
    return offsets, refused


def _topic(serving: Serving, requested: OffsetCommitRequestTopic, version: int) -> Topic | None:
    return serving.topics.get(requested.topic_id if version >= TOPIC_ID_VERSION else requested.name)


def _check(
    topic: Topic | None, partition: OffsetCommitRequestPartition, version: int, metadata_bytes_max: int
) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_ID_VERSION else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # As in Kafka, characters are counted, although the setting's name says bytes.
    if len(partition.committed_metadata or "") > metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _commit_error(error: ErrorCode) -> ErrorCode:
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error == ErrorCode.MESSAGE_TOO_LARGE else error


def _response(request: OffsetCommitRequest, refused: Refusals, error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=refused.get((topic_index, partition_index), error),
                    )
                    for partition_index, partition in enumerate(topic.partitions)
                ],
            )
            for topic_index, topic in enumerate(request.topics)
        ]
    )


def guard(caller: Caller, request: OffsetCommitRequest) -> Verdict:
    """Check READ on the group and on each topic."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(OffsetCommitResponse(topics=[_uncommitted(each, GROUP_DENIED) for each in request.topics]))
    codes = {id(topic): topic_error(caller, AclOperation.READ, topic) for topic in request.topics}
    allowed, refused = split(request.topics, lambda topic: codes[id(topic)] is ErrorCode.NONE)
    errors = [_uncommitted(topic, codes[id(topic)]) for topic in refused]
    if not errors:
        return Passed(request)
    if not allowed:
        return Refused(OffsetCommitResponse(topics=errors))

    def amend(response: OffsetCommitResponse) -> OffsetCommitResponse:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend)


def _uncommitted(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


API = declare(
    OffsetCommitRequest,
    handle,
    guard=guard,
    waits_for=group,
    relayed=True,
    local_version=9,  # the newest that names topics by name
)
