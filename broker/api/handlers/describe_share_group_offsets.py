"""DescribeShareGroupOffsets (KIP-932): start offsets of share groups' partitions, and their lag (KIP-1226).

Partitions that are named are looked up by any node: the share coordinators have them. Which ones a group has at all,
only its coordinator knows. As in Kafka, a partition without a state is no error: its start offset is -1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_protocol import check_share_protocol, end_offsets
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.share.group import ShareGroup
from anabranch.broker.kafka.share.interface import UNINITIALIZED_START_OFFSET, UNKNOWN_COUNT, ShareKey, ShareSummary
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)


async def handle(
    serving: Serving, request: DescribeShareGroupOffsetsRequest, _exchange: Exchange
) -> DescribeShareGroupOffsetsResponse:
    """Answer when the share coordinators and the leaders of the partitions have."""
    return DescribeShareGroupOffsetsResponse(groups=[await _described(serving, group) for group in request.groups])


async def _described(
    serving: Serving, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    try:
        check_share_protocol(serving)
        topics = group.topics if group.topics is not None else _topics_of(serving, group.group_id)
    except KafkaError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group.group_id, error_code=error.code, error_message=error.message or None
        )
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id, topics=await _offsets(serving, group.group_id, topics)
    )


def _topics_of(serving: Serving, group_id: str) -> Sequence[DescribeShareGroupOffsetsRequestTopic]:
    """Return the partitions of a group that have a state; none for an unknown group. Raises KafkaError."""
    group = serving.groups.shard(group_id).group(group_id)
    initialized = group.states.initialized if isinstance(group, ShareGroup) else {}
    return [
        DescribeShareGroupOffsetsRequestTopic(topic_name=topic.name, partitions=sorted(indexes))
        for topic_id, (_, indexes) in initialized.items()
        if (topic := serving.topics.get(topic_id)) is not None
    ]


async def _offsets(
    serving: Serving, group_id: str, topics: Sequence[DescribeShareGroupOffsetsRequestTopic]
) -> Sequence[DescribeShareGroupOffsetsResponseTopic]:
    keys = {
        (topic.topic_name, index): ShareKey(group_id, found.topic_id, index)
        for topic in topics
        if (found := serving.topics.get(topic.topic_name)) is not None
        for index in topic.partitions
    }
    summaries = await serving.share_persister.summaries(keys.values()) if keys else {}
    known = {place: summary for place, key in keys.items() if isinstance(summary := summaries.get(key), ShareSummary)}
    ends = await end_offsets(serving, [place for place, summary in known.items() if _has_lag(summary)])
    return [
        DescribeShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name,
            topic_id=found.topic_id if (found := serving.topics.get(topic.topic_name)) is not None else bytes(16),
            partitions=[
                _partition(index, known.get((topic.topic_name, index)), ends, topic.topic_name)
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _has_lag(summary: ShareSummary) -> bool:
    return summary.start_offset != UNINITIALIZED_START_OFFSET and summary.delivery_complete_count != UNKNOWN_COUNT


def _partition(
    index: int, summary: ShareSummary | None, ends: Mapping[tuple[str, int], int | ErrorCode], topic: str
) -> DescribeShareGroupOffsetsResponsePartition:
    if summary is None:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=UNINITIALIZED_START_OFFSET
        )
    end = ends.get((topic, index))
    if isinstance(end, ErrorCode):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=end, error_message=end.message
        )
    lag = -1 if end is None else end - summary.start_offset - summary.delivery_complete_count
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=summary.start_offset, leader_epoch=summary.leader_epoch, lag=lag
    )


def guard(caller: Caller, request: DescribeShareGroupOffsetsRequest) -> Verdict:
    """Check DESCRIBE on each group and topic. Topics that are not named in the request are left out if denied."""
    allowed, denied = split(request.groups, lambda group: caller.may_group(AclOperation.DESCRIBE, group.group_id))
    errors = [
        DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, error_code=GROUP_DENIED) for group in denied
    ]
    hidden: dict[str, list[DescribeShareGroupOffsetsResponseTopic]] = {}
    passed = []
    for group in allowed:
        if group.topics is None:
            passed.append(group)
            continue
        seen, unseen = split(group.topics, lambda topic: caller.may_topic(AclOperation.DESCRIBE, topic.topic_name))
        hidden[group.group_id] = [_denied(topic) for topic in unseen]
        passed.append(replace(group, topics=seen))

    def shown(group: DescribeShareGroupOffsetsResponseGroup) -> DescribeShareGroupOffsetsResponseGroup:
        if group.group_id in hidden:
            return replace(group, topics=[*group.topics, *hidden[group.group_id]])
        names = caller.topics(AclOperation.DESCRIBE, [topic.topic_name for topic in group.topics], audited=False)
        return replace(group, topics=[topic for topic in group.topics if topic.topic_name in names])

    def amend(response: DescribeShareGroupOffsetsResponse) -> DescribeShareGroupOffsetsResponse:
        return replace(response, groups=[*map(shown, response.groups), *errors])

    return Passed(replace(request, groups=passed), amend)


def _denied(topic: DescribeShareGroupOffsetsRequestTopic) -> DescribeShareGroupOffsetsResponseTopic:
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=UNINITIALIZED_START_OFFSET,
                error_code=TOPIC_DENIED,
                error_message=TOPIC_DENIED.message,
            )
            for index in topic.partitions
        ],
    )


API = declare(
    DescribeShareGroupOffsetsRequest,
    handle,
    guard=guard,
    waits_for=groups(lambda request: [group.group_id for group in request.groups if group.topics is None]),
    relayed=True,
)
