"""What goes into the consumer group state machine and what comes out of it: plain values (KIP-848)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

LEAVE_EPOCH = -1
"""The member epoch with which a member leaves for good."""
LEAVE_STATIC_EPOCH = -2
"""The member epoch with which a static member leaves for a moment: its partitions wait for its return."""


class ConsumerState(StrEnum):
    """States of a consumer group, by the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the target assignment's."""
    RECONCILING = "Reconciling"
    """Some member has not arrived at its target."""
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Where a member is on its way to its target; the numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED = 1
    """It must give up partitions first, and say so."""
    UNRELEASED = 2
    """Partitions of its target are still with other members."""


class TopicIdPartition(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: bytes
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]


class TopicView(NamedTuple):
    """What an assignment needs to know of a topic."""

    topic_id: bytes
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    """All topics at one moment. `version` changes whenever anything in it does."""

    version: int
    by_name: Mapping[str, TopicView] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(default_factory=dict)
    """Topic id to name."""

    @classmethod
    def of(cls, version: int, topics: Sequence[TopicView]) -> "TopicImage":
        """Index topics."""
        return cls(version, {topic.name: topic for topic in topics}, {topic.topic_id: topic.name for topic in topics})


Topics: TypeAlias = Callable[[], TopicImage]


@dataclass(frozen=True, slots=True)
class Beat:
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
class BeatAnswer:
    """Answer to a Beat; `assignment` only if the member must hear of it."""

    member_id: str
    epoch: int
    assignment: Partitions | None = None
