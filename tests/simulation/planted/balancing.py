"""Planted bugs of the balancer."""

from collections.abc import Sequence

from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import DRAINED, HASTY, TWO_BALANCE, having

BALANCING: Sequence[Planted] = (
    Planted(
        "balanced-to-drained",
        "a plan moves partitions to a node that is being drained",
        [
            Edit(
                "anabranch.broker.cluster.balancer.balancer",
                "if member.node_id in answers and member.node_id not in self._members.draining",
                "if member.node_id in answers",
            )
        ],
        found_by=DRAINED,
        seeds=20,
        adapt=having("drain", nodes=3, churns=2, seconds=60.0),
    ),
    Planted(
        "balanced-by-two",
        "a node balances beside the controller",
        [
            Edit(
                "anabranch.broker.cluster.balancer.balancer",
                "if own != controller:",
                "if own > controller + 1:",
            )
        ],
        found_by=TWO_BALANCE,
        seeds=20,
        adapt=having("kill", nodes=3, churns=2, idempotent=2, seconds=60.0),
    ),
    Planted(
        "balanced-at-rest",
        "a plan moves partitions that have just been moved",
        [
            Edit(
                "anabranch.broker.cluster.balancer.planning",
                "return each.stream_id not in self._resting and (each.stream_id, to_node) not in self._left",
                "return True",
            )
        ],
        found_by=HASTY,
        seeds=50,
        adapt=having("kill", nodes=3, churns=2, idempotent=2, seconds=60.0),
    ),
    Planted(
        "balanced-by-an-heir",
        "a node that becomes the controller does not know that partitions rest",
        [
            Edit(
                "anabranch.broker.cluster.balancer.balancer",
                "    return float(traffic.led_s) if told_by == info.leader else 0.0\n",
                "    return math.inf\n",
            )
        ],
        found_by=HASTY,
        seeds=50,
        adapt=having("kill", "stop", nodes=3, churns=2, idempotent=2, seconds=60.0),
    ),
)
