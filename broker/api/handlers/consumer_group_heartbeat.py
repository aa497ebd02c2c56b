"""ConsumerGroupHeartbeat (KIP-848): join, stay in and leave a consumer group. Answered when the change is durable."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from anabranch.broker.api.access.caller import Caller, caller_of
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.consumer_protocol import check_consumer_protocol
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.consumer.assignors import ASSIGNORS
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse, TopicFilter
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, by_topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

HeartbeatDone: TypeAlias = Callable[[ConsumerHeartbeatResponse | KafkaError], None]
CLIENT_MADE_ID_VERSION = 1
"""First version in which the client generates its member id: a retried join is not a second member (KIP-1082)."""


def handle(
    serving: Serving, request: ConsumerGroupHeartbeatRequest, exchange: Exchange
) -> ConsumerGroupHeartbeatResponse | None:
    """Check what does not depend on the group, then pass the request to it. None: answered later."""

    def done(answer: ConsumerHeartbeatResponse | KafkaError) -> None:
        if isinstance(answer, KafkaError):
            exchange.complete(_refusal(answer))
        else:
            exchange.complete(_response(answer, serving.group_configs.heartbeat_interval_ms(request.group_id)))

    try:
        check_consumer_protocol(serving)
        shard = serving.groups.shard(request.group_id) if request.group_id else None
        _check(request, exchange.api_version)
        assert shard is not None, "a request without a group id is refused"
        shard.membership.handle(request.group_id, _beat(serving, request, exchange, done))
    except KafkaError as refused:
        return _refusal(refused)
    return None


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raise Kafka's error, with its message, for an invalid request."""
    epoch = request.member_epoch
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if not request.member_id and (version >= CLIENT_MADE_ID_VERSION or epoch != 0):
        raise _invalid("MemberId can't be empty.")
    if epoch == 0:
        _check_join(request)
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in ASSIGNORS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _invalid(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _beat(
    serving: Serving, request: ConsumerGroupHeartbeatRequest, exchange: Exchange, done: HeartbeatDone
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        member_id=request.member_id or serving.groups.new_id(),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=request.subscribed_topic_names,
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
        client_id=exchange.client_id or "",
        client_host=f"/{exchange.client_host}",
        topic_filter=_topic_filter(serving, exchange),
        ticket=done,
    )


def _topic_filter(serving: Serving, exchange: Exchange) -> TopicFilter | None:
    """Return the topics that the client may describe; None: all."""
    caller = caller_of(serving, exchange)
    if caller is None:
        return None
    connection = exchange.connection

    def allows(name: str) -> bool:
        return caller.may_topic(AclOperation.DESCRIBE, name, audited=False)

    return TopicFilter(caller.acl_version, connection.principal, connection.host, allows)


def _owned(topics: Sequence[TopicPartitions]) -> Partitions:
    return frozenset(TopicIdPartition(topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def _response(answer: ConsumerHeartbeatResponse, heartbeat_interval_ms: int) -> ConsumerGroupHeartbeatResponse:
    leaving = answer.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}
    assignment = None
    if answer.assignment is not None:
        topics = [
            TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in by_topic(answer.assignment)
        ]
        assignment = Assignment(topic_partitions=topics)
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=0 if leaving else heartbeat_interval_ms,
        assignment=assignment,
    )


def _refusal(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message or None)


def guard(caller: Caller, request: ConsumerGroupHeartbeatRequest) -> Verdict:
    """Check READ on the group, and DESCRIBE on the topics that the member subscribes to by name."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(ConsumerGroupHeartbeatResponse(error_code=GROUP_DENIED))
    names = set(request.subscribed_topic_names or ())
    if len(caller.topics(AclOperation.DESCRIBE, names)) < len(names):
        return Refused(ConsumerGroupHeartbeatResponse(error_code=TOPIC_DENIED))
    return Passed(request)


API = declare(ConsumerGroupHeartbeatRequest, handle, guard=guard, waits_for=group)
