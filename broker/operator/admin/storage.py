"""Requests of the admin port on streams that recovery stopped because a record was missing in their middle.

GET  /storage/stopped             list them, with the reason and the records that are only in the log
POST /storage/discard?stream=ID   discard those records for good: the partition continues from its committed end
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.responses import Query, Response, Route, json_response, text_response
from anabranch.s3stream.errors import StorageError


class StorageRoutes:
    """Handlers of requests on stopped streams."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.routes: Mapping[str, Route] = {
            "/storage/stopped": ("GET", self._stopped),
            "/storage/discard": ("POST", self._discard),
        }

    async def _stopped(self, _: Query) -> Response:
        return json_response(self._rows())

    async def _discard(self, query: Query) -> Response:
        wanted = query.get("stream", "")
        rows = [row for row in self._rows() if str(row["stream"]) == wanted]
        if not rows:
            return text_response(HTTPStatus.NOT_FOUND, f"no stopped stream {wanted!r}: see /storage/stopped")
        try:
            await self._node.storage.discard_recovered(int(wanted))
        except StorageError as error:
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return json_response(rows[0])

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
