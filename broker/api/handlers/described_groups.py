"""Common parts of the APIs that describe groups of one type: which groups, and what a client may see of them."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final, TypeVar

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.groups import with_operations
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Guard, Passed, Verdict, split
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.protocol.errors import ErrorCode, KafkaError

HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."

G = TypeVar("G")


def find_group(serving: Serving, group_id: str, kind: type[G], group_type: str) -> G:
    """Return a group of that type. Raises KafkaError: GROUP_ID_NOT_FOUND, also for another one, and those of shards."""
    group = serving.groups.shard_with_id(group_id).group(group_id)
    if not isinstance(group, kind):
        problem = "not found" if group is None else f"is not a {group_type} group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {problem}.")
    return group


def guard_of(described: Callable[..., Any], topics_of: Callable[[Any], Collection[str]]) -> Guard[Any]:
    """Return a guard that checks DESCRIBE on each group, and on the topics that its description names.

    `described` is the type of a description, and `topics_of` returns its topics.
    """

    def guard(caller: Caller, request: Any) -> Verdict:
        allowed, denied = split(request.group_ids, lambda group_id: caller.may_group(AclOperation.DESCRIBE, group_id))
        errors = [described(error_code=GROUP_DENIED, group_id=group_id) for group_id in denied]

        def shown(group: Any) -> Any:
            topics = topics_of(group)
            if len(caller.topics(AclOperation.DESCRIBE, topics)) < len(topics):
                return described(group_id=group.group_id, error_code=TOPIC_DENIED, error_message=HIDDEN_TOPICS)
            return with_operations(caller, group) if request.include_authorized_operations else group

        def amend(response: Any) -> Any:
            return replace(response, groups=[*errors, *(shown(group) for group in response.groups)])

        return Passed(replace(request, group_ids=allowed), amend)

    return guard
