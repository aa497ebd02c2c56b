"""HandOver: the tail of a partition, from its leader, which has sealed it, to the node that shall lead it.

The tail is sent in pieces, in order, one request each. The response to the last one says whether the receiver leads the
partition now. A piece at position 0 begins a new attempt.
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_003


@message(versions="0", flexible=None)
class HandOverRequest:
    """Request of the HandOver API. Node id and node epoch of the sender are those of the connection."""

    topic_id: bytes = wire.uuid("0+")
    index: int = wire.int32("0+")
    stream_id: int = wire.int64("0+")
    stream_epoch: int = wire.int64("0+")
    """Epoch under which the sender has sealed the stream."""
    leader_epoch: int = wire.int32("0+")
    wal_id: str = wire.string("0+")
    """Log of the sender."""
    end_offset: int = wire.int64("0+")
    """Committed end, at which the tail begins."""
    next_offset: int = wire.int64("0+")
    """End of the tail."""
    tail_bytes: int = wire.int64("0+")
    """Size of all pieces."""
    position: int = wire.int64("0+")
    """Position of this piece among them."""
    piece: bytes = wire.bytes_("0+")
    """Part of the tail (`broker/cluster/handover/tail.py`)."""


@message(versions="0", flexible=None)
class HandOverResponse:
    refusal: str = wire.string("0+")
    """Empty: the piece was taken, and if it is the last one, the receiver leads the partition."""
