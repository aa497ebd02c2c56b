"""Warnings about several nodes on one catalog: what does not work yet, at the start and when a client needs it.

Such nodes do not disturb each other, and apply configs that were set through another node. They do not form a cluster:
no node answers for partitions that another one leads.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from s3stream.catalog.values import NodeInfo, TopicInfo

LIMITS: Final = (
    "they form no cluster yet: consumer groups work only through the node that leads __consumer_offsets, transactions "
    "only through the one that leads __transaction_state, and topics and partitions that were created through "
    "another node appear here after the next start"
)
WARNING_PERIOD_S: Final = 60.0
"""Least time between two warnings about the same topic."""

_log = structlog.get_logger("node")


def other_nodes(nodes: Iterable[NodeInfo], topics: Iterable[TopicInfo], node_id: int, now_ms: int) -> Sequence[int]:
    """Return the ids of other nodes that are alive or lead partitions."""
    living = {node.node_id for node in nodes if node.lease_until_ms > now_ms}
    leading = {partition.leader for topic in topics for partition in topic.partitions if partition.leader >= 0}
    return sorted((living | leading) - {node_id})


def warn_of_other_nodes(others: Sequence[int]) -> None:
    """Log what does not work, if there are other nodes."""
    if others:
        _log.warning("other nodes share this catalog", nodes=list(others), limits=LIMITS)


@dataclass(slots=True)
class RemoteCoordinatorWarning:
    """Warns of clients that look here for another node's coordinator, once a minute at most per internal topic."""

    _said_at: dict[str, float] = field(default_factory=dict)

    def warn(self, topic: TopicInfo, index: int, key: str) -> None:
        """Warn of a client that needs the coordinator of `key`, in a partition that this node does not lead."""
        now = asyncio.get_running_loop().time()
        if now < self._said_at.get(topic.name, -WARNING_PERIOD_S) + WARNING_PERIOD_S:
            return
        self._said_at[topic.name] = now
        _log.warning(
            "a client waits for a coordinator on another node: let it connect to that node",
            key=key,
            topic=topic.name,
            partition=index,
            leader=topic.partitions[index].leader,
        )
