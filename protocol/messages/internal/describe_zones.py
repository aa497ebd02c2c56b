"""DescribeZones: where the clients of the partitions are that a node leads, for the node that balances.

It is relayed (`relay`).
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_018


@message(versions="0", flexible=None)
class DescribeZonesRequest:
    """Request of the DescribeZones API, without fields."""


@message
class RackRate:
    """Record batches that the clients of a rack send and receive, as a mean of the last ten minutes."""

    rack: str = wire.string("0+")
    bytes: float = wire.float64("0+")
    """A second."""


@message
class PartitionZones:
    stream_id: int = wire.int64("0+")
    rates: Sequence[RackRate] = wire.array(RackRate, "0+")


@message(versions="0", flexible=None)
class DescribeZonesResponse:
    partitions: Sequence[PartitionZones] = wire.array(PartitionZones, "0+")
    """Those with traffic of clients whose rack is known."""
