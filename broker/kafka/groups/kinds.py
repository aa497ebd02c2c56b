"""The kinds of groups that this broker has, each by the type that its groups and requests name."""

from collections.abc import Mapping

from anabranch.broker.kafka.configs.group_times import GroupTimesGetter
from anabranch.broker.kafka.configs.streams import StreamsConfigs, StreamsConfigsGetter
from anabranch.broker.kafka.groups.classic.kind import ClassicKind
from anabranch.broker.kafka.groups.consumer.kind import ConsumerKind
from anabranch.broker.kafka.groups.interface import GroupKind, GroupMachine
from anabranch.broker.kafka.groups.modern.topic_image import TopicImageGetter
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.kafka.groups.share.kind import ShareKind
from anabranch.broker.kafka.groups.share.requests import CreateStates, StatesToCreate
from anabranch.broker.kafka.groups.streams.kind import StreamsKind
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import KafkaError

DEFAULT_TYPE = "classic"
"""Type of a group without any record of its own: it has only offsets, or its records could not be written."""


def create_no_states(_asked: StatesToCreate | KafkaError) -> None:
    """Create no states: there is no share coordinator. Partitions are never assigned then."""


def default_streams_configs(_group_id: str) -> StreamsConfigs:
    """Return the configs of a streams group that none were set for."""
    return StreamsConfigs()


class GroupKinds:
    """All kinds of groups, by type."""

    def __init__(
        self,
        settings: GroupSettings,
        topics: TopicImageGetter,
        consumer_times: GroupTimesGetter | None = None,
        share_times: GroupTimesGetter | None = None,
        create_states: CreateStates = create_no_states,
        streams_configs: StreamsConfigsGetter = default_streams_configs,
    ) -> None:
        self._kinds: Mapping[str, GroupKind] = {
            "classic": ClassicKind(settings),
            "consumer": ConsumerKind(settings, topics, consumer_times),
            "share": ShareKind(settings, topics, create_states, share_times),
            "streams": StreamsKind(settings, topics, streams_configs),
        }

    def __getitem__(self, group_type: str) -> GroupKind:
        return self._kinds[group_type]

    def restore(
        self, group_id: str, stored: Mapping[bytes, bytes], now: Now, group_type: str = DEFAULT_TYPE
    ) -> GroupMachine:
        """Return a group as its durable records describe it, an empty one of this type if there are none.

        Raises MalformedMessage.
        """
        owners = (name for name, kind in self._kinds.items() if any(map(kind.owns, stored)))
        # Newer kinds come last, and decide if a log has records of several.
        *_, group_type = (group_type, *owners)
        return self._kinds[group_type].restore(group_id, stored, now)
