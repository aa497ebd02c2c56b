"""A group in its shard: its state machine, committed offsets, durable records, writes and timer."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.interface import Continuation, Group, GroupMachine, Response
from anabranch.broker.kafka.groups.offsets import GroupOffsets
from anabranch.broker.kafka.groups.requests import NEVER_MS


@dataclass(slots=True, eq=False)
class PendingWrite:
    """Records of a group on their way to the log, and the responses that wait for them."""

    machine: GroupMachine
    """State machine that is ahead of the log by these records: the one that made them, or was restored with them."""
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
    writes: list[PendingWrite] = field(default_factory=list)
    """Writes that have not ended, in the order of the log."""
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER_MS
    """Time on the steady clock at which the timer fires."""

    @property
    def group(self) -> Group:
        """State of the group, for reading only."""
        return self.machine.group

    @property
    def group_id(self) -> str:
        """Id of the group."""
        return self.machine.group.group_id

    def end_write(self, write: PendingWrite) -> Sequence[PendingWrite]:
        """Note the end of a write; return those before it that have not ended."""
        place = self.writes.index(write)
        del self.writes[place]
        return self.writes[:place]

    def store(self, records: Iterable[KeyValue]) -> None:
        """Apply records that are durable."""
        _apply(records, self.stored)

    def stored_after(self, writes: Iterable[PendingWrite]) -> Mapping[bytes, bytes]:
        """Return the durable records as they will be when these writes are durable, too."""
        stored = dict(self.stored)
        for write in writes:
            _apply(write.records, stored)
        return stored

    def cancel_timer(self) -> None:
        """Cancel the timer if one is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer, self.timer_ms = None, NEVER_MS


def _apply(records: Iterable[KeyValue], stored: dict[bytes, bytes]) -> None:
    for key, value in records:
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value
