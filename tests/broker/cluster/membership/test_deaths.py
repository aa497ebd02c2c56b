"""Each death of a node is told once, however often what it left has to be taken."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from structlog.testing import capture_logs

from anabranch.broker.cluster.membership.failover import Failover
from anabranch.broker.node.peers.liveness import Silence
from anabranch.s3stream.catalog.values import NodeBeat, NodeInfo
from anabranch.s3stream.model import NodeIdentity
from tests.support.virtual_time import run_virtual


class World:
    """A dead node without a log, of which something is always left, and the catalog that has it."""

    def __init__(self) -> None:
        self.nodes = [NodeInfo(1, 3, "h", 9092, 1, 10)]
        self._observed = asyncio.Event()
        self.beat = NodeBeat(3, 7, has_lease=True)
        self.taken: list[NodeBeat] = []

    def silent(self) -> dict[int, Silence]:
        return {1: Silence(self.beat, 10.0, was_alive=True)}

    async def observed(self) -> None:
        await self._observed.wait()

    def observe(self) -> None:
        """Observe the beats of all nodes."""
        self._observed.set()
        self._observed = asyncio.Event()

    async def list_wals(self, _node_id: int) -> list[object]:
        return []

    async def take_over(self, _node_id: int, seen: NodeBeat, **_: object) -> int:
        assert seen == self.beat
        self.taken.append(seen)
        self.beat = NodeBeat(seen.epoch + 1, 0, has_lease=False)
        return self.beat.epoch

    async def reaches(self, _node: NodeInfo) -> bool:
        return False


def test_a_death_is_told_once() -> None:
    async def body() -> None:
        world = cast("Any", World())

        failover = Failover(
            world,
            world,
            cast("Any", SimpleNamespace(now_ms=lambda: 0, check_catalog=AsyncMock())),
            own=NodeIdentity(2, 1),
            new_leaders=lambda: [2],
            left_any=lambda _: True,
            reaches=world.reaches,
            spawn=asyncio.get_running_loop().create_task,
        )
        running = asyncio.create_task(failover.run())
        with capture_logs() as said:
            for _ in range(3):
                await asyncio.sleep(1)  # the task begins, or has attended to the node
                world.observe()
            await asyncio.sleep(1)
            assert (len(world.taken), len(said)) == (3, 1)
            world.beat = NodeBeat(9, 4, has_lease=True)  # it has started again, and dies again
            world.observe()
            await asyncio.sleep(1)
        assert [line["event"] for line in said] == ["a node is dead: it is taken over"] * 2
        running.cancel()

    run_virtual(body())
