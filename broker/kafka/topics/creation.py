"""Checks of topics before they are created."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.broker.kafka.topics.names import CLUSTER_METADATA_TOPIC, check_topic_name, collision_key
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to be created."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    internal: bool = False
    leaders: Sequence[int] | None = None
    """Leader of each partition; None: they are placed over the living nodes."""
    replicas: Sequence[Sequence[int]] | None = None
    """Replicas of each partition, if `leaders` are given."""
    factor: int = 1
    """Number of replicas, if they are placed; at most as many as there are nodes."""


class TopicCreation:
    """Topics to be created together. Each is checked against the existing topics and those added before it."""

    def __init__(self, topics: TopicMap, partitions_max: int) -> None:
        self.specs: list[TopicSpec] = []
        self._topics = topics
        self._partitions_max = partitions_max
        self._partitions = 0
        self._names: dict[str, str] = {}

    def check_name(self, name: str) -> None:
        """Raise Kafka's error if a topic of that name cannot be created."""
        check_topic_name(name)
        if name == CLUSTER_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        other = self._topics.colliding(name) or self._names.get(collision_key(name))
        if name == other or self._topics.get(name) is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def check_room(self, partitions: int) -> None:
        """Raise POLICY_VIOLATION if the node would have more than `topic.partitions_max` with `partitions` more."""
        there = self._topics.partition_count + self._partitions
        if there + partitions > self._partitions_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions more than the {there} there are would exceed the limit of "
                f"{self._partitions_max} (topic.partitions_max)",
            )

    def add(self, spec: TopicSpec) -> None:
        """Add a topic that was checked."""
        self.specs.append(spec)
        self._partitions += spec.partitions
        self._names[collision_key(spec.name)] = spec.name
