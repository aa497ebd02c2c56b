"""A group in its shard: its state machine, committed offsets, durable records, writes and timer."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.interface import Continuation, Group, GroupMachine, Response
from anabranch.broker.kafka.groups.offsets import GroupOffsets
from anabranch.broker.kafka.groups.requests import NEVER_MS


@dataclass(slots=True, eq=False)
class PendingWrite:
    """Records of a group on their way to the log, and the responses that wait for them."""

    machine: GroupMachine
    """State machine that is ahead of the log by these records."""
    former: GroupMachine
    """State machine before, of another kind if the group was converted."""
    records: Iterable[KeyValue]
    then: Continuation | None
    waiting: list[Response]


@dataclass(slots=True)
class ShardGroup:
    """A group with its offsets, its durable state and its timer."""

    machine: GroupMachine
    """Replaced when the group is converted to another kind, and when a write has failed."""
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    stored: dict[bytes, bytes] = field(default_factory=dict)
    """The durable records of the group, without its offsets."""
    newest_write: PendingWrite | None = None
    """The last write, until it has ended."""
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER_MS
    """Time on the loop's clock at which the timer fires."""

    @property
    def group(self) -> Group:
        """State of the group, for reading only."""
        return self.machine.group

    @property
    def group_id(self) -> str:
        """Id of the group."""
        return self.machine.group.group_id

    def store(self, records: Iterable[KeyValue]) -> None:
        """Apply records that are durable."""
        for key, value in records:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value

    def cancel_timer(self) -> None:
        """Cancel the timer if one is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer, self.timer_ms = None, NEVER_MS
