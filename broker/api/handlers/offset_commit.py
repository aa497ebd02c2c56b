"""OffsetCommit: store committed offsets of a group. Answered when they are durable.

Since consumers commit often, the request needs no task, and commits of one turn of the loop share one record batch.
"""

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.commits import NEVER_MS, CommitAnswers, check_offsets, commit_error
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

MEMBER_EPOCH_VERSION = 9
"""First version in which members of consumer groups may commit (KIP-848)."""
TOPIC_ID_VERSION = 10
NO_RETENTION_MS = -1
TIMESTAMP_MAX_MS = (1 << 63) - 1

ANSWERS = CommitAnswers(OffsetCommitResponse, OffsetCommitResponseTopic, OffsetCommitResponsePartition)


def handle(serving: Serving, request: OffsetCommitRequest, exchange: Exchange) -> OffsetCommitResponse | None:
    """Check every partition, pass the valid ones to the group. None: answered later."""
    now_ms = serving.now_ms()
    offsets, refused = check_offsets(
        serving,
        request.topics,
        by_id=exchange.api_version >= TOPIC_ID_VERSION,
        now_ms=now_ms,
        expire_timestamp_ms=_expire_timestamp_ms(request, now_ms),
    )
    if not offsets:
        return ANSWERS.answer(request.topics, refused, ErrorCode.NONE)
    try:
        serving.groups.shard(request.group_id).offsets.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            offsets,
            lambda error: exchange.complete(ANSWERS.answer(request.topics, refused, commit_error(error))),
            knows_member_epochs=exchange.api_version >= MEMBER_EPOCH_VERSION,
        )
    except KafkaError as error:
        return ANSWERS.answer(request.topics, refused, error.code)
    return None


def _expire_timestamp_ms(request: OffsetCommitRequest, now_ms: int) -> int:
    if request.retention_time_ms == NO_RETENTION_MS:
        return NEVER_MS
    return min(now_ms + request.retention_time_ms, TIMESTAMP_MAX_MS)


def guard(caller: Caller, request: OffsetCommitRequest) -> Verdict:
    """Check READ on the group and on each topic."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return ANSWERS.refuse(request.topics, GROUP_DENIED)
    return ANSWERS.check_topics(caller, request)


API = declare(
    OffsetCommitRequest,
    handle,
    guard=guard,
    waits_for=group,
    relayed=True,
    local_version=9,  # the newest that names topics by name
)
