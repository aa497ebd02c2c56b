"""A client that sends exactly the requests or bytes that a test gives it, and decodes the responses."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from anabranch.protocol.api import Api
from anabranch.protocol.codec import decode_exact, encode
from anabranch.protocol.header import response_header
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from anabranch.protocol.registry import APIS, INTERNAL_APIS

TIMEOUT_S = 20
API_OF: Final[Mapping[type, Api]] = {api.request: api for apis in (APIS, INTERNAL_APIS) for api in apis.values()}
"""The API of each type of request, those between nodes included."""


def request_frame(api_key: int, version: int, body: bytes, *, correlation_id: int = 1, client_id: str = "raw") -> bytes:
    """A whole frame, size included, with the header that the version has."""
    api = APIS.get(api_key)
    name = client_id.encode()
    head = struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name
    if api is not None and api.is_flexible(version):
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def decode_response(request_type: type, version: int, frame: bytes) -> tuple[int, Any]:
    """Correlation id and message of the response to a request of this type, from a frame without its size."""
    api = API_OF[request_type]
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    header = response_header(api.key, version, correlation_id)
    assert frame.startswith(header)
    return correlation_id, decode_exact(api.response, frame, version, len(header))


def batch_of(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **fields: Any) -> bytearray:
    """A batch of keyless records, one ms apart."""
    records = [Record(key=None, value=value, timestamp_ms=timestamp_ms + at) for at, value in enumerate(values)]
    return build_batch(records, **fields)


class RawClient:
    """One connection. Requests may be pipelined: `send` returns the correlation id, `receive` the next response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = "raw") -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def send(self, message: object, version: int | None = None) -> int:
        """Send a request, by default in its newest version; returns its correlation id."""
        self._correlation_id += 1
        api = API_OF[type(message)]
        version = api.max_version if version is None else version
        body = encode(message, version)
        self.send_bytes(
            request_frame(api.key, version, body, correlation_id=self._correlation_id, client_id=self._client_id)
        )
        return self._correlation_id

    async def receive_bytes(self) -> bytes:
        """The next frame without its size. Raises IncompleteReadError when the node has closed."""
        async with asyncio.timeout(TIMEOUT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    async def receive(self, request_type: type, version: int | None = None) -> tuple[int, Any]:
        """Correlation id and message of the next response, as that to a request of this type."""
        version = API_OF[request_type].max_version if version is None else version
        return decode_response(request_type, version, await self.receive_bytes())

    async def call(self, message: object, version: int | None = None) -> Any:
        """Send a request, by default in its newest version, and return the response."""
        correlation_id = self.send(message, version)
        answered, response = await self.receive(type(message), version)
        assert answered == correlation_id
        return response

    async def produce(
        self,
        topic: str,
        records: Sequence[bytes | bytearray | None],
        *,
        version: int = 9,
        acks: int = -1,
        partition: int = 0,
    ) -> ProduceResponse:
        """Produce each of `records` as a partition's data, in one request."""
        response: ProduceResponse = await self.call(
            produce_request(topic, records, acks=acks, partition=partition), version
        )
        return response

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset of a group without members."""
        response = await self.call(offset_commit(group, topic, partition, offset), 8)
        assert response.topics[0].partitions[0].error_code == 0, response

    async def closed(self) -> bool:
        """Return True if the node closes the connection without sending another byte."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def abort(self) -> None:
        """Abort the connection and discard data that is not sent yet."""
        self._writer.transport.abort()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def offset_commit(group: str, topic: str, partition: int, offset: int) -> OffsetCommitRequest:
    """A request that commits an offset of a group without members."""
    wanted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[wanted])]
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)


def produce_request(
    topic: str, records: Sequence[bytes | bytearray | None], *, acks: int = -1, partition: int = 0
) -> ProduceRequest:
    """A request with each of `records` as data of the partition."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=partition, records=None if data is None else bytes(data))
                    for data in records
                ],
            )
        ],
    )


@asynccontextmanager
async def raw_client(
    bootstrap: str, client_id: str = "raw", *, context: ssl.SSLContext | None = None
) -> AsyncIterator[RawClient]:
    """Connect, with TLS if there is a context, and close at the end."""
    client = await connect(bootstrap, client_id, context=context)
    try:
        yield client
    finally:
        await client.close()


async def connect(bootstrap: str, client_id: str = "raw", *, context: ssl.SSLContext | None = None) -> RawClient:
    """Connect, with TLS if there is a context; the caller closes or aborts."""
    host, port = bootstrap.rsplit(":", 1)
    return RawClient(*await asyncio.open_connection(host, int(port), ssl=context), client_id)
