"""CreateTopics: create topics together. An error of one does not affect the others.

Replication factors up to the number of registered nodes are accepted, dead ones included, or any factor if
`topic.any_replication_factor` is set. So are assignments to registered nodes, of which the first living one is to lead.
Replicas serve reads, and lead rather than other nodes: durability comes from the object store and the log, whatever
their number.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import TOPIC_DENIED, Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.topic_checks import check_replicas, check_unique, first_living, registered_ids
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.broker.kafka.configs.topic import check_topic_configs
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.kafka.topics.creation import TopicCreation, TopicSpec
from anabranch.broker.kafka.topics.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from anabranch.s3stream.errors import StorageError

QUOTA_STRICT_SINCE = 6
"""First version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(serving: Serving, request: CreateTopicsRequest, exchange: Exchange) -> CreateTopicsResponse:
    """Check the topics in the order of the request, then create the valid ones together."""
    names = Counter(topic.name for topic in request.topics)
    try:
        await serving.membership.catch_up()  # a topic that another node has deleted must not seem to exist
        registered = await registered_ids(serving)
    except StorageError as error:
        return CreateTopicsResponse(
            topics=[_failure(name, ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) for name in names]
        )
    quota = exchange.mutation_quota(strict_since=QUOTA_STRICT_SINCE)
    results: dict[str, CreatableTopicResult] = {}
    creation = serving.topics.new_creation()
    for topic in request.topics:
        if topic.name in results:
            continue
        if request.validate_only:
            creation = serving.topics.new_creation()  # as in Kafka, each topic is validated by itself
        try:
            check_unique(names, topic.name)
            spec = _checked(serving, topic, creation, registered)
            if quota is not None:
                quota.record(spec.partitions)
        except KafkaError as error:
            results[topic.name] = _failure(topic.name, error.code, error.message)
        else:
            creation.add(spec)
            results[topic.name] = CreatableTopicResult(
                name=spec.name,
                error_message=None,
                num_partitions=spec.partitions,
                replication_factor=spec.factor,
                configs=_described(serving, _configs(topic)),
            )
    if not request.validate_only:
        await _create(serving, creation.specs, results)
    return CreateTopicsResponse(topics=list(results.values()))


async def _create(serving: Serving, specs: Sequence[TopicSpec], results: dict[str, CreatableTopicResult]) -> None:
    """Create the valid topics, and complete `results`."""
    try:
        created = await serving.topic_commands.create_all(specs)
    except StorageError as error:
        for spec in specs:
            results[spec.name] = _failure(spec.name, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return
    for spec, answer in zip(specs, created, strict=True):
        if isinstance(answer, KafkaError):
            results[spec.name] = _failure(spec.name, answer.code, answer.message)
        else:
            factor = len(answer.info.partitions[0].replicas) or 1  # below the level of replicas one
            results[spec.name] = replace(results[spec.name], topic_id=answer.topic_id, replication_factor=factor)


def _failure(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    said = None if code == ErrorCode.THROTTLING_QUOTA_EXCEEDED else message  # as in Kafka
    return CreatableTopicResult(name=name, error_code=code, error_message=said, configs=())


def _checked(
    serving: Serving, requested: CreatableTopic, creation: TopicCreation, registered: Collection[int]
) -> TopicSpec:
    """Return the topic if it can be created together with those of `creation`. Raises KafkaError."""
    creation.check_name(requested.name)
    leaders: Sequence[int] | None = None
    replicas: Sequence[Sequence[int]] | None = None
    if requested.assignments:
        replicas = _assigned(serving, requested, registered)
        leaders = [first_living(serving, node_ids, index) for index, node_ids in enumerate(replicas)]
        partitions, factor = len(replicas), len(replicas[0])
    else:
        partitions, factor = _partitions(serving, requested), _factor(serving, requested, len(registered))
    internal = requested.name in INTERNAL_TOPICS
    configs = check_topic_configs(_configs(requested), serving.settings, internal=internal)
    spec = TopicSpec(requested.name, partitions, configs, internal, leaders, replicas, factor)
    creation.check_room(spec.partitions)
    return spec


def _configs(requested: CreatableTopic) -> dict[str, str | None]:
    return {config.name: config.value for config in requested.configs}


def _partitions(serving: Serving, requested: CreatableTopic) -> int:
    """Return the number of partitions. Raises INVALID_PARTITIONS."""
    if requested.num_partitions < -1 or requested.num_partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    return serving.settings.topic.num_partitions if requested.num_partitions == -1 else requested.num_partitions


def _factor(serving: Serving, requested: CreatableTopic, nodes: int) -> int:
    """Return the replication factor, which `nodes` limits. Raises INVALID_REPLICATION_FACTOR."""
    factor = requested.replication_factor
    if factor < -1 or factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if factor > nodes and not serving.settings.topic.any_replication_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            f"reached because only {nodes} broker(s) are registered.",
        )
    return min(serving.settings.topic.replication_factor if factor == -1 else factor, nodes)


def _assigned(serving: Serving, requested: CreatableTopic, registered: Collection[int]) -> Sequence[Sequence[int]]:
    """Return the wanted replicas of each partition. Raises Kafka's errors for invalid assignments."""
    if requested.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if requested.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    replicas: dict[int, Sequence[int]] = {}
    factor: int | None = None
    for assignment in requested.assignments:
        if assignment.partition_index in replicas:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        check_replicas(serving, assignment.broker_ids, factor, registered)
        factor = len(assignment.broker_ids)
        first_living(serving, assignment.broker_ids, assignment.partition_index)
        replicas[assignment.partition_index] = assignment.broker_ids
    if replicas.keys() != set(range(len(replicas))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return [replicas[index] for index in range(len(replicas))]


def _described(serving: Serving, configs: Mapping[str, str | None]) -> list[CreatableTopicConfigs]:
    """Return all configs of a topic, with the given ones as they were given, as Kafka does."""
    described = []
    for name, row in TOPIC_CONFIGS.items():
        synonyms = serving.broker_configs.topic_synonyms(row)
        value: str | None
        value, source = synonyms[0][1:] if synonyms else (row.default, ConfigSource.DEFAULT_CONFIG)
        if name in configs:
            value, source = configs[name], ConfigSource.DYNAMIC_TOPIC_CONFIG
        described.append(
            CreatableTopicConfigs(name=name, value=value, read_only=False, config_source=source, is_sensitive=False)
        )
    return described


def guard(caller: Caller, request: CreateTopicsRequest) -> Verdict:
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
        CreatableTopicResult(name=topic.name, error_code=TOPIC_DENIED, error_message="Authorization failed.")
        for topic in request.topics
        if topic.name in denied
    ]

    def amend(response: CreateTopicsResponse) -> CreateTopicsResponse:
        topics = [
            topic
            if topic.error_code or topic.name in shown
            else replace(
                topic, topic_config_error_code=TOPIC_DENIED, num_partitions=-1, replication_factor=-1, configs=()
            )
            for topic in response.topics
        ]
        return replace(response, topics=[*topics, *errors])

    allowed = [topic for topic in request.topics if topic.name not in denied]
    return Passed(replace(request, topics=allowed), amend)


def changes_of(_request: CreateTopicsRequest, response: CreateTopicsResponse) -> Iterable[Change]:
    """Return the topics that were to be created."""
    return (Change("TOPIC", each.name, each.error_code) for each in response.topics)


API = declare(CreateTopicsRequest, handle, guard=guard, changes=changes_of)
