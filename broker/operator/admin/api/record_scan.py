"""Reads records of a topic for display: some bytes at a time, from the leaders of the partitions, with a filter.

A scan reads a limited number of bytes for a limited time, piece by piece, and moves a position in each partition, to
its end or to its beginning. Batches are decompressed, filtered and converted to text one at a time in a separate
thread, so that neither the event loop nor the partitions wait, and memory is bounded.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from anabranch.broker.api.handlers.local import LocalRefusal, User
from anabranch.broker.kafka.partitions.record_work import RecordWork, RecordWorkStopped
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.decoder import SchemaDecoder
from anabranch.broker.operator.admin.api.endpoints import Model, check
from anabranch.broker.operator.admin.api.payloads import (
    PAYLOAD_BYTES_MAX,
    Decode,
    Payload,
    PayloadDecoder,
    show_plainly,
)
from anabranch.broker.operator.admin.api.record_filter import RecordFilter
from anabranch.broker.operator.admin.api.schemas import Schemas
from anabranch.protocol.batch import HEADER_BYTES, BatchHeader, iterate_batches
from anabranch.protocol.compression import decompress
from anabranch.protocol.errors import KafkaError, ProtocolError
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.records import Record as StoredRecord
from anabranch.protocol.records import header_name_bytes, records_of
from anabranch.s3stream.errors import StorageError

FETCH_BYTES: Final = 256 << 10
"""Bytes of one read from one partition; a larger batch comes whole."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of the offsets that are read at a time backwards; a larger batch comes whole."""
GROWTH_MAX: Final = 4
"""Factor by which a piece may have more offsets than the one after it."""
JOB_BYTES: Final = 4 << 20
"""Bytes of records, decompressed, after which the thread takes turns with other readers."""
RECORD_COST_BYTES: Final = 128
"""Bytes that a record that is decoded counts for in addition to its own."""
FETCH_BYTES_MIN: Final = 4 << 10
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

T = TypeVar("T")


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


class _Room(NamedTuple):
    """Remaining room in an answer."""

    records: int
    shown_bytes: int

    @property
    def is_left(self) -> bool:
        return self.records > 0 and self.shown_bytes > 0


class Batch(NamedTuple):
    """A batch of a partition."""

    header: BatchHeader
    data: memoryview


