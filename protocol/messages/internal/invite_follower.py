"""InviteFollower: a leader tells a replica that consumers in its rack read the newest records of partitions.

A replica that follows them (`follow_tail`) is named to these consumers. It is relayed: a node of an earlier version
refuses it, and the leader goes on to serve the consumers.
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_017


@message
class Invitation:
    topic_id: bytes = wire.uuid("0+")
    index: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    offset: int = wire.int64("0+")
    """Offset that a consumer reads from."""


@message(versions="0", flexible=None)
class InviteFollowerRequest:
    node_id: int = wire.int32("0+")
    """The leader."""
    invitations: Sequence[Invitation] = wire.array(Invitation, "0+")


@message(versions="0", flexible=None)
class InviteFollowerResponse:
    """Response of the InviteFollower API, without fields."""
