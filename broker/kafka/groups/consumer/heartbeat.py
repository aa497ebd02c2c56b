"""ConsumerGroupHeartbeat as the state machine handles it: request, response and special epochs (KIP-848)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.kafka.groups.modern.topic_image import Partitions
from anabranch.broker.kafka.groups.requests import GroupRequest


class TopicFilter(NamedTuple):
    """Topics that a member may know of."""

    version: int
    """Grows when a topic may be allowed that was not, or the other way around."""
    principal: str
    host: str
    allows: Callable[[str], bool]
    """The same for all filters of one version, principal and host."""


@dataclass(slots=True)
class ConsumerHeartbeat(GroupRequest[None]):
    """A ConsumerGroupHeartbeat request. A field that is None is unchanged."""

    group_type = "consumer"
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
    topic_filter: TopicFilter | None = None
    """Topics that a pattern may match; None: all."""
    ticket: object = None

    @property
    def is_full(self) -> bool:
        """True if all fields are set: the member joins, or may have missed the last response."""
        subscribed = self.topic_names is not None or self.topic_regex is not None
        return self.epoch == 0 or (self.rebalance_timeout_ms != -1 and subscribed and self.owned is not None)


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse:
    """Response to a heartbeat. `assignment` is None if the member already knows it."""

    member_id: str
    epoch: int
    assignment: Partitions | None = None
