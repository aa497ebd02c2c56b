"""PrepareMove: a node asks another one whether it would take a partition over now. Nothing changes by it."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_002


@message(versions="0", flexible=None)
class PrepareMoveRequest:
    """Request of the PrepareMove API, from the leader of the partition."""

    topic_id: bytes = wire.uuid("0+")
    index: int = wire.int32("0+")
    stream_id: int = wire.int64("0+")
    tail_bytes: int = wire.int64("0+")
    """About the size of what is not in objects yet."""


@message(versions="0", flexible=None)
class PrepareMoveResponse:
    refusal: str = wire.string("0+")
    """Empty: it would."""
