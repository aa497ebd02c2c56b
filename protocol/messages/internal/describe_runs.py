"""DescribeRuns: a node asks the leader of a partition what of it is in the log cache, for a user of its admin port."""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_005


@message(versions="0", flexible=None)
class DescribeRunsRequest:
    topic: str = wire.string("0+")
    partition: int = wire.int32("0+")


@message
class CachedRun:
    base_offset: int = wire.int64("0+")
    end_offset: int = wire.int64("0+")
    size_bytes: int = wire.int64("0+")
    committed: bool = wire.boolean("0+")
    """False: the write-ahead log has it, and no object."""


@message(versions="0", flexible=None)
class DescribeRunsResponse:
    error_code: int = wire.int16("0+")
    start_offset: int = wire.int64("0+")
    end_offset: int = wire.int64("0+")
    committed_offset: int = wire.int64("0+")
    runs: Sequence[CachedRun] = wire.array(CachedRun, "0+")
