"""DeleteShareGroupOffsets: forget what an empty share group has consumed of topics (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 92


@message
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = wire.string("0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = wire.array(DeleteShareGroupOffsetsRequestTopic, "0+")


@message
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = wire.string("0+")
    topic_id: bytes = wire.uuid("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message(versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = wire.array(DeleteShareGroupOffsetsResponseTopic, "0+")
