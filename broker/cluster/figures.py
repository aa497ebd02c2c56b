"""Figures of a node's process, as other nodes' admin ports ask for them: nothing is collected between two questions."""

import os
import shutil
import time
from functools import cache
from importlib.metadata import version

from anabranch.broker.cluster.node import Node
from anabranch.platform import resident_memory
from anabranch.protocol.messages.internal.describe_node import DescribeNodeResponse

UNKNOWN_BYTES = -1
_own_version = cache(version)  # which reads a file


class ProcessFigures:
    """Counters and gauges of a node, from its construction on."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._started_ms = node.serving.now_ms()

    def describe(self) -> DescribeNodeResponse:
        """Return the figures as they are now."""
        node, serving, clients = self._node, self._node.serving, self._node.ports.clients
        free_bytes, total_bytes = _disk(node)
        return DescribeNodeResponse(
            version=_own_version("anabranch"),
            now_ms=serving.now_ms(),
            started_ms=self._started_ms,
            cores=os.cpu_count() or 1,
            cpu_ms=time.process_time_ns() // 1_000_000,
            memory_bytes=resident_memory(),
            memory_available_bytes=node.memory.available_bytes,
            log_used_bytes=node.wal.used_bytes,
            log_capacity_bytes=node.wal.capacity_bytes,
            disk_free_bytes=free_bytes,
            disk_total_bytes=total_bytes,
            received_bytes=clients.bytes_in,
            sent_bytes=serving.fetched_bytes,
            requests=sum(each.count for each in clients.latency.values()),
            connections=len(clients.connections),
        )


def _disk(node: Node) -> tuple[int, int]:
    """Return free and all bytes of the file system with the data directory."""
    try:
        usage = shutil.disk_usage(node.serving.settings.node.data_dir)
    except OSError:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return usage.free, usage.total
