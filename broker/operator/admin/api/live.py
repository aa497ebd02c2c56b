"""Activity of the node: a stream with a line of counters each second, for pages that draw them."""

import asyncio
from typing import Final

from aiohttp import web

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api.compaction import Compaction, compaction_state
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.broker.operator.admin.api.storage import Uploads, Wal, store_calls, upload_state, wal_state
from anabranch.broker.operator.admin.api.streams import LineStream, Watchers
from anabranch.protocol.registry import APIS

WATCHERS_MAX: Final = 8
INTERVAL_S: Final = 1.0


class Counters(Model):
    """Counters since the node's start, and gauges."""

    at_ms: int
    requests: dict[str, int]
    """Requests of Kafka's protocol, by API."""
    bytes_in: int
    """Bytes received from Kafka clients."""
    bytes_out: int
    """Bytes of records sent to consumers, and read through the API."""
    connections: int
    wal: Wal
    log_cache_bytes: int
    uncommitted_bytes: int
    block_cache_bytes: int
    uploads: Uploads
    compaction: Compaction
    store_calls: dict[str, int]
    writable: bool


class LiveEndpoints:
    """Endpoint of the stream."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watchers = Watchers(WATCHERS_MAX, "streams of counters")
        self.endpoints = [
            Endpoint("GET", "/live", "Counters, a line a second.", self._live, None, stream=Counters, is_limited=False),
        ]

    async def _live(self, call: Call) -> web.StreamResponse:
        with self._watchers.enter():
            stream = LineStream(call)
            await stream.begin()
            while not self._node.stopping and await stream.may_go_on():
                await stream.send(self._counters())
                await asyncio.sleep(INTERVAL_S)
            return await stream.end()

    def _counters(self) -> Counters:
        node, serving, server = self._node, self._node.serving, self._node.ports.clients
        storage = serving.storage
        return Counters(
            at_ms=serving.now_ms(),
            requests={
                APIS[key].name if key in APIS else str(key): count for key, count in sorted(serving.requests.items())
            },
            bytes_in=server.bytes_in,
            bytes_out=serving.fetched_bytes,
            connections=len(server.connections),
            wal=wal_state(node),
            log_cache_bytes=storage.log_cache_bytes,
            uncommitted_bytes=storage.uncommitted_bytes,
            block_cache_bytes=storage.block_cache_bytes,
            uploads=upload_state(node),
            compaction=compaction_state(node),
            store_calls=store_calls(node),
            writable=storage.writable,
        )
