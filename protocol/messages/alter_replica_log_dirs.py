"""AlterReplicaLogDirs: move replicas between the log directories of a node (KIP-113).

Versions:
    v1  oldest version served
    v2  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 34


@message
class AlterReplicaLogDirTopic:
    name: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class AlterReplicaLogDir:
    path: str = wire.string("0+")
    topics: Sequence[AlterReplicaLogDirTopic] = wire.array(AlterReplicaLogDirTopic, "0+")


@message(versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    dirs: Sequence[AlterReplicaLogDir] = wire.array(AlterReplicaLogDir, "0+")


@message
class AlterReplicaLogDirPartitionResult:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class AlterReplicaLogDirTopicResult:
    topic_name: str = wire.string("0+")
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = wire.array(AlterReplicaLogDirPartitionResult, "0+")


@message(versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[AlterReplicaLogDirTopicResult] = wire.array(AlterReplicaLogDirTopicResult, "0+")
