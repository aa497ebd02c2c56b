"""ElectLeaders: request a leader election (KIP-460).

Versions:
    v0  first version
    v1  request adds election_type. response adds error_code
    v2  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 43


@message
class TopicPartitions:
    topic: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: int = wire.int8("1+")
    topic_partitions: Sequence[TopicPartitions] | None = wire.array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = wire.int32("0+", default=60000)


@message
class PartitionResult:
    partition_id: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")


@message
class ReplicaElectionResult:
    topic: str = wire.string("0+")
    partition_result: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("1+")
    replica_election_results: Sequence[ReplicaElectionResult] = wire.array(ReplicaElectionResult, "0+")
