"""Figures of all nodes: what their processes use, and how much they are used. Rates follow from two answers."""

from typing import Final

from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.protocol.messages.internal.describe_node import DescribeNodeRequest, DescribeNodeResponse

TIMEOUT_S: Final = 2.0
"""Time for the answers of all nodes: those of the others must not wait for one that hangs."""


class NodeFigures(Model):
    """Figures of a node. Counters begin with its start."""

    node: int
    version: str
    at_ms: int
    """Time of the figures by the node's clock."""
    started_ms: int
    cores: int
    cpu_ms: int
    """CPU time of the process, a counter."""
    memory_bytes: int
    memory_available_bytes: int
    """Memory of the machine, or of the container; the node plans with half of it."""
    log_used_bytes: int
    log_capacity_bytes: int
    disk_free_bytes: int | None
    """Of the file system with the data directory."""
    disk_total_bytes: int | None
    received_bytes: int
    """Bytes received from Kafka clients, a counter."""
    sent_bytes: int
    """Bytes of records sent to consumers, a counter."""
    requests: int
    """Requests of Kafka clients that were answered, a counter."""
    connections: int


class ClusterFigures(Model):
    """Figures of the living nodes."""

    nodes: list[NodeFigures]
    unreachable: list[int]


class FigureEndpoints:
    """Endpoint of the figures."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        summary = "CPU, memory, disks, traffic and requests of all nodes."
        self.endpoints = [Endpoint("GET", "/cluster/figures", summary, self._figures, ClusterFigures)]

    async def _figures(self, call: Call) -> ClusterFigures:
        living = self._calls.living()
        answers, unreachable = await self._calls.call_each(
            living, lambda _: DescribeNodeRequest(), call.user, TIMEOUT_S
        )
        return ClusterFigures(
            nodes=[_figures(node_id, answer) for node_id, answer in sorted(answers.items())], unreachable=unreachable
        )


def _figures(node_id: int, answer: DescribeNodeResponse) -> NodeFigures:
    return NodeFigures(
        node=node_id,
        version=answer.version,
        at_ms=answer.now_ms,
        started_ms=answer.started_ms,
        cores=answer.cores,
        cpu_ms=answer.cpu_ms,
        memory_bytes=answer.memory_bytes,
        memory_available_bytes=answer.memory_available_bytes,
        log_used_bytes=answer.log_used_bytes,
        log_capacity_bytes=answer.log_capacity_bytes,
        disk_free_bytes=_known(answer.disk_free_bytes),
        disk_total_bytes=_known(answer.disk_total_bytes),
        received_bytes=answer.received_bytes,
        sent_bytes=answer.sent_bytes,
        requests=answer.requests,
        connections=answer.connections,
    )


def _known(size_bytes: int) -> int | None:
    return None if size_bytes < 0 else size_bytes
