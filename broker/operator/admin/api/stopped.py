"""Streams that recovery stopped because a record was missing in their middle, and how they continue."""

from http import HTTPStatus

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model


class StoppedStream(Model):
    """A stopped stream, with its records that are only in the log."""

    stream: int
    partition: str | None
    """Topic and index."""
    reason: str
    start_offset: int
    end_offset: int
    records: int
    bytes: int


class StoppedStreams(Model):
    """Stopped streams of a node."""

    streams: list[StoppedStream]


class StoppedEndpoints:
    """Endpoints of stopped streams."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        path = "/storage/stopped"
        discard = "Discard the records of a stopped stream that are only in the log, for good."
        self.endpoints = [
            Endpoint("GET", path, "Stopped streams of this node.", self._list, StoppedStreams),
            Endpoint("POST", f"{path}/{{stream}}/discard", discard, self._discard, StoppedStream, is_limited=False),
        ]

    async def _list(self, _: Call) -> StoppedStreams:
        return StoppedStreams(streams=self._rows())

    async def _discard(self, call: Call) -> StoppedStream:
        wanted = call.path["stream"]
        for row in self._rows():
            if str(row.stream) == wanted:
                await self._serving.storage.discard_recovered(row.stream)
                return row
        raise ApiError(HTTPStatus.NOT_FOUND, f"stream {wanted} is not stopped")

    def _rows(self) -> list[StoppedStream]:
        names = {
            partition.stream.stream_id: f"{topic.name}-{index}"
            for topic in self._serving.topics
            for index, partition in enumerate(topic.partitions)
            if partition is not None
        }
        return [
            StoppedStream(
                stream=stream_id,
                partition=names.get(stream_id),
                reason=str(stopped.error),
                start_offset=stopped.start_offset,
                end_offset=stopped.end_offset,
                records=stopped.record_count,
                bytes=stopped.size_bytes,
            )
            for stream_id, stopped in sorted(self._serving.storage.stopped_streams.items())
        ]
