"""Guards of the APIs for groups and their committed offsets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.api.access.guard import Guard, Passed, Refused, Verdict
from anabranch.broker.api.access.records import DENIED, split
from anabranch.broker.api.handlers.caller import Caller
from anabranch.broker.api.handlers.offset_fetch import ERROR_FIELD_VERSION, GROUPS_VERSION
from anabranch.broker.api.handlers.sync_group import NAMES_PROTOCOL_SINCE
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from anabranch.protocol.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from anabranch.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from anabranch.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from anabranch.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from anabranch.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
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
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
PROTOCOL_NAME_IS_NULL_SINCE: Final = 7
"""First version of JoinGroup in which an error has no protocol name, in place of an empty one."""
HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


def reads_group(refusal: Callable[..., Any]) -> Guard:
    """Return a guard that demands READ on the group. `refusal` is the type of the answer."""

    def guard(caller: Caller, request: Any) -> Verdict:
        if caller.may_group(AclOperation.READ, request.group_id):
            return Passed(request)
        return Refused(refusal(error_code=GROUP_DENIED))

    return guard


def join_group(caller: Caller, request: JoinGroupRequest) -> Verdict:
    """Check READ on the group."""
    if caller.may_group(AclOperation.READ, request.group_id):
        return Passed(request)
    name = None if caller.version >= PROTOCOL_NAME_IS_NULL_SINCE else ""
    return Refused(JoinGroupResponse(error_code=GROUP_DENIED, protocol_name=name))


def sync_group(caller: Caller, request: SyncGroupRequest) -> Verdict:
    """Check READ on the group, after what a request must have."""
    if caller.version >= NAMES_PROTOCOL_SINCE and None in {request.protocol_type, request.protocol_name}:
        return Passed(request)  # it is refused
    if caller.may_group(AclOperation.READ, request.group_id):
        return Passed(request)
    return Refused(SyncGroupResponse(error_code=GROUP_DENIED))


def consumer_group_heartbeat(caller: Caller, request: ConsumerGroupHeartbeatRequest) -> Verdict:
    """Check READ on the group, and DESCRIBE on the topics that the member subscribes to by name."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(ConsumerGroupHeartbeatResponse(error_code=GROUP_DENIED))
    names = set(request.subscribed_topic_names or ())
    if len(caller.topics(AclOperation.DESCRIBE, names)) < len(names):
        return Refused(ConsumerGroupHeartbeatResponse(error_code=DENIED))
    return Passed(request)


def describe_groups(caller: Caller, request: DescribeGroupsRequest) -> Verdict:
    """Check DESCRIBE on each group, and name the operations that the client may do."""
    allowed, denied = split(request.groups, lambda group_id: caller.may_group(AclOperation.DESCRIBE, group_id))
    errors = [DescribedGroup(error_code=GROUP_DENIED, group_id=group_id) for group_id in denied]

    def amend(response: DescribeGroupsResponse) -> DescribeGroupsResponse:
        groups = response.groups
        if request.include_authorized_operations:
            groups = [_with_operations(caller, group) for group in groups]
        return replace(response, groups=[*errors, *groups])

    return Passed(replace(request, groups=allowed), amend)


def _with_operations(caller: Caller, group: Any) -> Any:
    if group.error_code:
        return group
    return replace(group, authorized_operations=caller.operations(AclResourceType.GROUP, group.group_id))


def consumer_group_describe(caller: Caller, request: ConsumerGroupDescribeRequest) -> Verdict:
    """Check DESCRIBE on each group and on the topics that are assigned to its members."""
    allowed, denied = split(request.group_ids, lambda group_id: caller.may_group(AclOperation.DESCRIBE, group_id))
    errors = [ConsumerGroup(error_code=GROUP_DENIED, group_id=group_id) for group_id in denied]

    def shown(group: ConsumerGroup) -> ConsumerGroup:
        assigned = {
            each.topic_name
            for member in group.members
            for assignment in (member.assignment, member.target_assignment)
            for each in assignment.topic_partitions
        }
        if len(caller.topics(AclOperation.DESCRIBE, assigned)) < len(assigned):
            return ConsumerGroup(group_id=group.group_id, error_code=DENIED, error_message=HIDDEN_TOPICS)
        if request.include_authorized_operations:
            described: ConsumerGroup = _with_operations(caller, group)
            return described
        return group

    def amend(response: ConsumerGroupDescribeResponse) -> ConsumerGroupDescribeResponse:
        return replace(response, groups=[*errors, *(shown(group) for group in response.groups)])

    return Passed(replace(request, group_ids=allowed), amend)


