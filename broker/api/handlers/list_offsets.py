"""ListOffsets: earliest and latest offset, offset by time, and the other special offsets."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TOPIC_DENIED, Verdict, merged, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import partitions
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from anabranch.s3stream.errors import ObjectDamage, StorageError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""First version with each special timestamp."""
LEADER_EPOCH_SINCE = 4
READ_COMMITTED = 1

Answers = list[tuple[str, list[ListOffsetsPartitionResponse | Coroutine[Any, Any, ListOffsetsPartitionResponse]]]]


def handle(
    serving: Serving, request: ListOffsetsRequest, exchange: Exchange
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    """Answer at once, or with a coroutine if an offset is looked up by time."""
    answers: Answers = []
    must_wait = False
    for topic in request.topics:
        twice = _named_twice(topic.partitions) if len(topic.partitions) > 1 else ()
        parts = [
            _lookup(serving, topic.name, requested, exchange.api_version, request.isolation_level)
            for requested in topic.partitions
            if requested.partition_index not in twice
        ]
        parts += [
            ListOffsetsPartitionResponse(partition_index=at, error_code=ErrorCode.INVALID_REQUEST) for at in twice
        ]
        must_wait = must_wait or any(not isinstance(part, ListOffsetsPartitionResponse) for part in parts)
        answers.append((topic.name, parts))
    with_epoch = exchange.api_version >= LEADER_EPOCH_SINCE
    return _await_all(answers, with_epoch=with_epoch) if must_wait else _respond(answers, with_epoch=with_epoch)


def _named_twice(partitions: Sequence[ListOffsetsPartition]) -> Collection[int]:
    """Return the partitions that the request contains more than once. They are refused as ambiguous."""
    indexes = [requested.partition_index for requested in partitions]
    if len(set(indexes)) == len(indexes):
        return ()
    return sorted(index for index, times in Counter(indexes).items() if times > 1)


def _lookup(
    serving: Serving, topic: str, requested: ListOffsetsPartition, version: int, isolation_level: int
) -> ListOffsetsPartitionResponse | Coroutine[Any, Any, ListOffsetsPartitionResponse]:
    try:
        partition = serving.topics.partition(topic, requested.partition_index)
        partition.check_leader_epoch(requested.current_leader_epoch)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(partition_index=requested.partition_index, error_code=error.code)
    timestamp = requested.timestamp
    if timestamp == LATEST:
        committed = isolation_level == READ_COMMITTED
        offset = partition.last_stable_offset if committed else partition.high_watermark
        return _found(partition, offset, epoch=partition.leader_epoch)
    if timestamp == EARLIEST:
        return _found(partition, partition.log_start_offset)
    if timestamp < 0 and version < _SINCE.get(timestamp, version + 1):
        return ListOffsetsPartitionResponse(
            partition_index=requested.partition_index, error_code=ErrorCode.UNSUPPORTED_VERSION
        )
    if timestamp in {EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD}:
        # There are no tiers: all data counts as local, and none waits for an upload to another tier.
        return _found(partition, partition.log_start_offset if timestamp == EARLIEST_LOCAL else -1)
    if timestamp == LATEST_TIERED:
        return _found(partition, -1)
    return _search(serving, partition, timestamp, isolation_level)


def _found(partition: Partition, offset: int, *, epoch: int | None = None) -> ListOffsetsPartitionResponse:
    if epoch is None:
        epoch = partition.epochs.epoch_of(offset) if offset >= 0 else -1
    return ListOffsetsPartitionResponse(partition_index=partition.index, offset=offset, leader_epoch=epoch)


async def _search(
    serving: Serving, partition: Partition, timestamp_ms: int, isolation_level: int
) -> ListOffsetsPartitionResponse:
    """Answer with the offset found for a time or MAX_TIMESTAMP, unless a READ_COMMITTED client cannot read it yet."""
    try:
        if timestamp_ms == MAX_TIMESTAMP:
            found = await partition.offset_of_max_timestamp()
        else:
            found = await partition.offset_for_time(timestamp_ms)
    except StorageError as error:
        return _failed(serving, partition, error)
    if found is None or (isolation_level == READ_COMMITTED and found[0] >= partition.last_stable_offset):
        return ListOffsetsPartitionResponse(partition_index=partition.index)
    offset, record_timestamp_ms = found
    return ListOffsetsPartitionResponse(
        partition_index=partition.index,
        timestamp=record_timestamp_ms,
        offset=offset,
        leader_epoch=partition.epochs.epoch_of(offset),
    )


def _failed(serving: Serving, partition: Partition, error: StorageError) -> ListOffsetsPartitionResponse:
    code = ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(error, ObjectDamage):
        # Clients retry after any other fitting code, even CORRUPT_MESSAGE, although the damage is permanent.
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        serving.damaged_requests += 1
    return ListOffsetsPartitionResponse(partition_index=partition.index, error_code=code)


async def _await_all(answers: Answers, *, with_epoch: bool) -> ListOffsetsResponse:
    for _, parts in answers:
        for at, part in enumerate(parts):
            if not isinstance(part, ListOffsetsPartitionResponse):
                parts[at] = await part
    return _respond(answers, with_epoch=with_epoch)


def _respond(answers: Answers, *, with_epoch: bool) -> ListOffsetsResponse:
    topics = []
    for name, parts in answers:
        done: Sequence[ListOffsetsPartitionResponse] = [
            part if with_epoch else dataclasses.replace(part, leader_epoch=-1)
            for part in parts
            if isinstance(part, ListOffsetsPartitionResponse)
        ]
        assert len(done) == len(parts), "every look-up has been awaited"
        topics.append(ListOffsetsTopicResponse(name=name, partitions=done))
    return ListOffsetsResponse(topics=topics)


def guard(caller: Caller, request: ListOffsetsRequest) -> Verdict:
    """Check DESCRIBE on each topic."""
    describable = caller.topics(AclOperation.DESCRIBE, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in describable)
    return merged(replace(request, topics=allowed), [_listed(topic) for topic in denied])


def _listed(topic: ListOffsetsTopic) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=TOPIC_DENIED)
            for each in topic.partitions
        ],
    )


API = declare(
    ListOffsetsRequest,
    handle,
    guard=guard,
    waits_for=partitions(
        lambda request: ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    ),
    relayed=True,
)