class _Piece(NamedTuple):
    """Offsets that are read at a time backwards, and their size in bytes, which is expected until they are read."""

    offsets: int
    size: int

    def next(self) -> "_Piece":
        """Return the piece before this one: half as long as one may be, as far as the sizes of records are alike."""
        factor = min(GROWTH_MAX, PIECE_BYTES / 2 / max(self.size, 1))
        return _Piece(max(1, int(self.offsets * factor)), int(self.size * factor))

    def bytes_of(self, offsets: int) -> int:
        """Return the bytes to ask for in order to read some offsets of it."""
        return max(FETCH_BYTES_MIN, min(FETCH_BYTES, self.size * offsets * 5 // (4 * self.offsets)))


class _Selected(NamedTuple):
    """Records of some batches that pass."""

    rows: list[RecordRow]
    shown_bytes: int
    scanned: int
    batches: int
    """Number of batches that were looked into, the last one perhaps in part."""
    position: int
    """Position of the scan after them."""
    errors: list[str]


class RecordReader:
    """Reads batches from the leaders, and looks into them in a thread."""

    def __init__(self, calls: Calls, schemas: Schemas) -> None:
        self.schemas = schemas
        self._calls = calls
        self._work = RecordWork(DECOMPRESSED_BYTES_MAX)
        self._decoder = SchemaDecoder(PAYLOAD_BYTES_MAX)

    def close(self) -> None:
        """Look into no more batches."""
        self._work.close()
        self._decoder.close()

    def decoder(self, decode: Decode, decode_key: Decode) -> PayloadDecoder:
        """Return what shows the payloads of one scan."""
        return PayloadDecoder(decode, decode_key, self.schemas.current(), self._decoder)

    async def fetch(self, topic: str, index: int, offset: int, bytes_max: int, user: User) -> Any:
        """Return the data of one partition from an offset on. Raises KafkaError, and as `Calls.call`."""
        partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=bytes_max,
            topics=[FetchTopic(topic=topic, partitions=[partition])],
        )
        answer = await self._calls.call(self._calls.needed_leader(topic, index), request, user)
        check(answer.error_code)
        (data,) = answer.responses[0].partitions
        check(data.error_code)
        return data

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run work in the thread, one job at a time."""
        return await self._work.run_in_thread(work)


class RecordScan:
    """One pass over partitions of a topic, from their positions to their limits, which it moves the positions to.

    Backwards, the position of a partition is the offset after the next record to look at, and a piece of offsets before
    it is read at a time. Pieces are as long as a piece may have bytes, by the sizes of those before.
    """

    def __init__(
        self,
        reader: RecordReader,
        topic: str,
        position: dict[int, int],
        limits: Mapping[int, int],
        record_filter: RecordFilter,
        decoder: PayloadDecoder,
        user: User,
        *,
        backward: bool = False,
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._position = position
        self._limits = limits
        self._filter = record_filter
        self._decoder = decoder
        self._user = user
        self._backward = backward
        self._shown_bytes = 0
        self._deadline_s = 0.0
        self._pieces: dict[int, _Piece] = {}
        """The next piece of each partition, backwards."""
        self.failed: set[int] = set()
        """Partitions that could not be read."""
        self.rows: list[RecordRow] = []
        self.errors: list[str] = []
        self.scanned = 0
        self.read_bytes = 0
        """Bytes of batches that were read."""

    @property
    def unread(self) -> set[int]:
        """Partitions with more records, as far as they can be read."""
        return {index for index in self._limits if self._left(index)} - self.failed

    @property
    def remaining(self) -> int:
        """Number of offsets that were not looked at."""
        return sum(map(self._left, self._limits))

    async def run(self, records_max: int, bytes_max: int) -> None:
        """Read until there are enough records, or all is read, or a limit is reached."""
        loop = asyncio.get_running_loop()
        self._deadline_s = loop.time() + SCAN_S
        read = self._read_backward if self._backward else self._read_forward
        while unread := sorted(self.unread):
            for done, index in enumerate(unread):
                room = _Room(records_max - len(self.rows), SHOWN_BYTES_MAX - self._shown_bytes)
                if not room.is_left or self.read_bytes >= bytes_max or self._is_late():
                    return
                await read(index, room._replace(records=-(-room.records // (len(unread) - done))))

    def _left(self, index: int) -> int:
        distance = self._limits[index] - self._position[index]
        return max(0, -distance if self._backward else distance)

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() > self._deadline_s

    def _fail(self, index: int, reason: object) -> None:
        self.failed.add(index)
        self.errors.append(f"partition {index}, at offset {self._position[index]}: {reason}")

    async def _read_forward(self, index: int, room: _Room) -> None:
        """Read the piece at the position of a partition."""
        batches, damage = await self._fetch(index, self._position[index])
        if await self._look_into(index, batches, room) and damage is not None:
            self._fail(index, damage)

    async def _read_backward(self, index: int, room: _Room) -> None:
        """Read the piece before the position of a partition; a piece that is too long is given up for a shorter one."""
        end = self._position[index]
        piece = self._pieces.get(index, _Piece(room.records, FETCH_BYTES))
        begin = max(self._limits[index], end - piece.offsets)
        at, size, batches = begin, 0, list[Batch]()
        while at < end and (size <= PIECE_BYTES or not batches):
            found, damage = await self._fetch(index, at, piece.bytes_of(end - at))
            if damage is not None:
                self._fail(index, damage)
            if index in self.failed or (not found and self._is_late()):
                return
            size += sum(each.header.size_bytes for each in found)
            batches += [each for each in found if each.header.base_offset < end]
            at = found[-1].header.next_offset if found else at
        self._pieces[index] = _Piece(min(at, end) - begin, size).next()
        if at >= end and await self._look_into(index, batches[::-1], room):
            self._position[index] = min(self._position[index], begin)

    async def _fetch(
        self, index: int, offset: int, bytes_max: int = FETCH_BYTES
    ) -> tuple[list[Batch], ProtocolError | None]:
        """Return batches from an offset on, and what is wrong with the one after them."""
        try:
            data = await self._reader.fetch(self._topic, index, offset, bytes_max, self._user)
        except (KafkaError, StorageError, PeerUnavailable, LocalRefusal, TimeoutError) as error:
            self._fail(index, str(error) or "its leader has not answered in time")
            return [], None
        batches, damage = batches_of(data)
        self.read_bytes += sum(each.header.size_bytes for each in batches)
        return batches, damage

    async def _look_into(self, index: int, batches: Sequence[Batch], room: _Room) -> bool:
        """Take records of batches, and move the position past them. Return whether there was room for all that pass."""
        reader, decoder = self._reader, self._decoder
        while batches:
            select = partial(self._select, index, batches, self._position[index], room)
            try:
                found = await reader.run_in_thread(select)
                if decoder.unknown:
                    await reader.schemas.load(decoder.unknown)
                    found = await reader.run_in_thread(select)
            except RecordWorkStopped as error:
                self._fail(index, error)
                return False
            self.rows += found.rows
            self.errors += found.errors
            self.scanned += found.scanned
            self._shown_bytes += found.shown_bytes
            self._position[index] = found.position
            room = _Room(room.records - len(found.rows), room.shown_bytes - found.shown_bytes)
            batches = batches[found.batches :]
            if not room.is_left:
                return False
        return True

    def _select(self, index: int, batches: Sequence[Batch], position: int, room: _Room) -> _Selected:
        """Look into batches, in the thread, as far as there is room, and for a limited time."""
        self._decoder.unknown.clear()
        rows: list[RecordRow] = []
        errors: list[str] = []
        shown_bytes = scanned = cost = done = 0
        for header, batch in batches:
            if cost > JOB_BYTES or not _Room(room.records - len(rows), room.shown_bytes - shown_bytes).is_left:
                break
            done += 1
            span = self._span(index, header, position)
            if not span:
                continue
            position = span.start if self._backward else span.stop
            if header.is_control:
                continue
            try:
                body = body_of(header, batch)
                cost += len(body)
                if not self._filter.may_pass(header, body):
                    scanned += min(header.record_count, len(span))
                    continue
                cost += header.record_count * RECORD_COST_BYTES
                records = [each for each in records_of(header, body) if each.offset in span]
            except (ProtocolError, KafkaError) as error:
                errors.append(f"partition {index}, offsets {header.base_offset} to {header.last_offset}: {error}")
                continue
            for record in reversed(records) if self._backward else records:
                if len(rows) >= room.records or shown_bytes >= room.shown_bytes:
                    position = record.offset + 1 if self._backward else record.offset
                    break
                scanned += 1
                if self._filter.passes(record, self._decoder):
                    row = _row(index, header, record, self._decoder)
                    payloads = [row.key, row.value, *(each.value for each in row.headers)]
                    shown_bytes += sum(len(each.text) for each in payloads if each is not None)
                    rows.append(row)
        return _Selected(rows, shown_bytes, scanned, done, position, errors)

    def _span(self, index: int, header: BatchHeader, position: int) -> range:
        """Return the offsets of a batch that are still to be looked at."""
        low, high = position, self._limits[index]
        if self._backward:
            low, high = high, low
        return range(max(low, header.base_offset), min(high, header.next_offset))


def batches_of(data: Any) -> tuple[list[Batch], ProtocolError | None]:
    """Return the batches of a partition's data, and what is wrong with the one after them."""
    pieces: Iterable[Any] = data.records if isinstance(data.records, list) else [data.records or b""]
    batches: list[Batch] = []
    try:
        for piece in pieces:
            batches += (Batch(header, batch) for header, batch in iterate_batches(piece))
    except ProtocolError as error:
        return batches, error
    return batches, None


def body_of(header: BatchHeader, batch: memoryview) -> bytes:
    """Return the decompressed records of a batch. Raises ProtocolError, KafkaError."""
    if header.record_count > BATCH_RECORDS_MAX:
        raise ProtocolError(f"a batch of {header.record_count} records is not shown")
    data = batch[HEADER_BYTES : header.size_bytes]
    return bytes(decompress(header.compression, data, bytes_max=DECOMPRESSED_BYTES_MAX))


def _row(index: int, header: BatchHeader, record: StoredRecord, decoder: PayloadDecoder) -> RecordRow:
    size = len(record.key or b"") + len(record.value or b"")
    return RecordRow(
        partition=index,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        timestamp_type="append" if header.is_log_append_time else "create",
        size=size + sum(len(header_name_bytes(name)) + len(value or b"") for name, value in record.headers),
        key=decoder.show_key(record.key),
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
