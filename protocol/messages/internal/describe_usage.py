"""DescribeUsage: what the use of a node is paid by, as counters since it began to serve. It is relayed (`relay`)."""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_015


@message(versions="0", flexible=None)
class DescribeUsageRequest:
    """Request of the DescribeUsage API, without fields."""


@message
class StreamUsage:
    """Bytes of record batches of a partition."""

    stream_id: int = wire.int64("0+")
    """-1: all partitions that are deleted."""
    received_bytes: int = wire.int64("0+")
    sent_bytes: int = wire.int64("0+")


@message
class RackUsage:
    """Traffic with the clients of a rack."""

    rack: str = wire.string("0+")
    """Empty: clients of no known rack."""
    streams: Sequence[StreamUsage] = wire.array(StreamUsage, "0+")


@message
class LinkUsage:
    """Traffic of the connections that the node has opened to another one."""

    node_id: int = wire.int32("0+")
    exchanged_bytes: int = wire.int64("0+")
    """In both directions."""


@message
class StoreUsage:
    """Calls to an object store, by what they are priced as."""

    store: str = wire.string("0+")
    writes: int = wire.int64("0+")
    """PUT, POST, COPY and LIST."""
    reads: int = wire.int64("0+")
    """GET and HEAD."""


@message(versions="0", flexible=None)
class DescribeUsageResponse:
    epoch: int = wire.int64("0+")
    """Epoch of the node, which each of its starts raises."""
    up_ms: int = wire.int64("0+")
    """Time in which all this was counted."""
    racks: Sequence[RackUsage] = wire.array(RackUsage, "0+")
    links: Sequence[LinkUsage] = wire.array(LinkUsage, "0+")
    stores: Sequence[StoreUsage] = wire.array(StoreUsage, "0+")
    log_disk_bytes: int = wire.int64("0+")
    """Size of the log's disk or file; 0: the log is in objects."""
