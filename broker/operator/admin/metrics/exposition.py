"""Writes the metrics of a node in Prometheus' text format or in OpenMetrics, in pieces between which it serves clients.

A piece has a limited number of samples, so that a scrape of a node with 10,000 partitions, which takes 0.2 s, holds the
loop for some milliseconds at a time.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics import balancer, cluster, group_ages, replicas, shares, storage, tables
from anabranch.broker.operator.admin.metrics import node as node_area
from anabranch.broker.operator.admin.metrics.definitions import SAMPLES_PER_PIECE, Definition
from anabranch.broker.operator.admin.metrics.group_ages import GroupAges

AREAS: Final = (node_area, storage, tables, cluster, replicas, balancer, group_ages, shares)
DEFINITIONS: Final[Sequence[Definition]] = tuple(each for area in AREAS for each in area.DEFINITIONS)
"""All metrics, except those of the process and those that clients push."""
_OPENMETRICS: Final = "application/openmetrics-text"
END: Final = b"# EOF\n"
"""Last line of OpenMetrics."""
_VERSION: Final = re.compile(r"version\s*=\s*([^;]*)")
PIECE_S: Final = 0.001
"""Time after which a piece ends even with fewer samples, because it took long to find them."""
KNOWN_VERSIONS: Final = frozenset({"0.0.4", "1.0.0"})
"""Versions of the two formats, as in an Accept header."""


class Exposition(NamedTuple):
    """The answer to a scrape."""

    content_type: str
    body: bytes


class NodeCollector(Collector):
    """All metrics of a node, read from its components when they are collected."""

    def __init__(self, node: Node, ages: GroupAges) -> None:
        self._node = node
        self._ages = ages
        self._process = ProcessCollector(registry=CollectorRegistry())

    def collect(self) -> Iterator[Metric]:
        """Yield families. Several that follow each other may be pieces of one, and some have no samples."""
        yield from node_area.collect(self._node)
        yield from storage.collect(self._node)
        yield from tables.collect(self._node)
        yield from cluster.collect(self._node.serving)
        yield from replicas.collect(self._node.serving)
        yield from balancer.collect(self._node)
        yield from self._ages.collect()
        yield from shares.collect(self._node.serving)
        yield from self._process.collect()


class _Families(Collector):
    """Some families, for an encoder."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        return iter(self._metrics)


async def scrape(node: Node, accept: str = "", ages: GroupAges | None = None) -> Exposition:
    """Return all metrics of a node in the format that an Accept header asks for, by default Prometheus' text format.

    `ages` is the state of earlier scrapes; without it, only the ages of records in the log cache are known. The node
    continues while it is written, so each sample has the value at the time when its piece is built.
    """
    encode, content_type = _choose(accept)
    parts: list[bytes] = []
    piece: list[Metric] = []
    last: Metric | None = None
    paused = perf_counter()
    for metric in NodeCollector(node, GroupAges(node) if ages is None else ages).collect():
        if metric.samples:
            piece.append(metric)
        if sum(len(each.samples) for each in piece) >= SAMPLES_PER_PIECE or perf_counter() - paused > PIECE_S:
            parts.append(_encode(encode, piece, last))
            last, piece = (piece[-1] if piece else last), []
            await asyncio.sleep(0)
            paused = perf_counter()
    parts.append(_encode(encode, piece, last))
    if content_type.startswith(_OPENMETRICS):
        parts.append(END)
    return Exposition(content_type, b"".join(parts))


def _choose(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return encoder and content type.

    The library repeats the version that is asked for, so it sees known ones only. Names are valid in every scheme of
    escaping; the one that is named to the encoder is the cheapest.
    """
    known = [
        each
        for each in accept.split(",")
        if (asked := _VERSION.search(each)) is None or asked[1].strip() in KNOWN_VERSIONS
    ]
    _, content_type = choose_encoder(",".join(known))
    encoder = openmetrics.generate_latest if content_type.startswith(_OPENMETRICS) else generate_latest
    return partial(encoder, escaping=openmetrics.ALLOWUTF8), content_type


def _encode(encode: Callable[[Collector], bytes], piece: Sequence[Metric], last: Metric | None) -> bytes:
    """Return the lines of a piece. If it continues the last family of the one before it, its header is there."""
    lines = encode(_Families(piece)).removesuffix(END)
    if piece and last is not None and (piece[0].name, piece[0].type) == (last.name, last.type):
        while lines.startswith(b"#"):
            lines = lines[lines.index(b"\n") + 1 :]
    return lines
