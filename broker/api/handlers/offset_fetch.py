"""OffsetFetch: durable committed offsets of groups. A partition without one has offset -1 and no error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.broker.cluster.node import Node
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


def handle(node: Node, request: OffsetFetchRequest, exchange: Exchange) -> OffsetFetchResponse:
    """Answer at once."""
    version = exchange.api_version
    stable = request.require_stable
    if version >= GROUPS_VERSION:
        return OffsetFetchResponse(
            groups=[_group(node, requested, version, stable=stable) for requested in request.groups]
        )
    try:
        found = _find(node, request.group_id, request.topics, version, stable=stable)
        error = ErrorCode.NONE
    except KafkaError as refused:
        found, error = [], refused.code
        if version < ERROR_FIELD_VERSION:
            found = [
                FoundTopic(topic.name, NO_TOPIC_ID, dict.fromkeys(topic.partition_indexes, NOTHING_COMMITTED), error)
                for topic in request.topics or ()
            ]
    return OffsetFetchResponse(topics=[_old_topic(topic) for topic in found], error_code=error)


def _group(node: Node, requested: OffsetFetchRequestGroup, version: int, *, stable: bool) -> OffsetFetchResponseGroup:
    try:
        if error := node.groups.shard(requested.group_id).offsets.check_fetch(
            requested.group_id, requested.member_id, requested.member_epoch
        ):
            return OffsetFetchResponseGroup(group_id=requested.group_id, error_code=error)
        found = _find(node, requested.group_id, requested.topics, version, stable=stable)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=requested.group_id, error_code=error.code)
    return OffsetFetchResponseGroup(group_id=requested.group_id, topics=[_new_topic(topic) for topic in found])


def _find(
    node: Node,
    group_id: str,
    topics: Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestTopics] | None,
    version: int,
    *,
    stable: bool,
) -> list[FoundTopic]:
    offsets = node.groups.shard(group_id).offsets.of(group_id) or GroupOffsets()
    found = _all(node, offsets) if topics is None else (_asked(node, offsets, each, version) for each in topics)
    if stable and offsets.transactional:
        return [_without_unstable(topic, offsets) for topic in found]
    return list(found)


def _without_unstable(topic: FoundTopic, offsets: GroupOffsets) -> FoundTopic:
    """Leave out the offsets that an open transaction may change (KIP-447)."""
    unstable = frozenset(index for index in topic.offsets if offsets.is_unstable(topic.name, index))
    shown = {index: NOTHING_COMMITTED if index in unstable else each for index, each in topic.offsets.items()}
    return topic._replace(offsets=shown, unstable=unstable)


def _all(node: Node, offsets: GroupOffsets) -> Iterable[FoundTopic]:
    """Yield all offsets but those of detached topics, whose end offsets tools could not read."""
    for name, partitions in offsets.topics.items():
        topic = node.topics.get(name)
        if topic is not None:
            yield FoundTopic(name, topic.topic_id, partitions)


def _asked(
    node: Node, offsets: GroupOffsets, requested: OffsetFetchRequestTopic | OffsetFetchRequestTopics, version: int
) -> FoundTopic:
    name, topic_id = requested.name, NO_TOPIC_ID
    error = ErrorCode.NONE
    if isinstance(requested, OffsetFetchRequestTopics) and version >= TOPIC_ID_VERSION:
        topic_id = requested.topic_id
        topic = node.topics.get(topic_id)
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
