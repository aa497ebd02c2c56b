"""Several nodes on one catalog: says what does not work there yet, at the start and when a client runs into it.

Such nodes keep out of each other's way, and follow configs that were set through another one. They form no cluster:
none answers for what another one leads.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from s3stream.catalog.values import NodeInfo, TopicInfo

LIMITS: Final = (
    "they form no cluster yet: consumer groups work only through the node that leads __consumer_offsets, transactions "
    "only through the one that leads __transaction_state, and topics and partitions that were made through another "
    "node show here after the next start"
)
WARNING_PERIOD_S: Final = 60.0
"""Time between two lines about the same thing."""

_log = structlog.get_logger("node")


def other_nodes(nodes: Iterable[NodeInfo], topics: Iterable[TopicInfo], node_id: int, now_ms: int) -> Sequence[int]:
    """Nodes beside this one that live, or lead partitions, by id."""
    living = {node.node_id for node in nodes if node.lease_until_ms > now_ms}
    leading = {partition.leader for topic in topics for partition in topic.partitions if partition.leader >= 0}
    return sorted((living | leading) - {node_id})


def warn_of_other_nodes(others: Sequence[int]) -> None:
    """Say what does not work, if there are others."""
    if others:
        _log.warning("other nodes share this catalog", nodes=list(others), limits=LIMITS)


@dataclass(slots=True)
class RemoteCoordinatorWarning:
    """Says, once a minute at most for each internal topic, that clients look here for another node's coordinator."""

    _said_at: dict[str, float] = field(default_factory=dict)

    def warn(self, topic: TopicInfo, index: int, key: str) -> None:
        """Tell of a client that asked for the coordinator of `key`, in a partition that this node does not lead."""
        now = asyncio.get_running_loop().time()
        if now < self._said_at.get(topic.name, -WARNING_PERIOD_S) + WARNING_PERIOD_S:
            return
        self._said_at[topic.name] = now
        _log.warning(
            "a client waits for a coordinator that only another node is: have it connect to that one",
            key=key,
            topic=topic.name,
            partition=index,
            leader=topic.partitions[index].leader,
        )
