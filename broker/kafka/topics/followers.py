"""The replicas that follow partitions of this node, their leader: what each has said to hold, and invitations to more.

A leader names a replica to a reader of the newest records only if that one is known to have what the reader needs next.
Otherwise it serves the reader, and invites the replica in the reader's rack to follow.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

import structlog

from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.broker.node.peers.relay import RelayRefused, relay
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.messages.internal.invite_follower import Invitation, InviteFollowerRequest

FOLLOWS_S: Final = 1.5
"""Time after its last question for which a replica is taken to follow."""
INVITED_S: Final = 2.0
"""Time between two invitations of a node to follow a partition."""
REFUSED_S: Final = 60.0
"""Time for which a node that refuses an invitation gets no other: it has an earlier version."""
INVITATIONS_MAX: Final = 10_000
"""Invitations that are remembered."""

_log = structlog.get_logger("storage")


class Held(NamedTuple):
    """Range of offsets that a replica has of a partition: [start, end)."""

    start_offset: int
    end_offset: int


class Followers:
    """Other nodes, with the partitions that they follow here."""

    def __init__(self, peers: Peers, node_id: int, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._peers = peers
        self._node_id = node_id
        self._spawn = spawn
        self._followed: dict[int, tuple[float, Mapping[int, Held]]] = {}
        """By node: the time of its last question, and what it has then said to have of each stream."""
        self._invited_s: dict[tuple[int, int], float] = {}
        """Time of the invitations of a moment ago by node and stream, the oldest in front."""
        self._waiting: dict[int, list[Invitation]] = {}
        """Invitations by node that are about to be sent."""
        self._refused_s: dict[int, float] = {}
        """Time at which a node has refused invitations."""
        self.sent_bytes = 0
        """Bytes of records sent to replicas since the start."""

    def note(self, node_id: int, followed: Mapping[int, Held], now_s: float) -> None:
        """Note all that a node follows here, by stream."""
        self._followed[node_id] = (now_s, followed)

    def has(self, node_id: int, stream_id: int, offset: int, now_s: float) -> bool:
        """Return whether a node follows a stream, and has what follows the offset, or gets it next."""
        asked_s, followed = self._followed.get(node_id, (float("-inf"), {}))
        held = followed.get(stream_id)
        return now_s - asked_s <= FOLLOWS_S and held is not None and held.start_offset <= offset <= held.end_offset

    def invite(self, node_id: int, stream_id: int, invitation: Invitation, now_s: float) -> None:
        """Send a node an invitation to follow a stream, unless one was sent just before."""
        self._forget_invitations(now_s)
        key = (node_id, stream_id)
        if key in self._invited_s or len(self._invited_s) >= INVITATIONS_MAX:
            return
        if now_s - self._refused_s.get(node_id, float("-inf")) < REFUSED_S:
            return
        self._invited_s[key] = now_s
        waiting = self._waiting.setdefault(node_id, [])
        waiting.append(invitation)
        if len(waiting) == 1:
            self._spawn(self._send(node_id))

    def _forget_invitations(self, now_s: float) -> None:
        while self._invited_s:
            oldest = next(iter(self._invited_s))
            if now_s - self._invited_s[oldest] < INVITED_S:
                return
            del self._invited_s[oldest]

    async def _send(self, node_id: int) -> None:
        request = InviteFollowerRequest(node_id=self._node_id, invitations=self._waiting.pop(node_id))
        try:
            await relay(self._peers, node_id, request, 0)
        except RelayRefused as error:
            self._refused_s[node_id] = asyncio.get_running_loop().time()
            _log.debug("a replica refuses to follow", node_id=node_id, reason=str(error))
        except (PeerUnavailable, ProtocolError) as error:
            _log.debug("a replica was invited to follow in vain", node_id=node_id, reason=str(error))
