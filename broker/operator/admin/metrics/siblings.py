"""Metrics of all nodes of one start (`node.processes`) as one page, in which each sample has the label `node`."""

import asyncio
import re
import zlib
from collections.abc import Mapping
from typing import Final

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics.exposition import END, Exposition, scrape
from anabranch.broker.operator.admin.metrics.group_ages import GroupAges
from anabranch.protocol.messages.internal.describe_metrics import DescribeMetricsRequest, DescribeMetricsResponse

_HELP: Final = b"# HELP "
_NAME: Final = re.compile(rb'\{"(?:[^"\\]|\\.)*"|[^{\s]+\{?')
"""Beginning of a sample: the name, and the brace of its labels. A name of a client's own may be in quotes behind it."""


class MetricsOfNode:
    """Answers other nodes with this node's metrics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ages = GroupAges(node)

    async def describe(self, request: DescribeMetricsRequest) -> DescribeMetricsResponse:
        """Return the metrics."""
        found = await scrape(self._node, request.accept, self._ages)
        self._ages.look_up()
        return DescribeMetricsResponse(body=await asyncio.to_thread(zlib.compress, found.body))


async def merged(own: Exposition, node_id: int, siblings: Mapping[int, DescribeMetricsResponse]) -> Exposition:
    """Return the metrics of a node with those of others: in the same format, each family once."""
    return Exposition(own.content_type, await asyncio.to_thread(_merged, own.body, node_id, siblings))


def _merged(own: bytes, node_id: int, siblings: Mapping[int, DescribeMetricsResponse]) -> bytes:
    headers: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    bodies = {node_id: own} | {each: zlib.decompress(answer.body) for each, answer in siblings.items()}
    for each, body in bodies.items():
        label, family, is_new = b'node="%d"' % each, b"", False
        for line in body.removesuffix(END).splitlines():
            if line.startswith(_HELP):
                family = line.split(b" ", 3)[2]
                is_new = family not in headers
            if line.startswith(b"#"):
                if is_new:
                    headers.setdefault(family, []).append(line)
            else:
                samples.setdefault(family, []).append(_labelled(line, label))
    lines = [line for family, header in headers.items() for line in (*header, *samples.get(family, ()))]
    return b"\n".join([*lines, END if own.endswith(END) else b""])


def _labelled(line: bytes, label: bytes) -> bytes:
    """Return a sample with one label more."""
    found = _NAME.match(line)
    assert found is not None, line
    name, rest = found[0], line[found.end() :]
    if name.startswith(b"{"):
        return name + b"," + label + rest
    if name.endswith(b"{"):
        return name + label + (b"" if rest.startswith(b"}") else b",") + rest
    return name + b"{" + label + b"}" + rest
