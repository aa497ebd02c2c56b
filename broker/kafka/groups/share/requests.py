"""Requests to share groups: heartbeats of members, changes of offsets, and what the share coordinator has done.

The share coordinator keeps the state of share partitions, on other nodes perhaps. A group only records which states are
there, or are being created or deleted. So what changes them takes two requests: one before, whose response tells
what to ask the share coordinator for, and one after, with what it has done.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition
from anabranch.broker.kafka.groups.requests import GroupRequest
from anabranch.broker.kafka.share.interface import InitialState, ShareKey
from anabranch.protocol.errors import KafkaError


@dataclass(slots=True)
class ShareHeartbeat(GroupRequest[None]):
    """A ShareGroupHeartbeat request. A field that is None is unchanged. Its response is a ShareHeartbeatResponse."""

    group_type = "share"
    member_id: str
    epoch: int
    rack_id: str | None = None
    topic_names: Sequence[str] | None = None
    client_id: str = ""
    client_host: str = ""
    ticket: object = None


@dataclass(frozen=True, slots=True)
class ShareHeartbeatResponse:
    """Response to a heartbeat. `assignment` is None if the member already knows it."""

    member_id: str
    epoch: int
    assignment: Partitions | None = None


class StatesToCreate(NamedTuple):
    """States that the share coordinator is to create, for partitions that a group is about to consume."""

    group_id: str
    states: Mapping[ShareKey, InitialState]


CreateStates: TypeAlias = Callable[[StatesToCreate | KafkaError], None]
"""Has states created once the group has recorded that it asks for them. Called with an error if it could not."""


@dataclass(slots=True)
class StatesCreated(GroupRequest[None]):
    """States that have been created, and that could not be. The response is None."""

    group_type = "share"
    created: Collection[TopicIdPartition]
    failed: Collection[TopicIdPartition] = ()
    ticket: object = None


@dataclass(slots=True)
class AlterOffsets(GroupRequest[None]):
    """Begin to set start offsets. The response is the StatesToCreate. Raises NON_EMPTY_GROUP."""

    group_type = "share"
    offsets: Mapping[TopicIdPartition, int]
    ticket: object = None


@dataclass(slots=True)
class DeleteOffsets(GroupRequest[None]):
    """Begin to delete what the group has consumed of topics. Raises NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND.

    The response has the keys of the states to delete, by topic id, without topics that have none.
    """

    group_type = "share"
    topic_ids: Collection[bytes]
    ticket: object = None


@dataclass(slots=True)
class DeleteStates(GroupRequest[None]):
    """Begin to delete an empty group: the response has the keys of all its states. Raises like DeleteOffsets."""

    group_type = "share"
    ticket: object = None


@dataclass(slots=True)
class StatesDeleted(GroupRequest[None]):
    """Topics whose states have been deleted. The response is None."""

    group_type = "share"
    topic_ids: Collection[bytes]
    ticket: object = None
