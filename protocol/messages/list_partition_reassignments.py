"""ListPartitionReassignments: the ongoing reassignments (KIP-455).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 46


@message
class ListPartitionReassignmentsTopics:
    name: str = wire.string("0+")
    partition_indexes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    timeout_ms: int = wire.int32("0+", default=60000)
    topics: Sequence[ListPartitionReassignmentsTopics] | None = wire.array(
        ListPartitionReassignmentsTopics, "0+", nullable="0+", default=None
    )


@message
class OngoingPartitionReassignment:
    partition_index: int = wire.int32("0+")
    replicas: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    adding_replicas: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    removing_replicas: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class OngoingTopicReassignment:
    name: str = wire.string("0+")
    partitions: Sequence[OngoingPartitionReassignment] = wire.array(OngoingPartitionReassignment, "0+")


@message(versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    topics: Sequence[OngoingTopicReassignment] = wire.array(OngoingTopicReassignment, "0+")
