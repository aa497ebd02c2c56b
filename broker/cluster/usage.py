"""Use of this node, as far as it is paid for: traffic by rack and with other nodes, and calls to object stores."""

from collections.abc import Sequence
from typing import Final

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.traffic import RackTraffic
from anabranch.protocol.messages.internal.describe_usage import (
    DescribeUsageResponse,
    LinkUsage,
    RackUsage,
    StoreUsage,
    StreamUsage,
)
from anabranch.s3stream.store.interface import CallCounts

STREAMS_MAX: Final = 30_000
"""Streams of all racks in a response, which has less than 1 MiB: each rack's with the most traffic."""


def describe_usage(node: Node) -> DescribeUsageResponse:
    """Return the counters as they are now."""
    racks = node.ports.clients.traffic.racks.values()
    is_on_disk = node.serving.settings.wal.kind != "object"
    return DescribeUsageResponse(
        epoch=node.serving.members.own.epoch,
        up_ms=node.upkeep.meter.up_ms,
        racks=[RackUsage(rack=each.rack, streams=_streams(each, STREAMS_MAX // len(racks))) for each in racks],
        links=[
            LinkUsage(node_id=key, exchanged_bytes=size) for key, size in sorted(node.serving.links.exchanged.items())
        ],
        stores=[_calls(name, store.calls) for name, store in sorted(node.stores.items())],
        log_disk_bytes=node.wal.capacity_bytes if is_on_disk else 0,
    )


def _streams(traffic: RackTraffic, streams_max: int) -> Sequence[StreamUsage]:
    found = [
        StreamUsage(
            stream_id=stream_id,
            received_bytes=traffic.received.get(stream_id, 0),
            sent_bytes=traffic.sent.get(stream_id, 0),
        )
        for stream_id in traffic.received.keys() | traffic.sent.keys()
    ]
    return sorted(found, key=lambda each: -(each.received_bytes + each.sent_bytes))[:streams_max]


def _calls(store: str, calls: CallCounts) -> StoreUsage:
    writes = calls.put + calls.multipart + calls.part + calls.part_copy + calls.list
    return StoreUsage(store=store, writes=writes, reads=calls.get + calls.head)
