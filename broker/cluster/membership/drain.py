"""Moves all partitions off a node while it is being drained, by orders to the other living nodes.

The drained node does this by itself, so a drain does not depend on the client that asked for it. A stop with other
nodes up is a drain for a limited time.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.move_requests import MoveRequests, Place
from anabranch.broker.node.peers.members import Members
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.catalog.placement import place_successors
from anabranch.s3stream.catalog.values import MoveOrder, MoveReason, PartitionInfo
from anabranch.s3stream.errors import StorageError

RETRY_S: Final = 1.0
"""Pause before a move that has failed is ordered again, perhaps to another node."""

_log = structlog.get_logger("node")


class Drain:
    """Drains this node whenever the catalog says that it is being drained, while `run` runs."""

    def __init__(self, requests: MoveRequests, topics: TopicManager, members: Members) -> None:
        self._requests = requests
        self._topics = topics
        self._members = members
        self._node_id = members.own.node_id
        self._changed = asyncio.Event()
        """Set when partitions or nodes have changed, or a failed move may be ordered again."""
        self._progress = asyncio.Event()
        """Set when partitions or nodes have changed."""
        self._failed: dict[Place, tuple[MoveOrder, float]] = {}
        """Failed orders of partitions that this node still leads, and when each was seen first."""
        self._stopping = False
        self._said = ""
        """The reason that was logged last for which nothing is moved: each is logged once."""

    async def run(self) -> None:
        """Order moves until cancelled."""
        self._members.watch(self._note_change)
        self._topics.listeners.append(self._note_change)
        self._note_change()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._node_id not in self._members.draining:
                self._failed.clear()
                continue
            try:
                await self._order_moves()
            except (KafkaError, StorageError) as error:  # of a topic or a node that has just gone, or the catalog
                self._say(str(error))
                await self._later()

    def _note_change(self) -> None:
        self._changed.set()
        self._progress.set()

    def targets(self) -> Sequence[int]:
        """Return the nodes that can take this node's partitions."""
        others = (member for member in self._members.living() if member.node_id != self._node_id)
        return [each.node_id for each in others if each.internal_port and each.node_id not in self._members.draining]

    async def _order_moves(self) -> None:
        """Order what this node leads to others, unless it is ordered to one of them already."""
        targets = self.targets()
        led = {
            place: info for place, info in self._requests.led_by(self._node_id).items() if info.leader == self._node_id
        }
        self._note_failures(led)
        if not led:
            return
        if not targets:
            self._say("no other node that lives can take partitions")
            return
        free = [place for place, info in led.items() if self._is_free(place, info, targets)]
        if free:
            reason = MoveReason.STOP if self._stopping else MoveReason.DRAIN
            self._said = ""
            await self._requests.request(
                dict(zip(free, self._place([led[place] for place in free], targets), strict=True)), reason
            )
        if self._failed and not self._stopping:
            asyncio.get_running_loop().call_later(RETRY_S, self._changed.set)

    def _note_failures(self, led: Mapping[Place, PartitionInfo]) -> None:
        now_s = asyncio.get_running_loop().time()
        found = {place: info.order for place, info in led.items() if info.order is not None and info.order.failure}
        self._failed = {
            place: self._failed[place] if place in self._failed and self._failed[place][0] == order else (order, now_s)
            for place, order in found.items()
        }

    def _is_free(self, place: Place, info: PartitionInfo, targets: Sequence[int]) -> bool:
        """Return whether to order a partition to another node. A stop does not repeat what it has tried.

        An order of a person stands until it fails, which it does when its target stays away.
        """
        if info.order is None:
            return True
        if place not in self._failed:
            return not info.order.reason.is_lasting and info.order.to_node not in targets
        if self._stopping:
            return info.order.reason is not MoveReason.STOP
        return asyncio.get_running_loop().time() - self._failed[place][1] >= RETRY_S

    def _place(self, partitions: Sequence[PartitionInfo], targets: Sequence[int]) -> Sequence[int]:
        """Spread partitions over the targets: replicas come first, then those that lead the fewest, or soon will."""
        led = Counter(
            each.leader if each.order is None or each.order.failure else each.order.to_node
            for topic in self._topics
            for each in topic.info.partitions
        )
        return place_successors([each.replicas for each in partitions], targets, led)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            _log.warning("the drain waits", reason=reason)

    async def _later(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._changed.set()

    async def before_stop(self, timeout_s: float) -> None:
        """Move all partitions to other nodes before this one stops, for a limited time. Some may be left.

        Returns at once if there is nothing to move, or no node to take it.
        """
        if not self.targets() or not self._requests.led_by(self._node_id):
            return
        self._stopping = True
        before = len(self._requests.led_by(self._node_id))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                try:
                    await self._requests.set_draining(self._node_id, draining=True)
                except StorageError as error:
                    _log.warning("the node stops without moving its partitions", reason=str(error))
                    return
                while self._moves_go_on():
                    self._progress.clear()
                    await self._progress.wait()
        left = len(self._requests.led_by(self._node_id))
        _log.info("partitions were moved before the stop", moved=before - left, left=left)

    def _moves_go_on(self) -> bool:
        """Return whether a partition is still to be moved, and the stop has not failed to."""
        led = self._requests.led_by(self._node_id)
        return bool(self.targets()) and any(
            info.leader != self._node_id
            or info.order is None
            or not info.order.failure
            or info.order.reason is not MoveReason.STOP
            for info in led.values()
        )
