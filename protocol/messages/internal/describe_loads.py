"""DescribeLoads: traffic of the partitions that a node leads, for the node that balances. It is relayed (`relay`)."""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_011


@message(versions="0", flexible=None)
class DescribeLoadsRequest:
    """Request of the DescribeLoads API, without fields."""


@message
class PartitionTraffic:
    """Means of the last minute, a second."""

    stream_id: int = wire.int64("0+")
    received_bytes: float = wire.float64("0+")
    sent_bytes: float = wire.float64("0+")
    loaded_bytes: float = wire.float64("0+")
    """Those that readers waited for: they were not in the log cache."""
    requests: float = wire.float64("0+")
    """Batches appended, and answers with records."""
    led_s: int = wire.int32("0+")
    """Time for which the node has led the partition, at least."""


@message(versions="0", flexible=None)
class DescribeLoadsResponse:
    up_ms: int = wire.int64("0+")
    """Time since the node began to serve."""
    replica_cores: float = wire.float64("0+")
    """Cost of the consumers that read from it as a replica, as a mean of the last minute: 0.5 is half a processor."""
    partitions: Sequence[PartitionTraffic] = wire.array(PartitionTraffic, "0+")
    """Those with traffic, and those that the node has begun to lead lately."""
