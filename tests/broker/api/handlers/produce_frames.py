"""Frames of Produce requests for the native lane and Python: mostly such as clients send, the others changed somewhere.

They are assembled from batches that are built once, so that millions of them can be tried.
"""

import random
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

from anabranch.protocol.batch import CHECKED_POSITION, CRC_POSITION, HEADER_BYTES
from anabranch.protocol.compression import Compression
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.records import Record, build_batch
from anabranch.protocol.varint import uvarint
from tests.support.frames import FAMILIES
from tests.support.produce_pair import PARTITIONS, TOPICS, frame_of

VERSIONS: Final = range(3, 14)
FLEXIBLE_SINCE: Final = 9
TOPIC_IDS_SINCE: Final = 13
FIELDS: Final = {
    name: (at, Struct(form), bits)
    for name, at, form, bits in (
        ("base_offset", 0, ">q", 64),
        ("length", 8, ">i", 32),
        ("leader_epoch", 12, ">i", 32),
        ("magic", 16, ">b", 8),
        ("crc", CRC_POSITION, ">i", 32),
        ("attributes", CHECKED_POSITION, ">h", 16),
        ("last_offset_delta", 23, ">i", 32),
        ("base_timestamp", 27, ">q", 64),
        ("max_timestamp", 35, ">q", 64),
        ("producer_id", 43, ">q", 64),
        ("producer_epoch", 51, ">h", 16),
        ("base_sequence", 53, ">i", 32),
        ("record_count", 57, ">i", 32),
    )
}
"""Position, form and size in bits of each field of a batch's header."""
_TIMES: Final = Struct(">qq")
_PRODUCER: Final = Struct(">qhi")
_INT16, _INT32, _CRC = Struct(">h"), Struct(">i"), Struct(">I")
_REQUEST_HEADER: Final = Struct(">hhih")
_ACKS: Final = Struct(">hi")
SMALL_BYTES: Final = 4096
SENT_COUNTS: Final = (1, 1, 2, 5)
"""Records of batches that are as clients send them."""
Batch = bytes | bytearray | None
Topics = Sequence[tuple[bytes, bytes, Sequence[tuple[int, Batch]]]]
"""Name, id, and by partition the records, of each topic of a request."""


def _usual_batches() -> Sequence[tuple[int, bytes]]:
    rng = random.Random(1)
    made = []
    for codec in [Compression.NONE] * 4 + list(Compression):
        for count in SENT_COUNTS:
            for size in (0, 5, 100, 700):
                key = rng.choice([None, b"key"])
                records = [Record(key, rng.randbytes(size), rng.choice([0, 0, 7])) for _ in range(count)]
                made.append((count, bytes(build_batch(records, compression=codec))))
    return made


def _frames_of_clients() -> Sequence[tuple[int, bytes]]:
    small = [family for family in FAMILIES.values() if len(family.like) < SMALL_BYTES]
    batches = [bytes(batch) for family in small for batch in family.batches() if len(batch) < SMALL_BYTES]
    return [(FIELDS["record_count"][1].unpack_from(batch, FIELDS["record_count"][0])[0], batch) for batch in batches]


def seal(batch: bytearray) -> None:
    """Write the checksum of all bytes behind it, whatever length the batch says it has."""
    if len(batch) > HEADER_BYTES:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CHECKED_POSITION:]))


def assemble(
    topics: Topics,
    version: int,
    *,
    number: int = 1,
    client_id: bytes | None = b"raw",
    acks: int = -1,
    transactional_id: bytes | None = None,
) -> bytearray:
    """Encode a request, without the size before it, as a client with these fields would; none of them is checked."""
    is_flexible = version >= FLEXIBLE_SINCE
    out = bytearray(_REQUEST_HEADER.pack(0, version, number, -1 if client_id is None else len(client_id)))
    out += client_id or b""
    tags = b"\0" if is_flexible else b""
    out += tags
    if transactional_id is None:
        out += b"\0" if is_flexible else b"\xff\xff"
    else:
        size = len(transactional_id)
        out += uvarint(size + 1) if is_flexible else _INT16.pack(size)
        out += transactional_id
    out += _ACKS.pack(acks, 1000)
    out += uvarint(len(topics) + 1) if is_flexible else _INT32.pack(len(topics))
    for name, topic_id, partitions in topics:
        if version >= TOPIC_IDS_SINCE:
            out += topic_id
        else:
            out += uvarint(len(name) + 1) if is_flexible else _INT16.pack(len(name))
            out += name
        out += uvarint(len(partitions) + 1) if is_flexible else _INT32.pack(len(partitions))
        for index, batch in partitions:
            out += _INT32.pack(index)
            if batch is None:
                out += b"\0" if is_flexible else b"\xff\xff\xff\xff"
            else:
                out += uvarint(len(batch) + 1) if is_flexible else _INT32.pack(len(batch))
                out += batch
            out += tags
        out += tags
    out += tags
    return out


