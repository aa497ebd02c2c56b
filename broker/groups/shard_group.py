"""A group in its shard: its state machine of either kind, its offsets, what is durable of it, and its timer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.coordination.topic_partition import TopicPartition
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.snapshot import GroupSnapshot
from broker.groups.classic.state_table import GroupState
from broker.groups.consumer.durable_group import ConsumerShell
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.offsets import CommittedOffset, GroupOffsets
from broker.groups.records import subscribed_topics
from broker.groups.requests import NEVER_MS


@dataclass(slots=True)
class GroupEntry:
    """A group with its offsets, what is durable of it, and its timer."""

    machine: ClassicGroup | ConsumerShell
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    stored: GroupSnapshot | None = None
    """Of a classic group; the shell of a consumer group has its own."""
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER_MS

    @property
    def group(self) -> ClassicGroup | ConsumerGroup:
        """The state machine. That of a consumer group is another one after a write that failed."""
        return self.machine if isinstance(self.machine, ClassicGroup) else self.machine.group

    def topics_in_use(self) -> frozenset[str] | None:
        """Topics the group's consumers are subscribed to; None if members may be using anything."""
        group = self.group
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


def speaks_new_protocol(entry: GroupEntry, member_id: str) -> bool:
    """Whether this is a member of a consumer group that speaks the new protocol."""
    member = entry.group.members.get(member_id) if isinstance(entry.group, ConsumerGroup) else None
    return member is not None and member.classic is None


def is_unused(entry: GroupEntry) -> bool:
    """Whether a group has no members, and nobody is about to become one."""
    group = entry.group
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is GroupState.EMPTY and not group.pending


def unused_since(entry: GroupEntry) -> Callable[[TopicPartition, CommittedOffset], int | None]:
    """Return from when on retention counts: an unused offset's commit, or the moment its group became empty."""
    group = entry.group
    if isinstance(group, ConsumerGroup):
        subscribed = group.subscribed_topics()
        return lambda key, committed: None if key.topic in subscribed else committed.commit_timestamp_ms
    if group.state is GroupState.EMPTY and group.protocol_type is not None and group.state_timestamp_ms != -1:
        empty_since_ms = group.state_timestamp_ms
        return lambda *_: empty_since_ms
    if group.state is GroupState.EMPTY:
        return lambda _, committed: committed.commit_timestamp_ms  # consumers that assign themselves
    in_use = entry.topics_in_use() if group.state is GroupState.STABLE else None
    if in_use is None:
        return lambda *_: None
    return lambda key, committed: None if key.topic in in_use else committed.commit_timestamp_ms
