"""CreatePartitions: add partitions to topics (KIP-195).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  flexible
    v3  THROTTLING_QUOTA_EXCEEDED may be returned (KIP-599)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 37


@message
class CreatePartitionsAssignment:
    broker_ids: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class CreatePartitionsTopic:
    name: str = wire.string("0+")
    count: int = wire.int32("0+")
    assignments: Sequence[CreatePartitionsAssignment] | None = wire.array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


@message(versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    topics: Sequence[CreatePartitionsTopic] = wire.array(CreatePartitionsTopic, "0+")
    timeout_ms: int = wire.int32("0+")
    validate_only: bool = wire.boolean("0+")


@message
class CreatePartitionsTopicResult:
    name: str = wire.string("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message(versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[CreatePartitionsTopicResult] = wire.array(CreatePartitionsTopicResult, "0+")
