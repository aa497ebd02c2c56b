"""The durable state of share partitions, and the persister through which it is read and written (KIP-932).

A *share partition* is a partition as one share group consumes it. What is durable of it is its start offset, and the
delivery state and delivery count of offsets from there on. The share coordinator keeps it in `__share_group_state`, on
whichever node leads the state partition that the key hashes to; the persister finds that node.

Two epochs fence writers. The *state epoch* grows whenever the state is initialised anew (the group's offsets were
altered, or deleted). The *leader epoch* is that of the topic's partition: a leader that reads with a higher one shuts
earlier leaders out.
"""

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from anabranch.protocol.errors import ErrorCode

UNINITIALIZED_START_OFFSET: Final = -1
"""Start offset of a state whose first read decides by `share.auto.offset.reset`."""
UNKNOWN_COUNT: Final = -1
"""Delivery-complete count that its writer did not give (KIP-1226)."""


class DeliveryState(IntEnum):
    """State of a record in a share partition. The numbers are those of Apache Kafka's records and messages."""

    AVAILABLE = 0
    ACQUIRED = 1
    """Never written: a lock does not outlive its leader."""
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """On its way to the dead-letter topic (KIP-1191)."""
    ARCHIVED = 4


class ShareKey(NamedTuple):
    """A share partition."""

    group_id: str
    topic_id: bytes
    """16 bytes."""
    partition: int

    @property
    def text(self) -> str:
        """Text that its partition of `__share_group_state` follows from, and the key that FindCoordinator takes."""
        return f"{self.group_id}:{urlsafe_b64encode(self.topic_id).rstrip(b'=').decode()}:{self.partition}"


class StateBatch(NamedTuple):
    """Offsets with the same delivery state and count; both offsets are included."""

    first_offset: int
    last_offset: int
    delivery_state: int
    """A `DeliveryState`."""
    delivery_count: int


class ShareState(NamedTuple):
    """Durable state of a share partition. Offsets that no batch covers are available, and were never delivered."""

    state_epoch: int
    start_offset: int
    """First offset that matters; `UNINITIALIZED_START_OFFSET` before the first write that gives one."""
    batches: Sequence[StateBatch]
    """Without overlaps, by ascending offset, none ends before the start offset."""


class ShareSummary(NamedTuple):
    """A share partition's state without its batches."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    """Offsets from the start offset on whose delivery is complete; `UNKNOWN_COUNT` if no writer gave it."""


class InitialState(NamedTuple):
    """The state that a share partition begins with."""

    state_epoch: int
    start_offset: int
    """`UNINITIALIZED_START_OFFSET` to let the first leader decide."""


class SharePersister(Protocol):
    """Reads and writes states of share partitions, on whichever nodes keep them.

    Calls are repeated for a while when a coordinator is loading, moves or does not answer; then they end with its
    error. A call that was cancelled, or ended with an error of this kind, may have taken effect.
    """

    async def initialize(self, states: Mapping[ShareKey, InitialState]) -> Mapping[ShareKey, ErrorCode]:
        """Write states from which share partitions begin, in place of those of lower state epochs.

        A state of the same state epoch is left as it is, since what asks for it again may come late.

        Returns a code for each key: FENCED_STATE_EPOCH where the present state epoch is higher,
        UNKNOWN_TOPIC_OR_PARTITION for a topic or partition that does not exist, COORDINATOR_* and NOT_COORDINATOR where
        the state cannot be reached.
        """
        ...

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """Return the state, and shut out leaders with a lower epoch from then on.

        Raises KafkaError: FENCED_LEADER_EPOCH, INVALID_REQUEST (never initialised), UNKNOWN_TOPIC_OR_PARTITION,
        COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR.
        """
        ...

    async def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Write changed batches and the start offset; it is durable when this returns.

        The batches take the place of what they cover, unless that is further (a higher delivery count, or the same with
        a later state). Batches below the start offset are dropped, and it never falls within a state
        epoch. So writes of one leader have the same result in whatever order they arrive. Raises KafkaError as `read`,
        and FENCED_STATE_EPOCH.
        """
        ...

    async def delete(self, keys: Collection[ShareKey]) -> Mapping[ShareKey, ErrorCode]:
        """Delete states. Returns a code for each key, NONE also where there was no state."""
        ...

    async def summaries(self, keys: Collection[ShareKey]) -> Mapping[ShareKey, ShareSummary | ErrorCode]:
        """Return the states without their batches, or the error, of each key.

        A share partition that was never initialised has start offset -1, and epochs and count of 0 or -1.
        """
        ...
