"""OffsetFetch: durable committed offsets of groups. A partition without one has offset -1 and no error."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict, split, topic_error
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.offsets import CommittedOffset, GroupOffsets
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

ERROR_FIELD_VERSION = 2
"""First version with a field for an error of the whole group."""
GROUPS_VERSION = 8
"""First version in which a request has many groups."""
TOPIC_ID_VERSION = 10
NOTHING_COMMITTED = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_timestamp_ms=-1)
NO_TOPIC_ID = bytes(16)


class FoundTopic(NamedTuple):
    """Offsets of one topic by partition, and an error for all of them."""

    name: str
    topic_id: bytes
    offsets: Mapping[int, CommittedOffset]
    error: ErrorCode = ErrorCode.NONE
    unstable: frozenset[int] = frozenset()
    """Partitions whose offset is left out because an open transaction may change it."""

    def error_of(self, partition: int) -> ErrorCode:
        """Return the error code of a partition."""
        return ErrorCode.UNSTABLE_OFFSET_COMMIT if partition in self.unstable else self.error


def handle(serving: Serving, request: OffsetFetchRequest, exchange: Exchange) -> OffsetFetchResponse:
    """Answer at once."""
    version = exchange.api_version
    stable = request.require_stable
    if version >= GROUPS_VERSION:
        return OffsetFetchResponse(
            groups=[_group(serving, requested, version, stable=stable) for requested in request.groups]
        )
    try:
        found = _find(serving, request.group_id, request.topics, version, stable=stable)
        error = ErrorCode.NONE
    except KafkaError as refused:
        found, error = [], refused.code
        if version < ERROR_FIELD_VERSION:
            found = [
                FoundTopic(topic.name, NO_TOPIC_ID, dict.fromkeys(topic.partition_indexes, NOTHING_COMMITTED), error)
                for topic in request.topics or ()
            ]
    return OffsetFetchResponse(topics=[_old_topic(topic) for topic in found], error_code=error)


def _group(
    serving: Serving, requested: OffsetFetchRequestGroup, version: int, *, stable: bool
) -> OffsetFetchResponseGroup:
    try:
        if error := serving.groups.shard(requested.group_id).offsets.check_fetch(
            requested.group_id, requested.member_id, requested.member_epoch
        ):
            return OffsetFetchResponseGroup(group_id=requested.group_id, error_code=error)
        found = _find(serving, requested.group_id, requested.topics, version, stable=stable)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=requested.group_id, error_code=error.code)
    return OffsetFetchResponseGroup(group_id=requested.group_id, topics=[_new_topic(topic) for topic in found])


def _find(
    serving: Serving,
    group_id: str,
    topics: Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestTopics] | None,
    version: int,
    *,
    stable: bool,
) -> list[FoundTopic]:
    offsets = serving.groups.shard(group_id).offsets.of(group_id) or GroupOffsets()
    found = _all(serving, offsets) if topics is None else (_asked(serving, offsets, each, version) for each in topics)
    if stable and offsets.transactional:
        return [_without_unstable(topic, offsets) for topic in found]
    return list(found)


def _without_unstable(topic: FoundTopic, offsets: GroupOffsets) -> FoundTopic:
    """Leave out the offsets that an open transaction may change (KIP-447)."""
    unstable = frozenset(index for index in topic.offsets if offsets.is_unstable(topic.name, index))
    shown = {index: NOTHING_COMMITTED if index in unstable else each for index, each in topic.offsets.items()}
    return topic._replace(offsets=shown, unstable=unstable)


def _all(serving: Serving, offsets: GroupOffsets) -> Iterable[FoundTopic]:
    """Yield all offsets but those of detached topics, whose end offsets tools could not read."""
    for name, partitions in offsets.topics.items():
        topic = serving.topics.get(name)
        if topic is not None:
            yield FoundTopic(name, topic.topic_id, partitions)


def _asked(
    serving: Serving, offsets: GroupOffsets, requested: OffsetFetchRequestTopic | OffsetFetchRequestTopics, version: int
) -> FoundTopic:
    name, topic_id = requested.name, NO_TOPIC_ID
    error = ErrorCode.NONE
    if isinstance(requested, OffsetFetchRequestTopics) and version >= TOPIC_ID_VERSION:
        topic_id = requested.topic_id
        topic = serving.topics.get(topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            name = topic.name
    committed = offsets.topics.get(name, {})
    found = {index: committed.get(index, NOTHING_COMMITTED) for index in requested.partition_indexes}
    return FoundTopic(name, topic_id, found, error)


def _old_topic(topic: FoundTopic) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=topic.error_of(index),
            )
            for index, committed in topic.offsets.items()
        ],
    )


def _new_topic(topic: FoundTopic) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=topic.error_of(index),
            )
            for index, committed in topic.offsets.items()
        ],
    )


def guard(caller: Caller, request: OffsetFetchRequest) -> Verdict:
    """Check DESCRIBE on each group and topic. Answers about all topics leave out the offsets of the others."""
    return (_fetch_many if caller.version >= GROUPS_VERSION else _fetch_one)(caller, request)


def _fetch_many(caller: Caller, request: OffsetFetchRequest) -> Verdict:
    refused: dict[int, OffsetFetchResponseGroup] = {}
    passed: list[OffsetFetchRequestGroup] = []
    errors: list[list[OffsetFetchResponseTopics] | None] = []
    """By passed group: errors of topics; None: all topics are asked for."""
    for place, group in enumerate(request.groups):
        if not caller.may_group(AclOperation.DESCRIBE, group.group_id):
            refused[place] = OffsetFetchResponseGroup(group_id=group.group_id, error_code=GROUP_DENIED)
        elif group.topics is None:
            passed.append(group)
            errors.append(None)
        else:
            codes = {id(topic): topic_error(caller, AclOperation.DESCRIBE, topic) for topic in group.topics}
            passed.append(replace(group, topics=[each for each in group.topics if not codes[id(each)]]))
            errors.append([_new_error(each, codes[id(each)]) for each in group.topics if codes[id(each)]])

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        groups = [_seen(caller, *each) for each in zip(response.groups, errors, strict=True)]
        for place, group in refused.items():
            groups.insert(place, group)
        return replace(response, groups=groups)

    return Passed(replace(request, groups=passed), amend)


def _new_error(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ],
    )


def _seen(
    caller: Caller, group: OffsetFetchResponseGroup, errors: Sequence[OffsetFetchResponseTopics] | None
) -> OffsetFetchResponseGroup:
    if group.error_code:
        return group
    if errors is None:
        seen = [each for each in group.topics if topic_error(caller, AclOperation.DESCRIBE, each) is ErrorCode.NONE]
        return replace(group, topics=seen)
    return replace(group, topics=[*group.topics, *errors])


def _fetch_one(caller: Caller, request: OffsetFetchRequest) -> Verdict:
    if not caller.may_group(AclOperation.DESCRIBE, request.group_id):
        if caller.version >= ERROR_FIELD_VERSION:
            return Refused(OffsetFetchResponse(error_code=GROUP_DENIED))
        return Refused(OffsetFetchResponse(topics=[_old_error(each, GROUP_DENIED) for each in request.topics or ()]))
    if request.topics is None:

        def hide(response: OffsetFetchResponse) -> OffsetFetchResponse:
            seen = caller.topics(AclOperation.DESCRIBE, (topic.name for topic in response.topics))
            return replace(response, topics=[topic for topic in response.topics if topic.name in seen])

        return Passed(request, hide)
    describable = caller.topics(AclOperation.DESCRIBE, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in describable)
    errors = [_old_error(topic, TOPIC_DENIED) for topic in denied]

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        return response if response.error_code else replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _old_error(topic: OffsetFetchRequestTopic, code: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ],
    )


API = declare(
    OffsetFetchRequest,
    handle,
    guard=guard,
    waits_for=groups(lambda request: [each.group_id for each in request.groups] or (request.group_id,)),
    relayed=True,
    local_version=9,  # the newest that names topics by name
)
