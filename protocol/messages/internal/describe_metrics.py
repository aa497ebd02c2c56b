"""DescribeMetrics: the metrics of a node, for the admin port that shows all nodes of one start. It is relayed."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_013


@message(versions="0", flexible=None)
class DescribeMetricsRequest:
    accept: str = wire.string("0+")
    """Header Accept of the scrape, which chooses the format."""


@message(versions="0", flexible=None)
class DescribeMetricsResponse:
    body: bytes = wire.bytes_("0+")
    """The metrics as text, compressed by zlib."""
