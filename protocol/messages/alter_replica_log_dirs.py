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
    """An element of `AlterReplicaLogDir.topics`."""

    name: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class AlterReplicaLogDir:
    """An element of `AlterReplicaLogDirsRequest.dirs`."""

    path: str = wire.string("0+")
    topics: Sequence[AlterReplicaLogDirTopic] = wire.array(AlterReplicaLogDirTopic, "0+")


@message(versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Request of the AlterReplicaLogDirs API."""

    dirs: Sequence[AlterReplicaLogDir] = wire.array(AlterReplicaLogDir, "0+")


@message
class AlterReplicaLogDirPartitionResult:
    """An element of `AlterReplicaLogDirTopicResult.partitions`."""

    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class AlterReplicaLogDirTopicResult:
    """An element of `AlterReplicaLogDirsResponse.results`."""

    topic_name: str = wire.string("0+")
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = wire.array(AlterReplicaLogDirPartitionResult, "0+")


@message(versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """Response of the AlterReplicaLogDirs API."""

    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[AlterReplicaLogDirTopicResult] = wire.array(AlterReplicaLogDirTopicResult, "0+")
