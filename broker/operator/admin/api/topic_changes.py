"""Changes of topics, by the same requests that Kafka's tools send, with the same refusals.

With `validate_only` an answer is the plan, and nothing is changed.
"""

from typing import Annotated, Final

from pydantic import Field

from anabranch.broker.api.handlers.leadership import leadership_of
from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, ValidationQuery, check
from anabranch.broker.operator.admin.api.topics import Topics, topic_named
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TIMEOUT_MS: Final = 8_000
CONFIGS_MAX: Final = 100
_SET, _DELETE = 0, 1
_COUNT_MAX: Final = 2**31 - 1

PartitionCount = Annotated[int, Field(ge=1, le=_COUNT_MAX)]


class TopicCreation(Model):
    """A topic to create."""

    name: Annotated[str, Field(min_length=1, max_length=249)]
    partitions: PartitionCount | None = None
    """By default as many as the node's settings say."""
    configs: dict[str, str] = Field(default_factory=dict, max_length=CONFIGS_MAX)
    validate_only: bool = False


class CreatedConfig(Model):
    """A config of a new topic."""

    name: str
    value: str | None
    default: bool
    """True if the topic does not set it."""


class Placement(Model):
    """Leader of a partition."""

    partition: int
    leader: int | None


class CreatedTopic(Model):
    """A topic that was created, or that would be."""

    name: str
    partitions: int
    configs: list[CreatedConfig]
    placement: list[Placement] | None
    """Null with `validate_only`: leaders are chosen when a topic is created."""


class TopicAlteration(Model):
    """Changes of a topic. A value of null sets a config back to its default."""

    partitions: PartitionCount | None = None
    """Number of partitions in all."""
    configs: dict[str, str | None] = Field(default_factory=dict, max_length=CONFIGS_MAX)
    validate_only: bool = False


class Difference(Model):
    """A change of one thing."""

    what: str
    """Name of a config, or `partitions`."""
    before: Annotated[str | None, Field(serialization_alias="from")]
    """Null: the default."""
    after: Annotated[str | None, Field(serialization_alias="to")]


class Differences(Model):
    """Changes that were made, or that would be."""

    changes: list[Difference]


class DeletedTopic(Model):
    """Contents that are deleted with a topic, or that would be."""

    records: int | None
    """Null if some leader has not answered."""
    bytes: int | None
    partitions: int
    groups: list[str]
    """Groups that lose their offsets of it."""


class TopicChangeEndpoints:
    """Endpoints that change topics."""

    def __init__(self, serving: Serving, topics: Topics, local: LocalRequests) -> None:
        self._serving = serving
        self._topics = topics
        self._local = local
        path = "/topics/{topic}"
        self.endpoints = [
            Endpoint("POST", "/topics", "Create a topic.", self._create, CreatedTopic, body=TopicCreation),
            Endpoint("PATCH", path, "Alter a topic.", self._alter, Differences, body=TopicAlteration),
            Endpoint("DELETE", path, "Delete a topic.", self._delete, DeletedTopic, query=ValidationQuery),
        ]

    async def _create(self, call: Call) -> CreatedTopic:
        wanted: TopicCreation = call.body
        topic = CreatableTopic(
            name=wanted.name,
            num_partitions=-1 if wanted.partitions is None else wanted.partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in wanted.configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=wanted.validate_only)
        (result,) = (await self._local.call(request, call.user)).topics
        check(result.error_code, result.error_message)
        return CreatedTopic(
            name=wanted.name,
            partitions=result.num_partitions,
            configs=[
                CreatedConfig(name=each.name, value=each.value, default=each.name not in wanted.configs)
                for each in result.configs or ()
            ],
            placement=None if wanted.validate_only else self._placement(wanted.name),
        )

    def _placement(self, name: str) -> list[Placement]:
        topic = topic_named(self._serving, name)
        leaders = [leadership_of(self._serving, topic, index).leader for index in range(len(topic.info.partitions))]
        return [
            Placement(partition=index, leader=None if leader is None else leader.node_id)
            for index, leader in enumerate(leaders)
        ]

    async def _alter(self, call: Call) -> Differences:
        wanted: TopicAlteration = call.body
        topic = topic_named(self._serving, call.path["topic"])
        present, count = len(topic.info.partitions), wanted.partitions
        own = {each.name: each.value for each in await self._topics.configs(topic.name, call.user) if each.is_own}
        configs = [
            Difference(what=name, before=own.get(name), after=value)
            for name, value in wanted.configs.items()
            if value != own.get(name)
        ]
        # No single request changes both, so all is checked before anything is changed.
        for validate_only in (True,) if wanted.validate_only else (True, False):
            if configs:
                await self._alter_configs(topic.name, configs, call.user, validate_only=validate_only)
            if count is not None and count != present:
                await self._grow(topic.name, count, call.user, validate_only=validate_only)
        if count is not None and count != present:
            configs.append(Difference(what="partitions", before=str(present), after=str(count)))
        return Differences(changes=configs)

    async def _alter_configs(self, name: str, changes: list[Difference], user: User, *, validate_only: bool) -> None:
        configs = [
            AlterableConfig(name=each.what, config_operation=_DELETE if each.after is None else _SET, value=each.after)
            for each in changes
        ]
        resource = AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (result,) = (await self._local.call(request, user)).responses
        check(result.error_code, result.error_message)

    async def _grow(self, name: str, count: int, user: User, *, validate_only: bool) -> None:
        topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
        (result,) = (await self._local.call(request, user)).results
        check(result.error_code, result.error_message)

    async def _delete(self, call: Call) -> DeletedTopic:
        topic = topic_named(self._serving, call.path["topic"])
        if topic.info.internal:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The topic {topic.name!r} is internal: groups or transactions need it."
            )
        described = await self._topics.describe(topic.name, call.user)
        counts = [
            each.high_watermark - each.start_offset
            for each in described.partitions
            if each.high_watermark is not None and each.start_offset is not None
        ]
        sizes = [each.bytes for each in described.partitions if each.bytes is not None]
        count = len(topic.info.partitions)
        plan = DeletedTopic(
            records=sum(counts) if len(counts) == count else None,
            bytes=sum(sizes) if len(sizes) == count else None,
            partitions=count,
            groups=[each.group_id for each in described.groups],
        )
        if not call.query.validate_only:
            # By its id, so that a topic of that name that was created meanwhile is left alone.
            state = DeleteTopicState(name=None, topic_id=topic.topic_id)
            request = DeleteTopicsRequest(topics=[state], timeout_ms=TIMEOUT_MS)
            (result,) = (await self._local.call(request, call.user)).responses
            check(result.error_code, result.error_message)
        return plan
