"""DescribeLogDirs: the partitions in the log directories of a node, with their sizes (KIP-113, KIP-827).

Versions:
    v1  oldest version served
    v2  flexible
    v3  response adds error_code
    v4  response adds results.total_bytes, results.usable_bytes
    v5  response adds results.is_cordoned
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 35


@message
class DescribableLogDirTopic:
    topic: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    topics: Sequence[DescribableLogDirTopic] | None = wire.array(DescribableLogDirTopic, "0+", nullable="0+")


@message
class DescribeLogDirsPartition:
    partition_index: int = wire.int32("0+")
    partition_size: int = wire.int64("0+")
    offset_lag: int = wire.int64("0+")
    is_future_key: bool = wire.boolean("0+")


@message
class DescribeLogDirsTopic:
    name: str = wire.string("0+")
    partitions: Sequence[DescribeLogDirsPartition] = wire.array(DescribeLogDirsPartition, "0+")


@message
class DescribeLogDirsResult:
    error_code: int = wire.int16("0+")
    log_dir: str = wire.string("0+")
    topics: Sequence[DescribeLogDirsTopic] = wire.array(DescribeLogDirsTopic, "0+")
    total_bytes: int = wire.int64("4+", default=-1, ignorable=True)
    usable_bytes: int = wire.int64("4+", default=-1, ignorable=True)
    is_cordoned: bool = wire.boolean("5+", ignorable=True)


@message(versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("3+", ignorable=True)
    results: Sequence[DescribeLogDirsResult] = wire.array(DescribeLogDirsResult, "0+")
