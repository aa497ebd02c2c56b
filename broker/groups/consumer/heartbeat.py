"""What goes into the consumer group state machine and what comes out of it: plain values (KIP-848)."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.groups.consumer.topic_image import Partitions

LEAVE_EPOCH = -1
"""The member epoch with which a member leaves for good."""
LEAVE_STATIC_EPOCH = -2
"""The member epoch with which a static member leaves for a moment: its partitions wait for its return."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request; None is "as before"."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: Sequence[str] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the member tells everything: it joins, or is not sure that the last answer has reached it."""
        subscribed = self.topic_names is not None or self.topic_regex is not None
        return self.epoch == 0 or (self.rebalance_timeout_ms != -1 and subscribed and self.owned is not None)


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse:
    """Answer to a Beat; `assignment` only if the member must hear of it."""

    member_id: str
    epoch: int
    assignment: Partitions | None = None
