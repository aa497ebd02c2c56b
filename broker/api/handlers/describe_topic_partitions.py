"""DescribeTopicPartitions (KIP-966): topics page by page."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TOPIC_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import TOPIC_OPERATIONS
from anabranch.broker.api.handlers.leadership import NO_LEADER, leadership_of
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.kafka.topics.names import check_topic_name
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)

PARTITIONS_MAX = 2000
"""Kafka's default of `max.request.partition.size.limit`."""


def handle(
    serving: Serving, request: DescribeTopicPartitionsRequest, exchange: Exchange
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, from the cursor on, up to the limit of partitions."""
    names = sorted({topic.name for topic in request.topics}) or [topic.name for topic in serving.topics]
    first_index = 0
    if request.cursor is not None:
        named = not request.topics or request.cursor.topic_name in names
        if not named or request.cursor.partition_index < 0:
            return _refuse(request)
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first_index = request.cursor.partition_index
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
    for name in names:
        if room <= 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = serving.topics.get(name)
        if topic is None:
            topics.append(_unknown(name))
            continue
        last_index = min(len(topic.partitions), first_index + room)
        topics.append(_describe(serving, exchange.listener, topic, range(first_index, last_index)))
        room -= last_index - first_index
        if last_index < len(topic.partitions):
            next_cursor = Cursor(topic_name=name, partition_index=last_index)
            break
        first_index = 0
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _refuse(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Refuse a cursor that is not at a partition of a requested topic."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
            for topic in request.topics
        ]
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _describe(serving: Serving, listener: str, topic: Topic, indexes: range) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.info.internal,
        partitions=[_partition(serving, listener, topic, index) for index in indexes],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(serving: Serving, listener: str, topic: Topic, index: int) -> DescribeTopicPartitionsResponsePartition:
    """Describe a partition. One without a leader has no error code, as in Kafka."""
    found = leadership_of(serving, topic, index)
    is_reached = found.leader is not None and found.leader.at(listener) is not None
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=found.leader.node_id if found.leader is not None and is_reached else NO_LEADER,
        leader_epoch=found.leader_epoch,
        replica_nodes=found.replicas,
        isr_nodes=found.in_sync_replicas,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=found.offline_replicas,
    )


def guard(caller: Caller, request: DescribeTopicPartitionsRequest) -> Verdict:
    """Check DESCRIBE on each topic, from the cursor on. An answer about all topics leaves out the others."""
    named = {topic.name for topic in request.topics}
    cursor, first = request.cursor, ""
    if cursor is not None:
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            return Passed(request)  # it is refused
        first = cursor.topic_name
    names = [name for name in (named or {topic.name for topic in caller.serving.topics}) if name >= first]
    seen = caller.topics(AclOperation.DESCRIBE, names, audited=bool(named))
    errors = [
        DescribeTopicPartitionsResponseTopic(error_code=TOPIC_DENIED, name=name)
        for name in (sorted(set(names) - seen) if named else ())
    ]
    if not seen:
        return Refused(DescribeTopicPartitionsResponse(topics=errors))
    if cursor is not None and first not in seen:
        cursor = Cursor(topic_name=min(seen), partition_index=0)

    def amend(response: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        topics = [
            replace(topic, topic_authorized_operations=caller.operations(AclResourceType.TOPIC, topic.name or ""))
            for topic in response.topics
        ]
        return replace(response, topics=[*topics, *errors])

    topics = [TopicRequest(name=name) for name in sorted(seen)]
    return Passed(replace(request, topics=topics, cursor=cursor), amend)


API = declare(DescribeTopicPartitionsRequest, handle, guard=guard)
