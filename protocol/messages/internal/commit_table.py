"""CommitTable: a node has another one upload what a table lacks, and commit it, at once. It is relayed (`relay`)."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_009


@message(versions="0", flexible=None)
class CommitTableRequest:
    topic: str = wire.string("0+")


@message(versions="0", flexible=None)
class CommitTableResponse:
    """Response of the CommitTable API, without fields: the catalog shows what was committed."""
