"""Carries out orders to move partitions that this node leads: rows of `moves` in the catalog.

Orders come with the changes that the node follows, as a part of their partitions (`PartitionInfo.order`). A few are
carried out at a time. An order that does not succeed is tried again after a pause, and fails after some attempts; then
it must be given again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog

from anabranch.broker.cluster.handover.source import MoveFailed, PartitionSource
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import MoveOrder
from anabranch.s3stream.errors import NodeFenced, StorageError

AT_ONCE_MAX: Final = 16
"""Moves under way at a time."""
AT_ONCE_TO_A_NODE_MAX: Final = 8
BEAT_AGE_S: Final = 1.0
"""While the last beat is older, no move begins: its outcome could not be found out."""
ATTEMPTS_MAX: Final = 8
"""Attempts to carry an order out, over about half a minute."""
PAUSE_S: Final = (0.1, 5.0)
"""First and longest pause after an attempt; it doubles with each."""
CLOSE_S: Final = 15.0
"""Longest wait of `close` for moves under way."""

_log = structlog.get_logger("moves")


class _Attempts(NamedTuple):
    order: MoveOrder
    tries: int
    retry_s: float
    """Time before which the order is not tried again."""


class MoveOrders:
    """The orders of this node's partitions. `beat_age_s` is the age of its last beat."""

    def __init__(
        self,
        catalog: Catalog,
        topics: TopicManager,
        source: PartitionSource,
        *,
        node_id: int,
        beat_age_s: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._source = source
        self._node_id = node_id
        self._beat_age_s = beat_age_s
        self._spawn = spawn
        self._woken = asyncio.Event()
        self._moving: dict[int, int] = {}
        """Target by stream, of the moves under way."""
        self._attempts: dict[int, _Attempts] = {}
        """Orders that were tried and did not succeed, by stream."""
        self._ended = asyncio.Event()
        """Set after each move."""
        self._closed = False

    async def run(self) -> None:
        """Carry orders out until cancelled."""
        self._topics.listeners.append(self._woken.set)
        self._woken.set()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._woken.wait()
            self._woken.clear()
            self._begin_due()

    def _pause_s(self) -> float | None:
        """Return the time until something is due without an event; None if nothing is."""
        if not self._attempts:
            return None
        now_s = asyncio.get_running_loop().time()
        return max(min(each.retry_s for each in self._attempts.values()) - now_s, PAUSE_S[0])

    def _begin_due(self) -> None:
        orders = list(self._orders())
        wanted = {order.stream_id: order for _, order in orders}
        self._attempts = {
            key: each for key, each in self._attempts.items() if wanted.get(key) == each.order or key in self._moving
        }
        if self._closed or not orders:
            return
        now_s = asyncio.get_running_loop().time()
        if self._beat_age_s() > BEAT_AGE_S:
            for _, order in orders:
                self._attempts.setdefault(order.stream_id, _Attempts(order, 0, now_s + PAUSE_S[0]))
            return
        under_way = Counter(self._moving.values())
        for partition, order in sorted(orders, key=lambda pair: pair[1].asked_ms):
            tried = self._attempts.get(order.stream_id)
            if len(self._moving) >= AT_ONCE_MAX:
                return
            if order.stream_id in self._moving or (tried is not None and tried.retry_s > now_s):
                continue
            if under_way[order.to_node] >= AT_ONCE_TO_A_NODE_MAX:
                continue
            under_way[order.to_node] += 1
            self._moving[order.stream_id] = order.to_node
            self._spawn(self._move(partition, order))

    def _orders(self) -> Iterator[tuple[Partition, MoveOrder]]:
        """Yield the orders of partitions that this node serves, except those that have failed."""
        for topic in self._topics:
            for info, partition in zip(topic.info.partitions, topic.partitions, strict=False):
                order = info.order
                if partition is not None and order is not None and not order.failure and order.to_node != self._node_id:
                    yield partition, order

    async def _move(self, partition: Partition, order: MoveOrder) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            await self._source.move(partition, order.to_node)
        except MoveFailed as error:
            await self._note_failure(partition, order, str(error))
        except (NodeFenced, StorageError) as error:
            _log.error("a move has no outcome", partition=str(partition), reason=str(error))
        else:
            self._attempts.pop(order.stream_id, None)
            seconds = round(asyncio.get_running_loop().time() - began_s, 3)
            _log.info("partition moved", partition=str(partition), to_node=order.to_node, seconds=seconds)
        finally:
            del self._moving[order.stream_id]
            self._ended.set()
            self._woken.set()

    async def _note_failure(self, partition: Partition, order: MoveOrder, reason: str) -> None:
        """Let the order wait for another attempt, or fail."""
        before = self._attempts.get(order.stream_id)
        count = 1 if before is None or before.order != order else before.tries + 1
        first_s, longest_s = PAUSE_S
        pause_s = min(first_s * 2**count, longest_s)
        self._attempts[order.stream_id] = _Attempts(order, count, asyncio.get_running_loop().time() + pause_s)
        if count < ATTEMPTS_MAX:
            _log.info("a move is tried again", partition=str(partition), to_node=order.to_node, reason=reason)
            return
        _log.warning("a move has failed", partition=str(partition), to_node=order.to_node, reason=reason)
        with suppress(StorageError):  # it is tried again, and fails again
            await self._catalog.fail_move(order, reason)

    @property
    def under_way(self) -> int:
        """Number of partitions that are being moved now."""
        return len(self._moving)

    async def close(self) -> None:
        """Begin no more moves, and wait for the outcomes of those under way; not forever."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._moving:
                    self._ended.clear()
                    await self._ended.wait()
