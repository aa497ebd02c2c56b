"""Requests of the admin port about streams that were stopped at recovery, because a record in the middle was missing.

GET  /storage/stopped             each with why, and what of it is only in the log
POST /storage/discard?stream=ID   give those records up, for good: the partition goes on from its committed end
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from broker.admin.topics import Answer, Query
from broker.node import Node
from s3stream.errors import StorageError


class StorageRoutes:
    """Answers for one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.routes: Mapping[str, tuple[str, Callable[[Query], Awaitable[Answer]]]] = {
            "/storage/stopped": ("GET", self._stopped),
            "/storage/discard": ("POST", self._discard),
        }

    async def _stopped(self, _: Query) -> Answer:
        return 200, "application/json", json.dumps(self._rows(), indent=2) + "\n"

    async def _discard(self, query: Query) -> Answer:
        wanted = query.get("stream", "")
        rows = [row for row in self._rows() if str(row["stream"]) == wanted]
        if not rows:
            return 404, "text/plain", f"no stopped stream {wanted!r}: see /storage/stopped\n"
        try:
            await self._node.storage.discard_recovered(int(wanted))
        except StorageError as error:
            return 500, "text/plain", f"{error}\n"
        return 200, "application/json", json.dumps(rows[0], indent=2) + "\n"

    def _rows(self) -> list[dict[str, Any]]:
        names = {
            partition.stream.stream_id: f"{topic.name}-{index}"
            for topic in self._node.topics
            for index, partition in enumerate(topic.partitions)
            if partition is not None
        }
        return [
            {
                "stream": stream_id,
                "partition": names.get(stream_id),
                "reason": str(stopped.error),
                "start_offset": stopped.start_offset,
                "end_offset": stopped.end_offset,
                "records": stopped.record_count,
                "bytes": stopped.size_bytes,
            }
            for stream_id, stopped in sorted(self._node.storage.stopped_streams.items())
        ]
