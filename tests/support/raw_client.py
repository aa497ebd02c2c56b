"""A client that sends exactly what a test wants, byte for byte if need be, and decodes what comes back."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from protocol.codec import decode, encode
from protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.records import Record, build_batch
from protocol.registry import APIS

TIMEOUT_S = 20


def request_frame(api_key: int, version: int, body: bytes, *, correlation_id: int = 1, client: str = "raw") -> bytes:
    """A whole frame, size included, with the header that the version has."""
    api = APIS.get(api_key)
    flexible = api is not None and api.flexible_since is not None and version >= api.flexible_since
    name = client.encode()
    head = struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def batch_of(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **fields: Any) -> bytearray:
    """A batch of keyless records, one ms apart."""
    records = [Record(key=None, value=value, timestamp_ms=timestamp_ms + at) for at, value in enumerate(values)]
    return build_batch(records, **fields)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    def send_bytes(self, data: bytes) -> None:
        """Send as it is."""
        self._writer.write(data)

    def send(self, message: object, version: int) -> int:
        """Send a request; returns its correlation id."""
        self._correlation_id += 1
        key = next(api.key for api in APIS.values() if api.request is type(message))
        body = encode(message, version)
        self.send_bytes(request_frame(key, version, body, correlation_id=self._correlation_id))
        return self._correlation_id

    async def receive_bytes(self) -> bytes:
        """The next frame without its size. Raises IncompleteReadError when the node has closed."""
        async with asyncio.timeout(TIMEOUT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    async def receive(self, request_type: type, version: int) -> tuple[int, Any]:
        """The next response, as that to a request of this type: its correlation id and message."""
        data = await self.receive_bytes()
        api = next(api for api in APIS.values() if api.request is request_type)
        flexible = api.flexible_since is not None and version >= api.flexible_since and api.name != "ApiVersions"
        message, end = decode(api.response, data, version, 5 if flexible else 4)
        assert end == len(data), "nothing follows the message"
        return int.from_bytes(data[:4], "big"), message

    async def call(self, message: object, version: int) -> Any:
        """Send and wait for the answer."""
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

    async def closed(self) -> bool:
        """Whether the node closes the connection without another byte."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def abort(self) -> None:
        """Go away without sending what is not sent yet."""
        self._writer.transport.abort()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def close(self) -> None:
        """Close."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def produce_request(
    topic: str, records: Sequence[bytes | bytearray | None], *, acks: int = -1, partition: int = 0
) -> ProduceRequest:
    """One request with each of `records` as data of the partition."""
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
async def raw_client(bootstrap: str) -> AsyncIterator[RawClient]:
    """Connect."""
    client = await connect(bootstrap)
    try:
        yield client
    finally:
        await client.close()


async def connect(bootstrap: str) -> RawClient:
    """Connect; the caller closes or aborts."""
    host, port = bootstrap.rsplit(":", 1)
    return RawClient(*await asyncio.open_connection(host, int(port)))