class Producers:
    """Sequence numbers of producers, as clients would choose them: mostly right."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next: dict[tuple[int, str, int], int] = {}
        self.epochs: dict[int, int] = {}

    def fields(self, place: tuple[str, int], count: int) -> tuple[int, int, int]:
        """Return a producer's id and epoch, and the sequence number of a batch with so many records."""
        rng = self.rng
        producer = rng.randrange(3)
        roll = rng.random()
        if roll < 0.02:
            self.epochs[producer] = (self.epochs.get(producer, 0) + 1) % 2**15
            self.next = {key: sequence for key, sequence in self.next.items() if key[0] != producer}
        epoch, key = self.epochs.get(producer, 0), (producer, *place)
        sequence = self.next.get(key, 0)
        if roll > 0.97:
            return producer, epoch, max(0, sequence - rng.randrange(8))
        if roll > 0.96:
            return producer, epoch, sequence + rng.randrange(1, 4)
        if roll > 0.95:
            return producer, max(0, epoch - 1), sequence
        self.next[key] = sequence + count
        return producer, epoch, sequence


class ProduceFrames:
    """Random frames, each a request without the size before it."""

    usual = _usual_batches()
    strange = _frames_of_clients()

    def __init__(self, rng: random.Random, ids: Mapping[str, bytes]) -> None:
        self.rng = rng
        self.ids = ids
        self.number = 0
        self.producers = Producers(rng)

    def frame(self, now_ms: int) -> bytes:
        """Return the next frame."""
        rng = self.rng
        self.number = (self.number + 1) % 2**31
        roll = rng.random()
        if roll < 0.6:
            return bytes(self._request(now_ms, changed=False))
        if roll < 0.605:
            return frame_of(ApiVersionsRequest(), 0, number=self.number)[4:]
        if roll < 0.9:
            return bytes(self._request(now_ms, changed=True))
        return self._damaged(self._request(now_ms, changed=rng.random() < 0.3))

    def _request(self, now_ms: int, *, changed: bool) -> bytearray:
        rng = self.rng
        wanted: dict[str, list[tuple[int, Batch]]] = {}
        topic_count = 1 if rng.random() < 0.75 else rng.randrange(2, 4)
        for _ in range(topic_count):
            name = self._topic(changed=changed)
            taken = wanted.setdefault(name, [])
            for _ in range(1 if rng.random() < 0.7 else rng.randrange(1, 4)):
                index = rng.randrange(PARTITIONS)
                if changed and rng.random() < 0.03:
                    index = rng.choice([PARTITIONS, -1, 2**31 - 1, -(2**31)])
                if (changed and rng.random() < 0.1) or all(index != at for at, _ in taken):
                    taken.append((index, self._batch((name, index), now_ms, changed=changed)))
        topics = [(name.encode(), self.ids.get(name, bytes(15) + b"x"), batches) for name, batches in wanted.items()]
        if not changed:
            acks = -1 if rng.random() < 0.7 else rng.randrange(2)
            client_id = b"raw" if rng.random() < 0.9 else rng.choice([None, b"", b"a" * 300, "ä".encode()])
            return assemble(topics, rng.choice(VERSIONS), number=self.number, acks=acks, client_id=client_id)
        if rng.random() < 0.02:
            topics = topics + topics if rng.random() < 0.7 else []
        return assemble(
            topics,
            rng.choice(VERSIONS) if rng.random() < 0.95 else rng.choice([0, 1, 2, 14, -1, 32767]),
            number=rng.choice([self.number, -1, -(2**31)]),
            acks=rng.choice([-1, 1, 1, 0]) if rng.random() < 0.95 else rng.choice([2, -2, 32767]),
            client_id=b"raw" if rng.random() < 0.9 else rng.choice([b"\xff\xfe", b"\xed\xa0\x80", b"a" * 32767]),
            transactional_id=rng.choice([b"t", b""]) if rng.random() < 0.02 else None,
        )

    def _topic(self, *, changed: bool) -> str:
        rng = self.rng
        if not changed or rng.random() < 0.5:
            return "plain" if rng.random() < 0.7 else "other"
        return rng.choice([*TOPICS, "missing", "__consumer_offsets", "", "plain\0"])

    def _batch(self, place: tuple[str, int], now_ms: int, *, changed: bool) -> Batch:
        rng = self.rng
        is_strange = changed and rng.random() < 0.2
        count, found = rng.choice(self.strange if is_strange else self.usual)
        batch = bytearray(found)
        if not is_strange:
            time_ms = now_ms
            if changed and rng.random() < 0.2:
                time_ms += rng.choice([-1000, -200_000, 1000, 5000, 3_600_001, -now_ms - 1])
            _TIMES.pack_into(batch, FIELDS["base_timestamp"][0], time_ms, time_ms + (count > 1 and rng.randrange(8)))
        if rng.random() < 0.4:
            fields = self.producers.fields(place, count) if count in SENT_COUNTS else (1, 0, 0)
            _PRODUCER.pack_into(batch, FIELDS["producer_id"][0], *fields)
        seal(batch)
        return self._changed(batch) if changed and rng.random() < 0.5 else batch

    def _changed(self, batch: bytearray) -> Batch:
        """Return a batch after one or two changes, most of which leave its checksum right."""
        rng = self.rng
        for _ in range(1 if rng.random() < 0.8 else 2):
            roll = rng.random()
            if roll < 0.45:
                at, form, bits = rng.choice(list(FIELDS.values()))
                if len(batch) < HEADER_BYTES:
                    return batch
                value = form.unpack_from(batch, at)[0] + rng.choice([-1, 1, 1, 2])
                if rng.random() < 0.4:
                    value = rng.choice([0, 1, -1, 2, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, -(2**63), -(2**31), 1 << 20])
                half = 1 << bits - 1
                form.pack_into(batch, at, (value + half) % (2 * half) - half)
            elif roll < 0.7 and batch:
                batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
            elif roll < 0.8 and len(batch) > HEADER_BYTES:
                at = rng.randrange(HEADER_BYTES, min(len(batch), HEADER_BYTES + 12))
                batch[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
            elif roll < 0.86:
                del batch[rng.randrange(len(batch) + 1) :]
            elif roll < 0.9:
                batch += rng.randbytes(rng.randrange(1, 20))
            elif roll < 0.92:
                batch += bytes(batch)
            elif roll < 0.96 and len(batch) > HEADER_BYTES:
                batch[22] |= rng.choice([0x08, 0x10, 0x20, 0x40, 0x80])
            elif roll < 0.98:
                return None
            else:
                return b""
        if rng.random() < 0.3:
            _fit(batch)
        if rng.random() < 0.8:
            seal(batch)
        return batch

    def _damaged(self, frame: bytearray) -> bytes:
        """Return a frame after one change that leaves its API: what others answer may name a port."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.5:
            frame[rng.randrange(2, min(len(frame), 90))] = rng.randrange(256)
        elif roll < 0.65:
            at = rng.randrange(2, len(frame))
            frame[at] ^= 1 << rng.randrange(8)
        elif roll < 0.8:
            del frame[rng.randrange(8, len(frame)) :]
        elif roll < 0.9:
            frame += rng.randbytes(rng.randrange(1, 9))
        else:
            at = rng.randrange(2, min(len(frame), 90))
            frame[at:at] = rng.randbytes(rng.choice([1, 2, 4]))
        return bytes(frame)


def _fit(batch: bytearray) -> None:
    """Write the length that the batch has."""
    if len(batch) > HEADER_BYTES:
        _INT32.pack_into(batch, FIELDS["length"][0], len(batch) - 12)
