"""Reads records of a topic for display: some bytes at a time, from the leaders of the partitions, with a filter.

A scan reads a limited number of bytes for a limited time, batch by batch, and moves a position in each partition.
Batches are decompressed, filtered and converted to text one at a time in a separate thread, so that neither the event
loop nor the partitions wait, and memory is bounded.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from anabranch.broker.api.handlers.list_offsets import LATEST
from anabranch.broker.api.handlers.local import LocalRefusal, User
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.decoder import SchemaDecoder
from anabranch.broker.operator.admin.api.endpoints import Model, check
from anabranch.broker.operator.admin.api.offsets import Offsets
from anabranch.broker.operator.admin.api.payloads import (
    PAYLOAD_BYTES_MAX,
    Decode,
    Payload,
    PayloadDecoder,
    show_plainly,
)
from anabranch.broker.operator.admin.api.schemas import Schemas
from anabranch.protocol.batch import BatchHeader, iterate_batches
from anabranch.protocol.errors import KafkaError, ProtocolError
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.records import Record as StoredRecord
from anabranch.protocol.records import decode_records, header_name_bytes
from anabranch.s3stream.errors import StorageError

FETCH_BYTES: Final = 256 << 10
"""Bytes of one read from one partition; a larger batch comes whole."""
FETCH_WAIT_MS: Final = 500
"""Time limit of a read; data in objects may take longer, and is read again then."""
SCAN_S: Final = 8.0
SHOWN_BYTES_MAX: Final = 4 << 20
"""Bytes of keys, values and headers in one answer, as far as they are shown."""
BATCH_RECORDS_MAX: Final = 200_000
"""Records of a batch that is looked into."""
DECOMPRESSED_BYTES_MAX: Final = 16 << 20
"""Bytes of records that one batch may have, decompressed."""
HEADERS_MAX: Final = 100
"""Headers of a record that are shown."""


class HeaderRow(Model):
    """A header of a record."""

    name: str
    value: Payload | None


class RecordRow(Model):
    """A record."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: Literal["create", "append"]
    size: int
    """Bytes of key, value and headers."""
    key: Payload | None
    value: Payload | None
    headers: list[HeaderRow]
    more_headers: bool
    """True if there are more headers than are shown."""
    transactional: bool
    producer_id: int | None


class RecordFilter(NamedTuple):
    """Condition of records that are shown, and the format to show them in."""

    contains: bytes
    """Bytes that key, value, or name or value of a header contains."""
    key: bytes | None
    """The whole key; None: any."""
    decode: Decode

    def passes(self, record: StoredRecord) -> bool:
        """Return whether a record is shown."""
        if self.key is not None and record.key != self.key:
            return False
        if not self.contains:
            return True
        headers = (part for name, value in record.headers for part in (header_name_bytes(name), value))
        parts = [record.key, record.value, *headers]
        return any(self.contains in part for part in parts if part is not None)


class _Room(NamedTuple):
    """Remaining room in an answer."""

    records: int
    shown_bytes: int


class _Selected(NamedTuple):
    """Records of a batch that pass."""

    rows: list[RecordRow]
    shown_bytes: int
    scanned: int
    next_offset: int
    """Offset of the first record that was not looked at; past the batch if all were."""


class RecordReader:
    """Reads batches from the leaders, and looks into them in a thread."""

    def __init__(self, calls: Calls, offsets: Offsets, schemas: Schemas) -> None:
        self.offsets = offsets
        self.schemas = schemas
        self._calls = calls
        self._work = RecordWork(DECOMPRESSED_BYTES_MAX)
        self._decoder = SchemaDecoder(PAYLOAD_BYTES_MAX)

    def close(self) -> None:
        """Look into no more batches."""
        self._work.close()
        self._decoder.close()

    def decoder(self, decode: Decode) -> PayloadDecoder:
        """Return what shows the payloads of one scan."""
        return PayloadDecoder(decode, self.schemas.current(), self._decoder)

    async def fetch(self, topic: str, index: int, offset: int, user: User) -> Any:
        """Return the data of one partition from an offset on. Raises KafkaError, and as `Calls.call`."""
        partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic=topic, partitions=[partition])],
        )
        answer = await self._calls.call(self._calls.needed_leader(topic, index), request, user)
        check(answer.error_code)
        (data,) = answer.responses[0].partitions
        check(data.error_code)
        return data

    async def run_in_thread(self, work: Callable[[], _Selected]) -> _Selected:
        """Run work in the thread, one batch at a time."""
        return await self._work.run_in_thread(work)


