"""DeleteTopics: remove topics by name or id (KIP-4, KIP-516).

Versions:
    v1  oldest version served
    v2  throttling is applied after the response
    v3  TOPIC_DELETION_DISABLED may be returned
    v4  flexible
    v5  response adds responses.error_message
    v6  request adds topics; drops topic_names. response adds responses.topic_id; lets responses.name be null
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 20


@message
class DeleteTopicState:
    name: str | None = wire.string("6+", nullable="6+", default=None)
    topic_id: bytes = wire.uuid("6+")


@message(versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    topics: Sequence[DeleteTopicState] = wire.array(DeleteTopicState, "6+")
    topic_names: Sequence[str] = wire.array(wire.Kind.STRING, "0-5", ignorable=True)
    timeout_ms: int = wire.int32("0+")


@message
class DeletableTopicResult:
    name: str | None = wire.string("0+", nullable="6+")
    topic_id: bytes = wire.uuid("6+", ignorable=True)
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)


@message(versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    responses: Sequence[DeletableTopicResult] = wire.array(DeletableTopicResult, "0+")
