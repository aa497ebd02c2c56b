"""ShareGroupHeartbeat (KIP-932): join, stay in and leave a share group. Answered when the change is durable."""

from collections.abc import Callable
from typing import TypeAlias

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_protocol import check_share_protocol
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH
from anabranch.broker.kafka.groups.modern.topic_image import by_topic
from anabranch.broker.kafka.groups.share.requests import ShareHeartbeat, ShareHeartbeatResponse
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

HeartbeatDone: TypeAlias = Callable[[ShareHeartbeatResponse | KafkaError], None]


def handle(
    serving: Serving, request: ShareGroupHeartbeatRequest, exchange: Exchange
) -> ShareGroupHeartbeatResponse | None:
    """Check what does not depend on the group, then pass the request to it. None: answered later."""

    def done(answer: ShareHeartbeatResponse | KafkaError) -> None:
        if isinstance(answer, KafkaError):
            exchange.complete(_refusal(answer))
        else:
            exchange.complete(_response(answer, serving.group_configs.share_heartbeat_interval_ms(request.group_id)))

    try:
        check_share_protocol(serving)
        _check(request)
        serving.groups.shard(request.group_id).membership.handle(
            request.group_id,
            ShareHeartbeat(
                member_id=request.member_id,
                epoch=request.member_epoch,
                rack_id=request.rack_id,
                topic_names=request.subscribed_topic_names,
                client_id=exchange.client_id or "",
                client_host=f"/{exchange.client_host}",
                ticket=done,
            ),
        )
    except KafkaError as refused:
        return _refusal(refused)
    return None


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Raise Kafka's error, with its message, for an invalid request."""
    if not request.member_id:
        raise _invalid("")  # as Kafka, which has no message for this
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _response(answer: ShareHeartbeatResponse, heartbeat_interval_ms: int) -> ShareGroupHeartbeatResponse:
    assignment = None
    if answer.assignment is not None:
        topics = [
            TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in by_topic(answer.assignment)
        ]
        assignment = Assignment(topic_partitions=topics)
    return ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=0 if answer.epoch == LEAVE_EPOCH else heartbeat_interval_ms,
        assignment=assignment,
    )


def _refusal(error: KafkaError) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message or None)


def guard(caller: Caller, request: ShareGroupHeartbeatRequest) -> Verdict:
    """Check READ on the group, and DESCRIBE on the topics that the member subscribes to."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(ShareGroupHeartbeatResponse(error_code=GROUP_DENIED))
    names = set(request.subscribed_topic_names or ())
    if len(caller.topics(AclOperation.DESCRIBE, names)) < len(names):
        return Refused(ShareGroupHeartbeatResponse(error_code=TOPIC_DENIED))
    return Passed(request)


API = declare(ShareGroupHeartbeatRequest, handle, guard=guard, waits_for=group)
