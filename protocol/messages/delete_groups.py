"""DeleteGroups: remove empty groups with their offsets (KIP-229).

Versions:
    v0  the first
    v1  throttling moves to after the answer
    v2  flexible
"""

from collections.abc import Sequence

from protocol import wire
from protocol.wire import message

KEY = 42


@message(versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    """What a client asks of DeleteGroups."""

    groups_names: Sequence[str] = wire.array(wire.Kind.STRING, "0+")


@message
class DeletableGroupResult:
    """An element of `DeleteGroupsResponse.results`."""

    group_id: str = wire.string("0+")
    error_code: int = wire.int16("0+")


@message(versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """A node's answer to DeleteGroups."""

    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[DeletableGroupResult] = wire.array(DeletableGroupResult, "0+")
