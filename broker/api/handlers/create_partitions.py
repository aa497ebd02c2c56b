"""CreatePartitions: add partitions to topics.

An assignment names as many registered nodes as the topic's partitions have replicas. The first living one is to lead.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import TOPIC_DENIED, Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.topic_checks import check_replicas, check_unique, first_living, registered_ids
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange, MutationQuota
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from anabranch.s3stream.errors import StorageError

WITHOUT_MESSAGE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""As in Kafka."""
QUOTA_STRICT_SINCE = 3
"""First version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(serving: Serving, request: CreatePartitionsRequest, exchange: Exchange) -> CreatePartitionsResponse:
    """Add partitions to each topic. An error concerns its topic only."""
    names = Counter(topic.name for topic in request.topics)
    try:
        await serving.membership.catch_up()  # another node may have created or grown the topics
    except StorageError as error:
        return CreatePartitionsResponse(results=[_failure(name, error) for name in names])
    quota = exchange.mutation_quota(strict_since=QUOTA_STRICT_SINCE)
    results = []
    for name, topic in {topic.name: topic for topic in request.topics}.items():
        try:
            check_unique(names, name)
            await _grow(serving, topic, quota, validate_only=request.validate_only)
            results.append(CreatePartitionsTopicResult(name=name))
        except KafkaError as error:
            message = None if error.code in WITHOUT_MESSAGE else error.message
            results.append(CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=message))
        except StorageError as error:
            results.append(_failure(name, error))
    return CreatePartitionsResponse(results=results)


def _failure(name: str, error: StorageError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=str(error))


async def _grow(
    serving: Serving, requested: CreatePartitionsTopic, quota: MutationQuota | None, *, validate_only: bool
) -> None:
    topic = serving.topics.get(requested.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.info.internal:
        # Groups and transactional ids belong to partitions by their number: existing ones could not be found any more.
        message = f"The number of partitions of the internal topic {requested.name} cannot be changed."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    before = len(topic.partitions)
    if requested.count <= before:
        message = f"Topic already has {before} partition(s)."
        if requested.count != before:
            message = (
                f"The topic {requested.name} currently has {before} partition(s); "
                f"{requested.count} would not be an increase."
            )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    serving.topics.new_creation().check_room(requested.count - before)
    leaders: list[int] | None = None
    replicas: list[Sequence[int]] | None = None
    if requested.assignments is not None:
        if len(requested.assignments) != requested.count - before:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {requested.count - before} additional partition(s), but only "
                f"{len(requested.assignments)} assignment(s) were specified.",
            )
        registered = await registered_ids(serving)
        leaders, replicas = [], []
        factor = len(topic.info.partitions[0].replicas) or 1
        for index, assignment in enumerate(requested.assignments, before):
            check_replicas(serving, assignment.broker_ids, factor, registered)
            replicas.append(assignment.broker_ids)
            leaders.append(first_living(serving, assignment.broker_ids, index))
    if quota is not None:
        quota.record(requested.count - before)
    if not validate_only:
        await serving.topic_commands.grow(requested.name, requested.count, leaders, replicas)


def guard(caller: Caller, request: CreatePartitionsRequest) -> Verdict:
    """Check ALTER on each topic."""
    counts = Counter(topic.name for topic in request.topics)
    once = {name for name, count in counts.items() if count == 1}
    denied = once - caller.topics(AclOperation.ALTER, once)
    errors = [CreatePartitionsTopicResult(name=name, error_code=TOPIC_DENIED) for name in sorted(denied)]

    def amend(response: CreatePartitionsResponse) -> CreatePartitionsResponse:
        return replace(response, results=[*response.results, *errors])

    allowed = [topic for topic in request.topics if topic.name not in denied]
    return Passed(replace(request, topics=allowed), amend if errors else None)


def _changes(_request: CreatePartitionsRequest, response: CreatePartitionsResponse) -> Iterable[Change]:
    return (Change("TOPIC", each.name, each.error_code) for each in response.results)


API = declare(CreatePartitionsRequest, handle, guard=guard, changes=_changes)
