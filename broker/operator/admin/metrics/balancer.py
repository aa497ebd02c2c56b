"""Metrics of the balancer. What the controller knows of all nodes, other nodes show as if all were even."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics.definitions import counter, definitions_in, gauge

ON = gauge("anabranch_balancer_on", "1 if partitions may move by themselves (`balancer.enable`).")
LOAD = gauge(
    "anabranch_balancer_load_cores",
    "What the partitions that this node leads, and its consumers as a replica, cost by their traffic, as a mean of a "
    "minute.",
)
SPREAD = gauge(
    "anabranch_balancer_spread",
    "Highest load of a node, in multiples of the mean: 1 is even. What no move takes away counts up to the mean. Shown "
    "by the controller, by other nodes as 1.",
)
EXCESS = gauge(
    "anabranch_balancer_excess_cores",
    "Highest load of a node above 1.2 times the mean. Shown by the controller, else 0.",
)
HOT = gauge(
    "anabranch_balancer_hot_partitions",
    "Partitions that cost more than a node does in the mean: no move helps. Shown by the controller, else 0.",
)
MOVES = counter(
    "anabranch_balancer_moves_total",
    "Moves that this node has ordered as the controller, by rule: fill (a node has joined), shed (one is overloaded), "
    "zone (the clients are in another rack), spread (numbers of partitions differ).",
    "rule",
)
FAILURES = counter("anabranch_balancer_move_failures_total", "Those of them that were not carried out.")

DEFINITIONS: Final = definitions_in(globals())


def collect(node: Node) -> Iterator[Metric]:
    """Yield the metrics of this area."""
    balancer = node.upkeep.balancer
    plan = None if balancer.last is None else balancer.last.plan
    yield ON.single(balancer.is_on)
    yield LOAD.single(node.upkeep.meter.cores)
    yield SPREAD.single(1.0 if plan is None else plan.spread_before)
    yield EXCESS.single(0.0 if plan is None else plan.excess_cores)
    yield HOT.single(0 if plan is None else len(plan.hot))
    yield MOVES.family([((str(rule),), count) for rule, count in balancer.counts.moves.items()])
    yield FAILURES.single(balancer.counts.failures)
