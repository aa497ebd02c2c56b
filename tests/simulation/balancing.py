"""The balancer in runs of several nodes: its times are as short as the runs, and each of its orders is checked.

In some runs every node takes itself for the controller: several that balance do no harm.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from anabranch.broker.cluster.balancer import balancer, planning
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.s3stream.catalog.values import MoveReason
from tests.simulation.history import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

REST_S = 10.0
CROWD_SHARE = 0.2
"""Part of the runs in which all nodes balance."""
TIMES: Mapping[str, Any] = {
    "JOINED_S": (1.0, 600.0),
    "OBSERVATIONS": 2,
    "REST_S": REST_S,
    "RETURN_S": 20.0,
    "HOURLY_SHARE": 50.0,
    "OVERLOAD_CORES": 0.0003,
    "WORTH_CORES": 0.00002,
    "REST_CORES": 0.001,
}
"""Of the planner. Actors send some batches a second: a node has a thousandth of a core to do."""


@contextmanager
def quick_balancer() -> Iterator[None]:
    """Let balancers look each second."""
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(planning, **TIMES))
        stack.enter_context(patch.multiple(balancer, SAMPLE_S=1.0, UNMEASURED_S=3.0, MOVES_S=5.0))
        yield


class Balancing:
    """The orders of all balancers of a run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._is_crowd = world.random("balancers").random() < CROWD_SHARE
        self._moved: dict[int, tuple[int, int, float]] = {}
        """Target, leader epoch and time of the last order, by stream, unless it was withdrawn: another move to that
        target, as by a drain, is none of a balancer, and a stream need not rest after it."""

    def watch(self, node: Node) -> None:
        """Check each order of a node's balancer when it is given."""
        requests = node.serving.move_requests
        really = requests.request

        async def request(wanted: Mapping[Place, int], reason: MoveReason, *others: Any, **named: Any) -> None:
            if reason is MoveReason.PLACEMENT:
                self._check(node, wanted)
            await really(wanted, reason, *others, **named)
            if reason is MoveReason.PLACEMENT:
                self._world.count("partitions balanced", len(wanted))

        cancel = requests.cancel

        async def forget(places: Collection[Place]) -> None:
            for place in places:
                self._moved.pop(requests.info(place).stream_id, None)
            await cancel(places)

        requests.request = request  # type: ignore[method-assign]
        requests.cancel = forget  # type: ignore[method-assign]
        each = node.upkeep.balancer
        if self._is_crowd:
            each._why_idle = lambda: ""  # type: ignore[method-assign]

    def _check(self, node: Node, wanted: Mapping[Place, int]) -> None:
        members, now_s = node.serving.members, self._world.now_s
        if members.controller_id != node.serving.node_id and not self._is_crowd:
            raise Violation(f"node {node.serving.node_id} balances, and so does node {members.controller_id}")
        for place, to_node in wanted.items():
            info = node.serving.move_requests.info(place)
            where = f"node {node.serving.node_id} balances {place} to node {to_node}"
            if to_node in members.draining:
                raise Violation(f"{where}, which is being drained")
            if members.get(to_node) is None:
                raise Violation(f"{where}, which does not live")
            before, epoch, moved_s = self._moved.get(info.stream_id, (-1, 0, 0.0))
            # It has not left meanwhile, nor did a drain move it there, after which it is not where it shall be.
            is_where_moved = before == info.leader == info.preferred and info.leader_epoch <= epoch + 1
            if is_where_moved and now_s - moved_s < REST_S and not self._is_crowd:
                raise Violation(f"{where}, {now_s - moved_s:.1f} s after it was moved: it rests")
            self._moved[info.stream_id] = to_node, info.leader_epoch, now_s
