"""Common parts of OffsetCommit and TxnOffsetCommit: the offsets that may be committed, and what clients are told."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Refused, Verdict, split, topic_error
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.protocol.errors import ErrorCode

NEVER_MS = -1
R = TypeVar("R")

Refusals = dict[tuple[int, int], ErrorCode]
"""Errors by position of topic and partition in the request. The others get the outcome of the write."""


def check_offsets(
    serving: Serving, topics: Sequence[Any], *, by_id: bool, now_ms: int, expire_timestamp_ms: int = NEVER_MS
) -> tuple[list[tuple[TopicPartition, CommittedOffset]], Refusals]:
    """Return the offsets of a request that may be committed, and the errors of the others.

    `by_id`: its version names topics by their ids.
    """
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: Refusals = {}
    metadata_bytes_max = serving.settings.group.offset_metadata_bytes_max
    for topic_index, requested in enumerate(topics):
        topic = serving.topics.get(requested.topic_id if by_id else requested.name)
        for partition_index, partition in enumerate(requested.partitions):
            if error := _error(topic, partition, metadata_bytes_max, by_id=by_id):
                refused[topic_index, partition_index] = error
                continue
            assert topic is not None, "partitions of unknown topics are refused"
            committed = CommittedOffset(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_timestamp_ms,
            )
            offsets.append((TopicPartition(topic.name, partition.partition_index), committed))
    return offsets, refused


def _error(topic: Topic | None, partition: Any, metadata_bytes_max: int, *, by_id: bool) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # As in Kafka, characters are counted, although the setting's name says bytes.
    if len(partition.committed_metadata or "") > metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def commit_error(error: ErrorCode) -> ErrorCode:
    """Return the code that clients get for an outcome of the log."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error == ErrorCode.MESSAGE_TOO_LARGE else error


@dataclass(frozen=True, slots=True)
class CommitAnswers(Generic[R]):
    """Answers of one of the APIs, made of its types."""

    response: Callable[..., R]
    topic: Callable[..., Any]
    partition: Callable[..., Any]

    def answer(self, topics: Sequence[Any], refused: Refusals, error: ErrorCode) -> R:
        """Return the answer with `error` for each partition that is not refused."""
        return self.response(
            topics=[
                self._topic(topic, (refused.get((at, index), error) for index in range(len(topic.partitions))))
                for at, topic in enumerate(topics)
            ]
        )

    def refuse(self, topics: Sequence[Any], code: ErrorCode) -> Refused:
        """Return the verdict that refuses all."""
        return Refused(self.answer(topics, {}, code))

    def check_topics(self, caller: Caller, request: Any) -> Verdict:
        """Check READ on each topic."""
        codes = {id(topic): topic_error(caller, AclOperation.READ, topic) for topic in request.topics}
        allowed, refused = split(request.topics, lambda topic: codes[id(topic)] is ErrorCode.NONE)
        errors = [self._topic(topic, (codes[id(topic)] for _ in topic.partitions)) for topic in refused]
        if not errors:
            return Passed(request)
        if not allowed:
            return Refused(self.response(topics=errors))

        def amend(response: Any) -> Any:
            return replace(response, topics=[*response.topics, *errors])

        return Passed(replace(request, topics=allowed), amend)

    def _topic(self, topic: Any, codes: Iterable[ErrorCode]) -> Any:
        return self.topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                self.partition(partition_index=each.partition_index, error_code=code)
                for each, code in zip(topic.partitions, codes, strict=True)
            ],
        )
