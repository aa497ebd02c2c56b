"""DescribeTables: a node asks another one about tables that it commits, for users of its admin port. It is relayed."""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import Kind, message

KEY = 32_008


@message(versions="0", flexible=None)
class DescribeTablesRequest:
    topics: Sequence[str] = wire.array(Kind.STRING, "0+")
    """Topics whose tables are wanted."""


@message
class LiveTable:
    topic: str = wire.string("0+")
    complete_ms: int = wire.int64("0+")
    """Time up to which what was committed in the topic is in the table; 0: unknown."""
    errors: int = wire.int64("0+")
    """Rows with an error since the node's start."""
    reasons: Sequence[str] = wire.array(Kind.STRING, "0+")
    """Some of the errors, each once."""
    last_error: str = wire.string("0+")
    """Reason why the last round failed; empty: it succeeded."""
    catalog: str = wire.string("0+")
    """Other catalog that shows it; empty: none."""
    published_version: int = wire.int64("0+")
    """Version that this shows; 0: unknown."""
    lacking_since_ms: int = wire.int64("0+")
    """Time since which it has lacked a version; 0: it lacks none."""
    publish_error: str = wire.string("0+")
    """Reason why the last publication failed; empty: it succeeded."""


@message(versions="0", flexible=None)
class DescribeTablesResponse:
    tables: Sequence[LiveTable] = wire.array(LiveTable, "0+")
    """Those of them that the node commits."""
