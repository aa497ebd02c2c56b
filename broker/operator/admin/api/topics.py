"""Topics and their partitions, listed and described. Offsets and sizes are asked of the leaders."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from anabranch.broker.api.handlers.leadership import NO_LEADER, leadership_of
from anabranch.broker.api.handlers.list_offsets import EARLIEST, LATEST
from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.broker.kafka.coordination.internal_topics import SCHEMAS_TOPIC
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.admin.api.calls import Calls, Partition
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, check
from anabranch.broker.operator.admin.api.followers import ReplicaRow, replicas_of
from anabranch.broker.operator.admin.api.groups import GROUPS_MAX, Groups, total_lag
from anabranch.broker.operator.admin.api.offsets import Ends, Offsets
from anabranch.broker.operator.admin.api.sizes import Sizes
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

TOPICS_MAX: Final = 2000
PARTITIONS_MAX: Final = 10_000
"""Partitions that an answer is about."""
INDEX_DIGITS_MAX: Final = 10
_OWN: Final = ConfigSource.DYNAMIC_TOPIC_CONFIG


class TopicRow(Model):
    """A topic in a list."""

    name: str
    id: str
    internal: bool
    """True if the nodes keep it for groups, transactions or schemas."""
    partitions: int
    leaders: list[int]
    leaderless: int
    records: int | None
    """Offsets between start and end of all partitions; null if some leader has not answered."""
    end_offsets: int | None
    """Sum of the end offsets of all partitions, which grows with each record: the rate follows from two answers."""
    bytes: int | None
    """Bytes in objects, and in the log as far as they are in no object yet; null if some leader does not know."""
    cleanup_policy: str
    retention_ms: int


class TopicList(Model):
    """All topics."""

    topics: list[TopicRow]
    more: bool
    unreachable: list[int]


class PartitionRow(Model):
    """A partition of a topic."""

    index: int
    leader: int | None
    leader_epoch: int
    replicas: list[ReplicaRow]
    start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    bytes: int | None
    """As of topics."""
    error: str | None


class ConfigRow(Model):
    """A config of a topic."""

    name: str
    value: str | None
    default: str | None
    """Value that applies without the topic's own."""
    is_own: bool
    """True if the topic sets it."""
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None


class TopicGroup(Model):
    """A group that has committed offsets of a topic."""

    group_id: str
    lag: int | None
    """Records of the topic between its offsets and the ends."""


class TopicDescription(Model):
    """A topic."""

    name: str
    id: str
    internal: bool
    partitions: list[PartitionRow]
    configs: list[ConfigRow]
    groups: list[TopicGroup]
    more: bool
    """True if there are more partitions than are shown."""
    unreachable: list[int]


