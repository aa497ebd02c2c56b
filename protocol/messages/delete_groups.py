"""DeleteGroups: remove empty groups with their offsets (KIP-229).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  flexible
    v3  response adds results.error_message
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 42


@message(versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    groups_names: Sequence[str] = wire.array(wire.Kind.STRING, "0+")


@message
class DeletableGroupResult:
    group_id: str = wire.string("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("3+", nullable="3+", default=None, ignorable=True)


@message(versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[DeletableGroupResult] = wire.array(DeletableGroupResult, "0+")
