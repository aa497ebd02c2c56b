"""RemoveRaftVoter: remove a voter from the metadata quorum (KIP-853).

Versions:
    v0  first version. flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 81


@message(versions="0", flexible="0+")
class RemoveRaftVoterRequest:
    """Request of the RemoveRaftVoter API."""

    cluster_id: str | None = wire.string("0+", nullable="0+")
    voter_id: int = wire.int32("0+")
    voter_directory_id: bytes = wire.uuid("0+")


@message(versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    """Response of the RemoveRaftVoter API."""

    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", ignorable=True)
