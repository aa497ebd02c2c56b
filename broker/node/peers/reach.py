"""Watches whether the nodes reach each other, in both directions: a node cannot see by itself that it is unreachable.

Each node asks each other living one every few seconds. This node knows which of its calls fail. The other node reports
in its answer whether it reaches this one (`broker.api.handlers.describe_quorum.report`); without an answer, its own
questions show it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.broker.node.peers.members import Member, Members
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from anabranch.s3stream.errors import StorageError

ASK_S: Final = 3.0
"""Interval between the questions to each node."""
FAILING_AFTER_S: Final = 10.0
"""Time after which a node that lives and is not reached counts as such: longer than a judgement of death takes."""
VERSION: Final = 2
QUESTION: Final = DescribeQuorumRequest(topics=())
"""Question how far a node has come with the catalog's changes. Nodes of earlier versions answer it, too."""


class Unreached(NamedTuple):
    """A connection between two living nodes that fails."""

    from_node: int
    to_node: int
    reason: str


@dataclass(slots=True)
class _Contact:
    """Knowledge of the connections to and from one life of a node."""

    answered_s: float
    """Time of its last answer, or of the first question."""
    failure: str = ""
    """Reason for which the last question was not answered."""
    complaint: str = ""
    """Reason for which it does not reach this node, as it said in its last answer."""
    serves: bool = False
    """True if it is known to have started: a node that recovers its log beats, but answers no calls."""


class Reach:
    """The connections between this node and the others, while `run` runs.

    `has_started` returns whether a node has recovered its log. It may raise StorageError.
    """

    def __init__(self, members: Members, peers: Peers, *, has_started: Callable[[Member], Awaitable[bool]]) -> None:
        self._members = members
        self._peers = peers
        self._has_started = has_started
        self._contacts: dict[Member, _Contact] = {}
        self._heard: dict[int, tuple[int, float]] = {}
        """Epoch and time of the last request of each node."""

    def hear(self, node_id: int, epoch: int) -> None:
        """Note that a node has sent a request to this one."""
        self._heard[node_id] = epoch, asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Ask the other nodes until cancelled."""
        while True:
            others = self._others()
            async with asyncio.TaskGroup() as group:
                for member in others:
                    group.create_task(self._ask(member))
            self._contacts = {member: contact for member, contact in self._contacts.items() if member in others}
            await asyncio.sleep(ASK_S)

    def _others(self) -> Sequence[Member]:
        return [member for member in self._members.living() if member.node_id != self._members.own.node_id]

    async def _ask(self, member: Member) -> None:
        now_s = asyncio.get_running_loop().time
        contact = self._contacts.setdefault(member, _Contact(now_s()))
        try:
            answer: DescribeQuorumResponse = await self._peers.call(member.node_id, QUESTION, VERSION)
        except PeerUnavailable as error:
            contact.failure, contact.complaint = str(error), ""
            contact.serves = contact.serves or self._is_heard(member) or await self._is_known_to_have_started(member)
        else:
            contact.answered_s, contact.failure, contact.serves = now_s(), "", True
            contact.complaint = answer.error_message or ""

    async def _is_known_to_have_started(self, member: Member) -> bool:
        try:
            return await self._has_started(member)
        except StorageError:
            return False

    def failure_of(self, node_id: int) -> str:
        """Return why this node does not reach another one that serves; empty if it does, or has not tried for long."""
        return next((self._failure(member) for member in self._contacts if member.node_id == node_id), "")

    def _failure(self, member: Member) -> str:
        contact = self._contacts[member]
        is_long = asyncio.get_running_loop().time() - contact.answered_s >= FAILING_AFTER_S
        return contact.failure if contact.serves and is_long else ""

    def _is_heard(self, member: Member) -> bool:
        epoch, heard_s = self._heard.get(member.node_id, (0, 0.0))
        return epoch == member.epoch and asyncio.get_running_loop().time() - heard_s < FAILING_AFTER_S

    def unreached(self) -> Sequence[Unreached]:
        """Return the connections from and to this node that fail."""
        own, found = self._members.own.node_id, []
        for member in self._others():
            if member not in self._contacts:
                continue
            if failure := self._failure(member):
                found.append(Unreached(own, member.node_id, failure))
                if not self._is_heard(member):
                    found.append(
                        Unreached(
                            member.node_id, own, f"node {member.node_id} has sent nothing for {FAILING_AFTER_S:g} s"
                        )
                    )
            elif complaint := self._contacts[member].complaint:
                found.append(Unreached(member.node_id, own, complaint))
        return found

    def why_isolated(self) -> str:
        """Return why no other node reaches this one; empty if one does, or if there is no other."""
        own = self._members.own.node_id
        reasons = {each.from_node: each.reason for each in self.unreached() if each.to_node == own}
        others = {member.node_id for member in self._others()}
        return "; ".join(reasons.values()) if others and others <= reasons.keys() else ""
