"""DescribeNode: counters and gauges of a node's process, for the admin port of any node. It is relayed (`relay`)."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_007


@message(versions="0", flexible=None)
class DescribeNodeRequest:
    """Request of the DescribeNode API, without fields."""


@message(versions="0", flexible=None)
class DescribeNodeResponse:
    version: str = wire.string("0+")
    now_ms: int = wire.int64("0+")
    """Clock of the node, by which the growth of counters is divided."""
    started_ms: int = wire.int64("0+")
    """Time of its start, from which counters are counted."""
    cores: int = wire.int32("0+")
    cpu_ms: int = wire.int64("0+")
    """Counter: CPU time of the process."""
    memory_bytes: int = wire.int64("0+")
    """Memory of the process."""
    memory_available_bytes: int = wire.int64("0+")
    """Memory that it may use."""
    log_used_bytes: int = wire.int64("0+")
    log_capacity_bytes: int = wire.int64("0+")
    disk_free_bytes: int = wire.int64("0+")
    """Of the file system with the data directory; -1: not known."""
    disk_total_bytes: int = wire.int64("0+")
    received_bytes: int = wire.int64("0+")
    """Counter: bytes received from Kafka clients."""
    sent_bytes: int = wire.int64("0+")
    """Counter: bytes of records sent to consumers."""
    requests: int = wire.int64("0+")
    """Counter: requests of Kafka clients that were answered."""
    connections: int = wire.int32("0+")
