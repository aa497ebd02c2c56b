"""Costs of traffic: CPU time of a node by bytes and requests. Pure. `benchmarks.balancer` measures the figures."""

from typing import Final

from anabranch.protocol.messages.internal.describe_loads import PartitionTraffic

RECEIVED_BYTE_S: Final = 2.1e-9
"""CPU seconds for a byte that is appended, with its upload."""
SENT_BYTE_S: Final = 0.15e-9
"""For a byte that is sent."""
LOADED_BYTE_S: Final = 0.45e-9
"""For a byte that is loaded from objects before. `benchmarks.replicas` measures both together."""
REQUEST_S: Final = 60e-6
"""For a batch that is appended, or an answer with records."""


def cores_of(traffic: PartitionTraffic) -> float:
    """Return the cores that traffic occupies."""
    return traffic.received_bytes * RECEIVED_BYTE_S + _readers(traffic) + traffic.requests * REQUEST_S


def advise(traffic: PartitionTraffic) -> str:
    """Return what helps a partition that costs more than a node should: what most of its cost comes from."""
    received, sent = traffic.received_bytes * RECEIVED_BYTE_S, _readers(traffic)
    if traffic.requests * REQUEST_S > received + sent:
        return "larger batches (linger.ms of producers, fetch.min.bytes of consumers), or more partitions"
    return "more partitions, and keys that spread over them" if received > sent else "more partitions, or fewer readers"


def _readers(traffic: PartitionTraffic) -> float:
    return traffic.sent_bytes * SENT_BYTE_S + traffic.loaded_bytes * LOADED_BYTE_S
