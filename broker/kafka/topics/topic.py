"""A topic with its configs and the partitions that this node leads."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.catalog.values import TopicInfo
from anabranch.s3stream.errors import StorageStopped


@dataclass(slots=True)
class Topic:
    """A topic and its partitions, by index; None where another node leads."""

    info: TopicInfo
    config: TopicConfig
    partitions: list[Partition | None] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.info.name

    @property
    def topic_id(self) -> bytes:
        """UUID of the topic, 16 bytes."""
        return self.info.topic_id

    @property
    def streams(self) -> Sequence[Stream]:
        """Streams of the partitions that this node leads."""
        return [partition.stream for partition in self.partitions if partition is not None]


class TopicLeaving(StorageStopped):
    """The topic is being detached from the cluster and refuses appends."""
