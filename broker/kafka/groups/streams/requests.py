"""StreamsGroupHeartbeat as the state machine handles it: request, response and special epochs (KIP-1071)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.kafka.groups.requests import GroupRequest
from anabranch.broker.kafka.groups.streams.configured_topology import InternalTopic, Status
from anabranch.broker.kafka.groups.streams.tasks import Task, TaskAssignment
from anabranch.broker.kafka.groups.streams.topology import Topology


class Endpoint(NamedTuple):
    """Address at which the application answers queries of its state (KIP-535)."""

    host: str
    port: int


@dataclass(slots=True)
class StreamsHeartbeat(GroupRequest[None]):
    """A StreamsGroupHeartbeat request. A field that is None is unchanged.

    Its response is a StreamsHeartbeatResponse.
    """

    group_type = "streams"
    member_id: str
    epoch: int
    endpoint_epoch: int = 0
    """Epoch of the endpoint information that the member has."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    owned: TaskAssignment | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] | None = None
    task_offsets: Mapping[Task, int] | None = None
    task_end_offsets: Mapping[Task, int] | None = None
    shutdown_application: bool = False
    knows_missing_tags: bool = True
    """False for version 0, whose clients do not know the status MISSING_CLIENT_TAGS."""
    client_id: str = ""
    client_host: str = ""
    ticket: object = None


class TopicPartitions(NamedTuple):
    """Partitions of one topic."""

    topic: str
    partitions: Sequence[int]


class EndpointPartitions(NamedTuple):
    """Endpoint of a member, with the partitions that its tasks read."""

    endpoint: Endpoint
    active: Sequence[TopicPartitions]
    standby: Sequence[TopicPartitions]
    """Of standby and warm-up tasks."""


@dataclass(frozen=True, slots=True)
class StreamsHeartbeatResponse:
    """Response to a heartbeat."""

    member_id: str
    epoch: int
    assignment: TaskAssignment | None = None
    """None if the member already knows it."""
    statuses: Sequence[Status] = ()
    endpoint_epoch: int = 0
    endpoints: Sequence[EndpointPartitions] | None = None
    """None if the member already knows them."""
    missing_topics: Mapping[str, InternalTopic] | None = None
    """Internal topics to create on behalf of the member, by name."""
