"""Common parts of the five APIs of the states of share partitions: guard, order, errors of single partitions."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import CLUSTER_DENIED, Guard, Passed, Refused, Verdict
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.share.interface import ShareKey
from anabranch.broker.kafka.share.state.coordinator import durable
from anabranch.protocol.errors import ErrorCode, KafkaError

_OF_A_SHARD: Final = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors whose message says what is wrong with the request. Others say first what could not be done."""

T = TypeVar("T")
R = TypeVar("R")


class Result(NamedTuple, Generic[T]):
    """The result of one partition: `value` is None if there is an error."""

    partition: int
    error_code: ErrorCode
    error_message: str | None
    value: T | None


class _Begun(NamedTuple, Generic[T]):
    """Work on one partition that has begun: its value, and the outcome that this rests on."""

    value: T | None
    outcome: "asyncio.Future[ErrorCode] | None"
    error: KafkaError | None = None


async def results(
    verb: str,
    group_id: str,
    topics: Sequence[Any],
    begin: Callable[[ShareKey, Any], tuple[T | None, "asyncio.Future[ErrorCode] | None"]],
) -> Sequence[tuple[bytes, Sequence[Result[T]]]]:
    """Begin with all partitions of a request in its order, then wait for them. Returns results by topic.

    `verb` says in errors what is done. As in Apache Kafka, a request without a group, topics or partitions of a topic
    gets no results, and of a partition that is named twice the last result is told.
    """
    if not group_id or not all(topic.partitions for topic in topics):
        return ()
    begun: dict[bytes, dict[int, _Begun[T]]] = {}
    for topic in topics:
        of_topic = begun.setdefault(bytes(topic.topic_id), {})
        for requested in topic.partitions:
            key = ShareKey(group_id, bytes(topic.topic_id), requested.partition)
            try:
                of_topic[key.partition] = _Begun(*begin(key, requested))
            except KafkaError as error:
                of_topic[key.partition] = _Begun(None, None, error)
    return [
        (topic_id, [await _ended(verb, partition, each) for partition, each in partitions.items()])
        for topic_id, partitions in begun.items()
    ]


async def _ended(verb: str, partition: int, begun: _Begun[T]) -> Result[T]:
    error = begun.error
    if begun.outcome is not None:
        try:
            await durable(begun.outcome)
        except KafkaError as failure:
            error = failure
    if error is None:
        return Result(partition, ErrorCode.NONE, None, begun.value)
    prefix = "" if error.code in _OF_A_SHARD else f"Unable to {verb}: "
    return Result(partition, error.code, prefix + error.message, None)


def responder(
    response: Callable[..., R],
    topic_result: Callable[..., Any],
    partition_result: Callable[..., Any],
    fields: Callable[[T], Mapping[str, Any]] = lambda _: {},
) -> Callable[[Iterable[tuple[bytes, Sequence[Result[T]]]]], R]:
    """Return what makes a response of results, given its types. `fields` returns what a value is in it."""

    def partition(each: Result[T]) -> Any:
        found = {} if each.value is None else fields(each.value)
        return partition_result(
            partition=each.partition, error_code=each.error_code, error_message=each.error_message, **found
        )

    def respond(found: Iterable[tuple[bytes, Sequence[Result[T]]]]) -> R:
        return response(
            results=[
                topic_result(topic_id=topic_id, partitions=[partition(each) for each in partitions])
                for topic_id, partitions in found
            ]
        )

    return respond


def cluster_guard(refuse: Callable[[Iterable[tuple[bytes, Sequence[Result[Any]]]]], object]) -> Guard[Any]:
    """Return a guard that checks CLUSTER_ACTION on the cluster. `refuse` makes a response of results."""

    def guard(caller: Caller, request: Any) -> Verdict:
        if caller.may_cluster(AclOperation.CLUSTER_ACTION):
            return Passed(request)
        return Refused(
            refuse(
                (
                    bytes(topic.topic_id),
                    [Result(each.partition, CLUSTER_DENIED, CLUSTER_DENIED.message, None) for each in topic.partitions],
                )
                for topic in request.topics
            )
        )

    return guard
