"""DescribeBalance: loads, the last plan and earlier moves, of the node that balances: the controller.

It is relayed (`relay`). Another node than the controller knows nothing, and says so in `waits`.
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_012


@message(versions="0", flexible=None)
class DescribeBalanceRequest:
    partitions_max: int = wire.int32("0+", default=1000)
    """Number of partitions in the response, the most expensive ones."""


@message
class BalancedNode:
    """A living node."""

    node_id: int = wire.int32("0+")
    rack: str = wire.string("0+")
    cores: float = wire.float64("0+")
    """Cost of its partitions and of `replica_cores`, as a mean of the last minute: 0.5 is half a processor."""
    replica_cores: float = wire.float64("0+")
    """Cost of the consumers that read from it as a replica: no move of a partition takes it away."""
    partitions: int = wire.int32("0+")
    """Number of partitions that it leads."""
    received_bytes: float = wire.float64("0+")
    """A second, as the next ones."""
    sent_bytes: float = wire.float64("0+")
    requests: float = wire.float64("0+")
    up_ms: int = wire.int64("0+")
    """Time since it began to serve; -1: it does not answer."""
    draining: bool = wire.boolean("0+")


@message
class BalancedPartition:
    topic: str = wire.string("0+")
    partition: int = wire.int32("0+")
    leader: int = wire.int32("0+")
    cores: float = wire.float64("0+")
    received_bytes: float = wire.float64("0+")
    """A second, as the next ones."""
    sent_bytes: float = wire.float64("0+")
    requests: float = wire.float64("0+")
    resting: bool = wire.boolean("0+")
    """True: it was moved a moment ago, and stays where it is."""
    advice: str = wire.string("0+")
    """Advice, if the partition is hot: it costs more than a node does in the mean. Else empty."""


@message
class BalanceMove:
    """A move that is planned, or was ordered."""

    topic: str = wire.string("0+")
    partition: int = wire.int32("0+")
    from_node: int = wire.int32("0+")
    to_node: int = wire.int32("0+")
    cores: float = wire.float64("0+")
    """Cost of the partition."""
    rule: str = wire.string("0+")
    """`fill`: the target has joined, `shed`: the source is overloaded, `zone`: the clients are in the target's rack,
    `spread`: numbers of partitions differ.
    """
    reason: str = wire.string("0+")
    """The same with figures."""
    ordered_ms: int = wire.int64("0+", default=-1)
    """Wall-clock time of the order; -1: it is only planned."""
    done: bool = wire.boolean("0+")
    failure: str = wire.string("0+")
    """Reason for which it was not carried out."""


@message(versions="0", flexible=None)
class DescribeBalanceResponse:
    is_on: bool = wire.boolean("0+")
    """False: it is paused. It plans, and orders nothing."""
    waits: str = wire.string("0+")
    """Reason for which nothing is planned now; empty: it is."""
    planned_ms: int = wire.int64("0+", default=-1)
    """Wall-clock time of the last plan; -1: there is none."""
    spread_before: float = wire.float64("0+", default=1.0)
    """Highest load of a node, in multiples of the mean; 1 is even. Before the moves of the plan."""
    spread_after: float = wire.float64("0+", default=1.0)
    nodes: Sequence[BalancedNode] = wire.array(BalancedNode, "0+")
    partitions: Sequence[BalancedPartition] = wire.array(BalancedPartition, "0+")
    """The most expensive first."""
    moves: Sequence[BalanceMove] = wire.array(BalanceMove, "0+")
    """Those of the last plan."""
    history: Sequence[BalanceMove] = wire.array(BalanceMove, "0+")
    """The last moves that this node has ordered, the newest first."""