def list_groups(caller: Caller, request: ListGroupsRequest) -> Verdict:
    """Leave out groups that the client may not describe, unless it may describe the cluster."""
    if caller.may_cluster(AclOperation.DESCRIBE, audited=False):
        return Passed(request)

    def amend(response: ListGroupsResponse) -> ListGroupsResponse:
        seen = [
            group for group in response.groups if caller.may_group(AclOperation.DESCRIBE, group.group_id, audited=False)
        ]
        return replace(response, groups=seen)

    return Passed(request, amend)


def delete_groups(caller: Caller, request: DeleteGroupsRequest) -> Verdict:
    """Check DELETE on each group."""
    names = list(dict.fromkeys(request.groups_names))
    allowed, denied = split(names, lambda group_id: caller.may_group(AclOperation.DELETE, group_id))
    errors = [DeletableGroupResult(group_id=group_id, error_code=GROUP_DENIED) for group_id in denied]

    def amend(response: DeleteGroupsResponse) -> DeleteGroupsResponse:
        return replace(response, results=[*response.results, *errors])

    return Passed(replace(request, groups_names=allowed), amend)


# committed offsets


def offset_commit(caller: Caller, request: OffsetCommitRequest) -> Verdict:
    """Check READ on the group and on each topic."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(OffsetCommitResponse(topics=[_uncommitted(each, GROUP_DENIED) for each in request.topics]))
    codes = {id(topic): _code(caller, AclOperation.READ, topic) for topic in request.topics}
    allowed, refused = split(request.topics, lambda topic: codes[id(topic)] is ErrorCode.NONE)
    errors = [_uncommitted(topic, codes[id(topic)]) for topic in refused]
    if not errors:
        return Passed(request)
    if not allowed:
        return Refused(OffsetCommitResponse(topics=errors))

    def amend(response: OffsetCommitResponse) -> OffsetCommitResponse:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend)


def _code(caller: Caller, operation: AclOperation, topic: Any) -> ErrorCode:
    """Return the error for a topic that is named by name or id; NONE if the client may do the operation."""
    name = caller.name_of(topic.name, topic.topic_id)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if caller.may_topic(operation, name) else DENIED


def _uncommitted(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


def offset_delete(caller: Caller, request: OffsetDeleteRequest) -> Verdict:
    """Check DELETE on the group, and READ on each topic."""
    if not caller.may_group(AclOperation.DELETE, request.group_id):
        return Refused(OffsetDeleteResponse(error_code=GROUP_DENIED))
    readable = caller.topics(AclOperation.READ, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in readable)
    errors = [_undeleted(topic) for topic in denied]

    def amend(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        return response if response.error_code else replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _undeleted(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=DENIED)
            for each in topic.partitions
        ],
    )


def offset_fetch(caller: Caller, request: OffsetFetchRequest) -> Verdict:
    """Check DESCRIBE on each group and topic. Answers about all topics leave out the offsets of the others."""
    return (_fetch_many if caller.version >= GROUPS_VERSION else _fetch_one)(caller, request)


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
    errors = [_old_error(topic, DENIED) for topic in denied]

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
            codes = {id(topic): _code(caller, AclOperation.DESCRIBE, topic) for topic in group.topics}
            passed.append(replace(group, topics=[each for each in group.topics if not codes[id(each)]]))
            errors.append([_new_error(each, codes[id(each)]) for each in group.topics if codes[id(each)]])

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        groups = [_seen(caller, *each) for each in zip(response.groups, errors, strict=True)]
        for place, group in refused.items():
            groups.insert(place, group)
        return replace(response, groups=groups)

    return Passed(replace(request, groups=passed), amend)


def _seen(
    caller: Caller, group: OffsetFetchResponseGroup, errors: Sequence[OffsetFetchResponseTopics] | None
) -> OffsetFetchResponseGroup:
    if group.error_code:
        return group
    if errors is None:
        seen = [each for each in group.topics if _code(caller, AclOperation.DESCRIBE, each) is ErrorCode.NONE]
        return replace(group, topics=seen)
    return replace(group, topics=[*group.topics, *errors])


def _new_error(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ],
    )
