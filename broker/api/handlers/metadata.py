"""Metadata: nodes, topics and the leader of each partition. Creates unknown topics if the request allows it."""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TOPIC_DENIED, Passed, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from anabranch.broker.api.handlers.leadership import NO_LEADER, leadership_of
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType
from anabranch.broker.kafka.configs.broker_table import AUTO_CREATE
from anabranch.broker.kafka.topics.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, check_topic_name
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import Member, addresses
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from anabranch.protocol.wire import ZERO_UUID
from anabranch.s3stream.catalog.values import NodeListener
from anabranch.s3stream.errors import StorageError

IDS_SINCE = 12
LISTENER_ERRORS_SINCE = 6
"""First version in which a leader without the client's listener has its own error."""


class _Asked(NamedTuple):
    """A request, and the nodes that may be announced to its client."""

    serving: Serving
    request: MetadataRequest
    version: int
    addresses: Mapping[int, tuple[Member, NodeListener]]
    """By node id: the listed nodes that have the client's listener, and their addresses there."""


def _asked(serving: Serving, request: MetadataRequest, exchange: Exchange) -> _Asked:
    told = addresses(serving.members.listed(), exchange.listener)
    return _Asked(
        serving, request, exchange.api_version, {member.node_id: (member, address) for member, address in told}
    )


def handle(
    serving: Serving, request: MetadataRequest, exchange: Exchange
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Answer at once, or with a coroutine if a topic has to be created."""
    version = exchange.api_version
    asked = _asked(serving, request, exchange)
    if request.topics is None or (version == 0 and not request.topics):
        return _respond(asked, [_topic(asked, topic) for topic in serving.topics])
    if version < IDS_SINCE and any(
        requested.name is None or requested.topic_id != ZERO_UUID for requested in request.topics
    ):
        return _refuse(request)
    requested_topics = tuple(dict.fromkeys(request.topics))
    if request.allow_auto_topic_creation and serving.broker_configs.is_on(AUTO_CREATE):
        missing = [
            requested.name
            for requested in requested_topics
            if requested.name
            and requested.topic_id == ZERO_UUID
            and serving.topics.get(requested.name) is None
            # The deletion of a topic must not seem to have failed.
            and not serving.topics.is_being_removed(requested.name)
            and not serving.topics.take_removed(requested.name)
        ]
        if missing:
            return _create_and_respond(serving, request, exchange, requested_topics, missing)
    return _respond(asked, [_lookup(asked, requested) for requested in requested_topics])


def _refuse(request: MetadataRequest) -> MetadataResponse:
    """Refuse topic ids in versions 10 and 11, which have a field for them but look up by name only."""
    topics = [
        MetadataResponseTopic(
            error_code=ErrorCode.INVALID_REQUEST, name=requested.name or "", topic_id=requested.topic_id
        )
        for requested in request.topics or ()
    ]
    return MetadataResponse(topics=topics)


async def _create_and_respond(
    serving: Serving,
    request: MetadataRequest,
    exchange: Exchange,
    requested_topics: Sequence[MetadataRequestTopic],
    missing: Sequence[str],
) -> MetadataResponse:
    refused: dict[str, ErrorCode] = {}
    for name in missing:
        try:
            await _create(serving, name)
        except KafkaError as error:
            refused[name] = error.code
        except StorageError:
            refused[name] = ErrorCode.LEADER_NOT_AVAILABLE
    topics = []
    asked = _asked(serving, request, exchange)
    for requested in requested_topics:
        name = requested.name or ""
        if name in refused:
            topics.append(MetadataResponseTopic(error_code=refused[name], name=name))
        else:
            topics.append(_lookup(asked, requested))
    return _respond(asked, topics)


async def _create(serving: Serving, name: str) -> None:
    check_topic_name(name)
    if name in INTERNAL_TOPICS or name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # created by their coordinators when needed
    await serving.topic_commands.ensure(name, partitions=serving.settings.topic.num_partitions, configs={})


def _lookup(asked: _Asked, requested: MetadataRequestTopic) -> MetadataResponseTopic:
    serving = asked.serving
    if requested.topic_id != ZERO_UUID:
        topic = serving.topics.get(requested.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=requested.topic_id)
        return _topic(asked, topic)
    name = requested.name or ""
    topic = serving.topics.get(name)
    if topic is not None:
        return _topic(asked, topic)
    try:
        check_topic_name(name)
    except KafkaError as error:
        return MetadataResponseTopic(error_code=error.code, name=name)
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _topic(asked: _Asked, topic: Topic) -> MetadataResponseTopic:
    with_operations = asked.request.include_topic_authorized_operations
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.info.internal,
        partitions=[_partition(asked, topic, index) for index in range(len(topic.partitions))],
        topic_authorized_operations=TOPIC_OPERATIONS if with_operations else NOT_REQUESTED,
    )


def _partition(asked: _Asked, topic: Topic, index: int) -> MetadataResponsePartition:
    found = leadership_of(asked.serving, topic, index)
    leader, error = found.leader, ErrorCode.NONE
    if leader is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif leader.node_id not in asked.addresses:
        leader = None
        since = asked.version >= LISTENER_ERRORS_SINCE
        error = ErrorCode.LISTENER_NOT_FOUND if since else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=NO_LEADER if leader is None else leader.node_id,
        leader_epoch=found.leader_epoch,
        replica_nodes=found.replicas,
        isr_nodes=found.in_sync_replicas,
        offline_replicas=found.offline_replicas,
    )


def _respond(asked: _Asked, topics: Sequence[MetadataResponseTopic]) -> MetadataResponse:
    serving = asked.serving
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=member.node_id, host=address.host, port=address.port, rack=member.rack or None
            )
            for member, address in asked.addresses.values()
        ],
        cluster_id=serving.settings.node.cluster,
        controller_id=serving.members.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if asked.request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def guard(caller: Caller, request: MetadataRequest) -> Verdict:
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
            errors.append(MetadataResponseTopic(error_code=TOPIC_DENIED, name=None, topic_id=each.topic_id))
        else:
            errors.append(MetadataResponseTopic(error_code=TOPIC_DENIED, name=name))
    if request.allow_auto_topic_creation and caller.serving.broker_configs.is_on(AUTO_CREATE):
        allowed, denied = _split_missing(caller, allowed)
        errors += [MetadataResponseTopic(error_code=TOPIC_DENIED, name=each.name or "") for each in denied]
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


def _split_missing(
    caller: Caller, topics: Sequence[MetadataRequestTopic]
) -> tuple[list[MetadataRequestTopic], list[MetadataRequestTopic]]:
    """Split into those that exist or that the client may create, and the others."""
    known = caller.serving.topics
    missing = {
        name for each in topics if (name := each.name) and each.topic_id == ZERO_UUID and known.get(name) is None
    }
    if not missing or caller.may_cluster(AclOperation.CREATE, audited=False):
        return list(topics), []
    creatable = caller.topics(AclOperation.CREATE, missing)
    return split(topics, lambda each: each.name not in missing or each.name in creatable)


API = declare(MetadataRequest, handle, guard=guard)
