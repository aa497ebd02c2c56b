"""Guards of the APIs for topics."""

from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.api.access.guard import Passed, Refused, Verdict
from anabranch.broker.api.access.records import DENIED, split
from anabranch.broker.api.handlers.caller import Caller
from anabranch.broker.api.handlers.delete_topics import STATES_SINCE
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.kafka.configs.broker_table import AUTO_CREATE
from anabranch.broker.kafka.topics.names import CLUSTER_METADATA_TOPIC
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from anabranch.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from anabranch.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from anabranch.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from anabranch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from anabranch.protocol.wire import ZERO_UUID
from anabranch.s3stream.errors import StorageError

IDS_SINCE: Final = 12


def metadata(caller: Caller, request: MetadataRequest) -> Verdict:
    """Check DESCRIBE on each topic, and CREATE on the cluster or the topic before one is created.

    A topic that the client may not describe looks the same whether it exists or not. An answer about all topics leaves
    it out.
    """
    version = caller.version
    if request.topics is None or (version == 0 and not request.topics):
        return Passed(request, lambda response: _all_seen(caller, request, response))
    requested = tuple(dict.fromkeys(request.topics))
    if version < IDS_SINCE and any(each.name is None or each.topic_id != ZERO_UUID for each in requested):
        return Passed(request)  # it is refused
    allowed: list[MetadataRequestTopic] = []
    errors: list[MetadataResponseTopic] = []
    for each in requested:
        name = caller.name_of(each.name or "", each.topic_id)
        if name is None:
            unknown = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=each.topic_id)
            errors.append(unknown)
        elif caller.may_topic(AclOperation.DESCRIBE, name):
            allowed.append(each)
        elif each.topic_id != ZERO_UUID:
            errors.append(MetadataResponseTopic(error_code=DENIED, name=None, topic_id=each.topic_id))
        else:
            errors.append(MetadataResponseTopic(error_code=DENIED, name=name))
    if request.allow_auto_topic_creation and caller.node.broker_configs.is_on(AUTO_CREATE):
        allowed, denied = _split_missing(caller, allowed)
        errors += [MetadataResponseTopic(error_code=DENIED, name=each.name or "") for each in denied]
    if not allowed and version == 0:
        # No topics stand for all in this version.
        return Passed(
            request=replace(request, topics=None),
            amend=lambda response: replace(response, topics=errors),
        )
    return Passed(
        replace(request, topics=allowed),
        lambda response: _with_operations(caller, request, response, errors),
    )


def _split_missing(
    caller: Caller, topics: Sequence[MetadataRequestTopic]
) -> tuple[list[MetadataRequestTopic], list[MetadataRequestTopic]]:
    """Split into those that exist or that the client may create, and the others."""
    known = caller.node.topics
    missing = {
        name for each in topics if (name := each.name) and each.topic_id == ZERO_UUID and known.get(name) is None
    }
    if not missing or caller.may_cluster(AclOperation.CREATE, audited=False):
        return list(topics), []
    creatable = caller.topics(AclOperation.CREATE, missing)
    return split(topics, lambda each: each.name not in missing or each.name in creatable)


def _all_seen(caller: Caller, request: MetadataRequest, response: MetadataResponse) -> MetadataResponse:
    names = (topic.name for topic in response.topics if topic.name is not None)
    seen = caller.topics(AclOperation.DESCRIBE, names, audited=False)
    shown = replace(response, topics=[topic for topic in response.topics if topic.name in seen])
    return _with_operations(caller, request, shown, ())


def _with_operations(
    caller: Caller, request: MetadataRequest, response: MetadataResponse, errors: Sequence[MetadataResponseTopic]
) -> MetadataResponse:
    topics = response.topics
    if request.include_topic_authorized_operations:
        topics = [
            topic
            if topic.name is None
            else replace(topic, topic_authorized_operations=caller.operations(AclResourceType.TOPIC, topic.name))
            for topic in topics
        ]
    amended = replace(response, topics=[*topics, *errors])
    if request.include_cluster_authorized_operations:
        amended = replace(amended, cluster_authorized_operations=caller.cluster_operations())
    return amended