class Topics:
    """Describes topics."""

    def __init__(
        self, serving: Serving, calls: Calls, local: LocalRequests, offsets: Offsets, sizes: Sizes, groups: Groups
    ) -> None:
        self._serving = serving
        self._calls = calls
        self._local = local
        self._offsets = offsets
        self._sizes = sizes
        self._groups = groups

    async def find_all(self, user: User) -> TopicList:
        """Describe all topics, up to a limit of their number and that of their partitions."""
        topics = sorted(self._serving.topics, key=lambda topic: topic.name)
        shown = list(_limited(topics))
        partitions = [key for topic in shown for key in partitions_of(topic)]
        starts = await self._offsets.at(partitions, EARLIEST, user)
        ends = await self._offsets.at(partitions, LATEST, user)
        sizes = await self._sizes.of(partitions, user)
        return TopicList(
            topics=[self._row(topic, starts.offsets, ends.offsets, sizes.bytes) for topic in shown],
            more=len(topics) > len(shown),
            unreachable=sorted(starts.unreachable | ends.unreachable | sizes.unreachable),
        )

    def _row(
        self,
        topic: Topic,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        sizes: Mapping[Partition, int],
    ) -> TopicRow:
        keys = partitions_of(topic)
        leaders = {self._calls.leader_of(*key) for key in keys}
        is_known = all(key in starts and key in ends for key in keys)
        return TopicRow(
            name=topic.name,
            id=uuid_text(topic.topic_id),
            internal=is_internal(self._serving, topic),
            partitions=len(keys),
            leaders=sorted(leaders - {NO_LEADER}),
            leaderless=sum(self._calls.leader_of(*key) == NO_LEADER for key in keys),
            records=sum(ends[key] - starts[key] for key in keys) if is_known else None,
            end_offsets=sum(ends[key] for key in keys) if is_known else None,
            bytes=sum(sizes[key] for key in keys) if all(key in sizes for key in keys) else None,
            cleanup_policy=_cleanup_policy(topic),
            retention_ms=topic.config.retention_ms,
        )

    async def describe(self, name: str, user: User) -> TopicDescription:
        """Describe one topic. Raises KafkaError if there is none of that name."""
        topic = topic_named(self._serving, name)
        keys = partitions_of(topic)[:PARTITIONS_MAX]
        offsets, unreachable = await self._offsets.ends(keys, user)
        sizes = await self._sizes.of(keys, user)
        groups, more_unreachable = await self._groups_of(topic.name, offsets, user)
        replicas = await replicas_of(self._calls, topic, range(len(keys)), user)
        return TopicDescription(
            name=topic.name,
            id=uuid_text(topic.topic_id),
            internal=is_internal(self._serving, topic),
            partitions=[
                self._partition(topic, index, replicas.get(index, []), offsets.get(key), sizes.bytes.get(key))
                for index, key in enumerate(keys)
            ],
            configs=await self.configs(topic.name, user),
            groups=groups,
            more=len(topic.info.partitions) > len(keys),
            unreachable=sorted(unreachable | sizes.unreachable | more_unreachable),
        )

    def _partition(
        self, topic: Topic, index: int, replicas: list[ReplicaRow], ends: Ends | None, size: int | None
    ) -> PartitionRow:
        leadership = leadership_of(self._serving, topic, index)
        partition = topic.partitions[index]
        error = None
        if partition is not None and partition.stream.error is not None:
            error = str(partition.stream.error)
        elif leadership.leader is None:
            error = "no node leads it"
        elif ends is None:
            error = "its leader has not answered"
        return PartitionRow(
            index=index,
            leader=None if leadership.leader is None else leadership.leader.node_id,
            leader_epoch=leadership.leader_epoch,
            replicas=replicas,
            start_offset=None if ends is None else ends.start,
            high_watermark=None if ends is None else ends.high_watermark,
            last_stable_offset=None if ends is None else ends.last_stable,
            bytes=size,
            error=error,
        )

    async def configs(self, name: str, user: User) -> list[ConfigRow]:
        """Describe the configs of a topic."""
        resource = DescribeConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None
        )
        answer = await self._local.call(
            DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True), user
        )
        (result,) = answer.results
        check(result.error_code, result.error_message)
        return [
            ConfigRow(
                name=each.name,
                value=each.value,
                default=next((other.value for other in each.synonyms if other.source != _OWN), None),
                is_own=each.config_source == _OWN,
                source=ConfigSource(each.config_source).name.lower(),
                read_only=each.read_only,
                sensitive=each.is_sensitive,
                documentation=each.documentation,
            )
            for each in result.configs
        ]

    async def _groups_of(
        self, name: str, ends: Mapping[Partition, Ends], user: User
    ) -> tuple[list[TopicGroup], frozenset[int]]:
        """Return the groups that have committed offsets of a topic, of a limited number of groups."""
        found, unreachable = await self._groups.find_all(user)
        committed, more_unreachable = await self._groups.committed(found[:GROUPS_MAX], user)
        high = {key: each.high_watermark for key, each in ends.items()}
        groups = []
        for group_id, offsets in sorted(committed.items()):
            if own := {key: each for key, each in offsets.items() if key[0] == name}:
                groups.append(TopicGroup(group_id=group_id, lag=total_lag(own, high)))
        return groups, unreachable | more_unreachable


class TopicEndpoints:
    """Endpoints that read topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.endpoints = [
            Endpoint("GET", "/topics", "All topics.", self._list, TopicList),
            Endpoint("GET", "/topics/{topic}", "One topic.", self._describe, TopicDescription),
        ]

    async def _list(self, call: Call) -> TopicList:
        return await self._topics.find_all(call.user)

    async def _describe(self, call: Call) -> TopicDescription:
        return await self._topics.describe(call.path["topic"], call.user)


def topic_named(serving: Serving, name: str) -> Topic:
    """Return a topic. Raises KafkaError if there is none of that name."""
    found = serving.topics.get(name)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
    return found


def is_internal(serving: Serving, topic: Topic) -> bool:
    """Return whether the nodes keep a topic for themselves: for groups, transactions or schemas.

    To Kafka's clients the topic of schemas is an ordinary one, as that of other registries is.
    """
    return topic.info.internal or (topic.name == SCHEMAS_TOPIC and serving.settings.schema_registry.enabled)


def partition_index(topic: Topic, text: str) -> int:
    """Return the index of a partition that a path names. Raises KafkaError if there is none."""
    index = int(text) if text.isascii() and text.isdecimal() and len(text) < INDEX_DIGITS_MAX else -1
    if not 0 <= index < len(topic.info.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {text} of topic {topic.name} does not exist")
    return index


def partitions_of(topic: Topic) -> list[Partition]:
    """Return all partitions of a topic."""
    return [(topic.name, index) for index in range(len(topic.info.partitions))]


def _limited(topics: Iterable[Topic]) -> Iterator[Topic]:
    """Yield the first topics, and at least one."""
    count = 0
    for number, topic in enumerate(topics):
        count += len(topic.info.partitions)
        if number >= TOPICS_MAX or (number and count > PARTITIONS_MAX):
            return
        yield topic


def _cleanup_policy(topic: Topic) -> str:
    config = topic.config
    return ",".join(name for name, is_on in (("compact", config.compacted), ("delete", config.deletable)) if is_on)
