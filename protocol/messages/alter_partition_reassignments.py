"""AlterPartitionReassignments: move partitions to other nodes (KIP-455).

Versions:
    v0  first version. flexible
    v1  request adds allow_replication_factor_change. response adds allow_replication_factor_change
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 45


@message
class ReassignablePartition:
    partition_index: int = wire.int32("0+")
    replicas: Sequence[int] | None = wire.array(wire.Kind.INT32, "0+", nullable="0+", default=None)


@message
class ReassignableTopic:
    name: str = wire.string("0+")
    partitions: Sequence[ReassignablePartition] = wire.array(ReassignablePartition, "0+")


@message(versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = wire.int32("0+", default=60000)
    allow_replication_factor_change: bool = wire.boolean("1+", default=True)
    topics: Sequence[ReassignableTopic] = wire.array(ReassignableTopic, "0+")


@message
class ReassignablePartitionResponse:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")


@message
class ReassignableTopicResponse:
    name: str = wire.string("0+")
    partitions: Sequence[ReassignablePartitionResponse] = wire.array(ReassignablePartitionResponse, "0+")


@message(versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = wire.int32("0+")
    allow_replication_factor_change: bool = wire.boolean("1+", default=True, ignorable=True)
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    responses: Sequence[ReassignableTopicResponse] = wire.array(ReassignableTopicResponse, "0+")