def describe_topic_partitions(caller: Caller, request: DescribeTopicPartitionsRequest) -> Verdict:
    """Check DESCRIBE on each topic, from the cursor on. An answer about all topics leaves out the others."""
    named = {topic.name for topic in request.topics}
    cursor, first = request.cursor, ""
    if cursor is not None:
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            return Passed(request)  # it is refused
        first = cursor.topic_name
    names = [name for name in (named or {topic.name for topic in caller.node.topics}) if name >= first]
    seen = caller.topics(AclOperation.DESCRIBE, names, audited=bool(named))
    errors = [
        DescribeTopicPartitionsResponseTopic(error_code=DENIED, name=name)
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


def create_topics(caller: Caller, request: CreateTopicsRequest) -> Verdict:
    """Check CREATE on the cluster or on each topic, and DESCRIBE_CONFIGS before configs are shown."""
    counts = Counter(topic.name for topic in request.topics)
    names = {name for name in counts if name != CLUSTER_METADATA_TOPIC}
    once = {name for name in names if counts[name] == 1}
    if caller.may_cluster(AclOperation.CREATE, audited=False):
        denied: set[str] = set()
    else:
        denied = once - caller.topics(AclOperation.CREATE, once)
    shown = caller.topics(AclOperation.DESCRIBE_CONFIGS, names, audited=False)
    errors = [
        CreatableTopicResult(name=topic.name, error_code=DENIED, error_message="Authorization failed.")
        for topic in request.topics
        if topic.name in denied
    ]

    def amend(response: CreateTopicsResponse) -> CreateTopicsResponse:
        topics = [
            topic
            if topic.error_code or topic.name in shown
            else replace(topic, topic_config_error_code=DENIED, num_partitions=-1, replication_factor=-1, configs=())
            for topic in response.topics
        ]
        return replace(response, topics=[*topics, *errors])

    allowed = [topic for topic in request.topics if topic.name not in denied]
    return Passed(replace(request, topics=allowed), amend)


def delete_topics(caller: Caller, request: DeleteTopicsRequest) -> Verdict | Coroutine[Any, Any, Verdict]:
    """Check DELETE on the cluster, or DESCRIBE and DELETE on each topic.

    Nothing is said of the name and the existence of a topic that the client may not describe.
    """
    if caller.may_cluster(AclOperation.DELETE, audited=False):
        return Passed(request)
    if any(caller.name_of("", state.topic_id) is None for state in request.topics):
        return _deletions_when_known(caller, request)
    return _deletions(caller, request)


async def _deletions_when_known(caller: Caller, request: DeleteTopicsRequest) -> Verdict:
    """Wait until the ids of topics that other nodes have created are known."""
    with suppress(StorageError):  # the handler reports it
        await caller.node.membership.catch_up()
    return _deletions(caller, request)


def _deletions(caller: Caller, request: DeleteTopicsRequest) -> Verdict:
    by_state = caller.version >= STATES_SINCE
    states = request.topics if by_state else [DeleteTopicState(name=name) for name in request.topic_names]
    counts = Counter(states)
    allowed: list[DeleteTopicState] = []
    errors: list[DeletableTopicResult] = []
    for state in states:
        error = _undeletable(caller, state) if counts[state] == 1 else None
        if error is None:
            allowed.append(state)
        else:
            errors.append(error)

    def amend(response: DeleteTopicsResponse) -> DeleteTopicsResponse:
        return replace(response, responses=[*response.responses, *errors])

    if by_state:
        passed = replace(request, topics=allowed)
    else:
        passed = replace(request, topic_names=[state.name or "" for state in allowed])
    return Passed(passed, amend if errors else None)


def _undeletable(caller: Caller, state: DeleteTopicState) -> DeletableTopicResult | None:
    """Return the error for a topic that the client may not delete; None: it may, or the request is invalid."""
    name, topic_id = state.name, state.topic_id
    if (name is None) == (topic_id == ZERO_UUID):
        return None  # neither or both: it is refused
    found = caller.name_of(name or "", topic_id)
    if found is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        return DeletableTopicResult(name=None, topic_id=topic_id, error_code=code, error_message=code.message)
    may_describe = caller.may_topic(AclOperation.DESCRIBE, found)
    if may_describe and caller.may_topic(AclOperation.DELETE, found):
        return None
    if may_describe and caller.node.topics.get(found) is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(name=found, topic_id=topic_id, error_code=code, error_message=code.message)
    told = found if name is not None or may_describe else None
    return DeletableTopicResult(name=told, topic_id=topic_id, error_code=DENIED, error_message=DENIED.message)


def create_partitions(caller: Caller, request: CreatePartitionsRequest) -> Verdict:
    """Check ALTER on each topic."""
    counts = Counter(topic.name for topic in request.topics)
    once = {name for name, count in counts.items() if count == 1}
    denied = once - caller.topics(AclOperation.ALTER, once)
    errors = [CreatePartitionsTopicResult(name=name, error_code=DENIED) for name in sorted(denied)]

    def amend(response: CreatePartitionsResponse) -> CreatePartitionsResponse:
        return replace(response, results=[*response.results, *errors])

    allowed = [topic for topic in request.topics if topic.name not in denied]
    return Passed(replace(request, topics=allowed), amend if errors else None)
