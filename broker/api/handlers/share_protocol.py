"""Parts that the APIs of share groups have in common (KIP-932)."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.features import SHARE_VERSION
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.requests import GroupRequest
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.relay import relay
from anabranch.protocol.errors import ErrorCode, KafkaError, known_code
from anabranch.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST: Final = -1
LIST_OFFSETS_VERSION: Final = 9
TopicPartition = tuple[str, int]


def check_share_protocol(serving: Serving) -> None:
    """Raise UNSUPPORTED_VERSION when `share.version` was lowered to 0, which turns share groups off."""
    if serving.features.level(SHARE_VERSION) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "")


async def ask(shard: GroupShard, group_id: str, make: Callable[[object], GroupRequest[None]]) -> Any:
    """Return the response of a group to the request that `make` makes of a ticket. Raises KafkaError."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shard.membership.handle(group_id, make(respond_to(answered)))
    return await answered


async def end_offsets(
    serving: Serving, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, int | ErrorCode]:
    """Return the high watermark of each partition, asked for at its leader, or why it is not known."""
    found: dict[TopicPartition, int | ErrorCode] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for topic, index in partitions:
        leadership = find_leadership(serving, topic, index)
        if leadership is None:
            found[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif leadership.leader is None:
            found[topic, index] = ErrorCode.LEADER_NOT_AVAILABLE
        elif leadership.leader is serving.members.own:
            found[topic, index] = _own_end(serving, topic, index)
        else:
            elsewhere.setdefault(leadership.leader.node_id, []).append((topic, index))
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_ends_at(serving, node_id, wanted)) for node_id, wanted in elsewhere.items()]
    for task in asked:
        found.update(task.result())
    return found


def _own_end(serving: Serving, topic: str, index: int) -> int | ErrorCode:
    try:
        return serving.topics.partition(topic, index).high_watermark
    except KafkaError as error:
        return error.code


async def _ends_at(
    serving: Serving, node_id: int, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, int | ErrorCode]:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(ListOffsetsPartition(partition_index=index, timestamp=LATEST))
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in by_topic.items()]
    )
    missing = dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE)
    try:
        response: ListOffsetsResponse = await relay(serving.links, node_id, request, LIST_OFFSETS_VERSION)
    except PeerUnavailable:
        return missing
    return {**missing, **dict(_ends_in(response))}


def _ends_in(response: ListOffsetsResponse) -> Iterable[tuple[TopicPartition, int | ErrorCode]]:
    for topic in response.topics:
        for each in topic.partitions:
            yield (
                (topic.name, each.partition_index),
                each.offset if not each.error_code else known_code(each.error_code),
            )
