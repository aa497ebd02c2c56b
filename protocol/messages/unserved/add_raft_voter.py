"""AddRaftVoter: add a voter to the metadata quorum (KIP-853).

Versions:
    v0  first version. flexible
    v1  request adds ack_when_committed
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 80


@message
class Listener:
    """An element of `AddRaftVoterRequest.listeners`."""

    name: str = wire.string("0+")
    host: str = wire.string("0+")
    port: int = wire.uint16("0+")


@message(versions="0-1", flexible="0+")
class AddRaftVoterRequest:
    """Request of the AddRaftVoter API."""

    cluster_id: str | None = wire.string("0+", nullable="0+")
    timeout_ms: int = wire.int32("0+")
    voter_id: int = wire.int32("0+")
    voter_directory_id: bytes = wire.uuid("0+")
    listeners: Sequence[Listener] = wire.array(Listener, "0+")
    ack_when_committed: bool = wire.boolean("1+", default=True)


@message(versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    """Response of the AddRaftVoter API."""

    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", ignorable=True)
