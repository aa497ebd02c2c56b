"""A group in its shard: its state machine of either protocol, its committed offsets, durable state and timer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot
from anabranch.broker.kafka.groups.classic.state_table import ClassicGroupState
from anabranch.broker.kafka.groups.consumer.durable_group import DurableConsumerGroup
from anabranch.broker.kafka.groups.consumer.embedded_protocol import subscribed_topics
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.offsets import CommittedOffset, GroupOffsets
from anabranch.broker.kafka.groups.requests import NEVER_MS


@dataclass(slots=True)
class ShardGroup:
    """A group with its offsets, its durable state and its timer."""

    group: ClassicGroup | DurableConsumerGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    stored: GroupSnapshot | None = None
    """The durable state of a classic group. A consumer group keeps its own, record by record."""
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER_MS
    """Time on the loop's clock at which the timer fires."""

    @property
    def state_machine(self) -> ClassicGroup | ConsumerGroup:
        """The state machine. A consumer group gets a new one when a write has failed."""
        return self.group if isinstance(self.group, ClassicGroup) else self.group.state_machine

    @property
    def group_id(self) -> str:
        """Id of the group."""
        return self.state_machine.group_id

    @property
    def is_unused(self) -> bool:
        """True if the group has no members, and no member id has been handed out for one to join."""
        group = self.state_machine
        if isinstance(group, ConsumerGroup):
            return not group.members
        return group.state is ClassicGroupState.EMPTY and not group.pending

    def uses_consumer_protocol(self, member_id: str) -> bool:
        """Return whether this is a member of a consumer group that uses the consumer protocol itself."""
        group = self.state_machine
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        return member is not None and member.classic is None

    def topics_in_use(self) -> frozenset[str] | None:
        """Return the topics that the group's consumers are subscribed to; None if members may be using any topic."""
        group = self.state_machine
        if isinstance(group, ConsumerGroup):
            return group.subscribed_topics()
        if group.protocol_type != "consumer" or group.protocol_name is None:
            return None if group.members else frozenset()
        topics: set[str] = set()
        for member in group.members.values():
            subscribed = subscribed_topics(member.metadata(group.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def unused_since(self) -> Callable[[TopicPartition, CommittedOffset], int | None]:
        """Return a function that gives the time from which an offset's retention counts, None while it is in use.

        It is the time of the commit, or, of a classic group that has become empty, the time when it did.
        """
        group = self.state_machine
        if isinstance(group, ConsumerGroup):
            subscribed = group.subscribed_topics()
            return lambda key, committed: None if key.topic in subscribed else committed.commit_timestamp_ms
        if (
            group.state is ClassicGroupState.EMPTY
            and group.protocol_type is not None
            and group.state_timestamp_ms != -1
        ):
            empty_since_ms = group.state_timestamp_ms
            return lambda *_: empty_since_ms
        if group.state is ClassicGroupState.EMPTY:
            return lambda _, committed: committed.commit_timestamp_ms  # consumers that assign themselves
        in_use = self.topics_in_use() if group.state is ClassicGroupState.STABLE else None
        if in_use is None:
            return lambda *_: None
        return lambda key, committed: None if key.topic in in_use else committed.commit_timestamp_ms

    def cancel_timer(self) -> None:
        """Cancel the timer if one is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer, self.timer_ms = None, NEVER_MS
