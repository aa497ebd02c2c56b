"""DescribeShares: figures of a share group's partitions that a node leads, for the admin port of any node.

It is relayed (`relay`).
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_010


@message(versions="0", flexible=None)
class DescribeSharesRequest:
    group_id: str = wire.string("0+")


@message
class LiveShare:
    topic: str = wire.string("0+")
    partition: int = wire.int32("0+")
    in_flight: int = wire.int64("0+")
    """Offsets from the start offset on that were delivered."""
    acquired: int = wire.int64("0+")
    """Records that members have, without an acknowledgement."""
    archiving: int = wire.int64("0+")
    """Records that wait for their dead letters."""


@message(versions="0", flexible=None)
class DescribeSharesResponse:
    shares: Sequence[LiveShare] = wire.array(LiveShare, "0+")
    """Of the partitions that members of the group read now."""