class RecordScan:
    """One pass over partitions of a topic, from their positions on, which it moves."""

    def __init__(
        self, reader: RecordReader, topic: str, position: dict[int, int], record_filter: RecordFilter, user: User
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._position = position
        self._filter = record_filter
        self._user = user
        self._shown_bytes = 0
        self._decoder = reader.decoder(record_filter.decode)
        self.failed: set[int] = set()
        """Partitions that could not be read."""
        self.rows: list[RecordRow] = []
        self.errors: list[str] = []
        self.scanned = 0
        self.unread: set[int] = set()
        """Partitions with more records."""

    async def run(self, records_max: int, bytes_max: int) -> None:
        """Read until there are enough records, or all is read, or a limit is reached."""
        loop = asyncio.get_running_loop()
        deadline_s, bytes_left = loop.time() + SCAN_S, bytes_max
        ends = await self._ends()
        while True:
            position = self._position
            self.unread = {index for index, end in ends.items() if position[index] < end} - self.failed
            for done, index in enumerate(sorted(self.unread)):
                room = _Room(records_max - len(self.rows), SHOWN_BYTES_MAX - self._shown_bytes)
                if room.records <= 0 or room.shown_bytes <= 0 or bytes_left <= 0 or loop.time() > deadline_s:
                    return
                share = -(-room.records // (len(self.unread) - done))
                bytes_left -= await self._read(index, room._replace(records=share))
            if not self.unread:
                return

    async def _ends(self) -> Mapping[int, int]:
        found = await self._reader.offsets.at(((self._topic, index) for index in self._position), LATEST, self._user)
        for index in self._position:
            if (self._topic, index) not in found.offsets:
                self._fail(index, "its leader has not answered")
        return {index: end for (_, index), end in found.offsets.items()}

    def _fail(self, index: int, reason: object) -> None:
        self.failed.add(index)
        self.errors.append(f"partition {index}, at offset {self._position[index]}: {reason}")

    async def _read(self, index: int, room: _Room) -> int:
        """Read one piece of a partition; return its bytes."""
        try:
            data = await self._reader.fetch(self._topic, index, self._position[index], self._user)
        except (KafkaError, StorageError, PeerUnavailable, LocalRefusal, TimeoutError) as error:
            self._fail(index, str(error) or "its leader has not answered in time")
            return 0
        size = 0
        records: Any = data.records
        pieces: Iterable[Any] = records if isinstance(records, list) else [records or b""]
        try:
            for piece in pieces:
                for header, batch in iterate_batches(piece):
                    size += header.size_bytes
                    room = await self._take(index, header, batch, room)
                    if room.records <= 0 or room.shown_bytes <= 0:
                        return size
        except ProtocolError as error:
            self._fail(index, error)
        return size

    async def _take(self, index: int, header: BatchHeader, batch: memoryview, room: _Room) -> _Room:
        """Take records of a batch, and advance past them; return the remaining room."""
        position = self._position
        if header.is_control or header.next_offset <= position[index]:
            position[index] = max(position[index], header.next_offset)
            return room
        begin, record_filter, reader, decoder = position[index], self._filter, self._reader, self._decoder

        def select() -> _Selected:
            decoder.unknown.clear()
            return _select(index, header, batch, begin, record_filter, decoder, room)

        try:
            found = await reader.run_in_thread(select)
            if decoder.unknown:
                await reader.schemas.load(decoder.unknown)
                found = await reader.run_in_thread(select)
        except (ProtocolError, KafkaError) as error:
            self.errors.append(f"partition {index}, offsets {header.base_offset} to {header.last_offset}: {error}")
            position[index] = header.next_offset
            return room
        self.rows += found.rows
        self.scanned += found.scanned
        self._shown_bytes += found.shown_bytes
        position[index] = found.next_offset
        return _Room(room.records - len(found.rows), room.shown_bytes - found.shown_bytes)


def _select(
    index: int,
    header: BatchHeader,
    batch: memoryview,
    begin: int,
    record_filter: RecordFilter,
    decoder: PayloadDecoder,
    room: _Room,
) -> _Selected:
    """Return the records of a batch that pass, as far as there is room. Raises ProtocolError, KafkaError."""
    rows: list[RecordRow] = []
    shown_bytes = scanned = 0
    if header.record_count > BATCH_RECORDS_MAX:
        raise ProtocolError(f"a batch of {header.record_count} records is not shown")
    for record in decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
        if record.offset < begin:
            continue
        if len(rows) >= room.records or shown_bytes >= room.shown_bytes:
            return _Selected(rows, shown_bytes, scanned, record.offset)
        scanned += 1
        if record_filter.passes(record):
            row = _row(index, header, record, decoder)
            payloads = [row.key, row.value, *(each.value for each in row.headers)]
            shown_bytes += sum(len(each.text) for each in payloads if each is not None)
            rows.append(row)
    return _Selected(rows, shown_bytes, scanned, max(begin, header.next_offset))


def _row(index: int, header: BatchHeader, record: StoredRecord, decoder: PayloadDecoder) -> RecordRow:
    size = len(record.key or b"") + len(record.value or b"")
    return RecordRow(
        partition=index,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        timestamp_type="append" if header.is_log_append_time else "create",
        size=size + sum(len(header_name_bytes(name)) + len(value or b"") for name, value in record.headers),
        key=decoder.show(record.key),
        value=decoder.show(record.value),
        headers=[
            HeaderRow(
                name=header_name_bytes(name).decode(errors="replace"),
                value=None if value is None else show_plainly(value, "auto"),
            )
            for name, value in record.headers[:HEADERS_MAX]
        ],
        more_headers=len(record.headers) > HEADERS_MAX,
        transactional=header.is_transactional,
        producer_id=header.producer_id if header.producer_id >= 0 else None,
    )
