"""Keys and byte layout of the object log: the only code that packs and unpacks them. `OBJECT_FORMAT.md` describes them.

Bytes read from a store are untrusted until their CRC is verified: decoding returns a reason, and never raises.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from anabranch.wal.format import (
    CATALOG_ID_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    decode_record_header,
    explain_record_header,
)
from anabranch.wal.interface import Buffer, RecoveredRecord

MAGIC: Final = b"ANABROLG"
VERSION: Final = 1
_HEADER: Final = Struct("<8sHHI16sqqqqqqqqI")
_CRC: Final = Struct("<I")
_ENDED_BY: Final = Struct("<qq")
_SALT: Final = Struct("<16sqq")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
END_BYTES: Final = HEADER_BYTES + _ENDED_BY.size
"""Size of an object that ends a prefix, and of no other: a sweep recognizes those that it must keep in a listing."""
ROOT: Final = "wal"
_DIGITS: Final = 20


class Flags(IntFlag):
    """Kinds of objects that end a prefix."""

    NONE = 0
    FENCE = 1
    """Put by a recoverer: nothing at or past it was acked."""
    CLOSED = 2
    """Put by the prefix's own node epoch as its last object."""


class Position(NamedTuple):
    """Place of an object in a log. Positions order the objects of a node's log."""

    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class LogName:
    """The log of a node: its prefixes, one for each node epoch, are read as one log."""

    cluster: str
    node_id: int
    catalog_id: bytes
    """Identity of the catalog that contains the records' streams, 16 bytes."""

    @property
    def prefix(self) -> str:
        """Beginning of all keys of the log."""
        return f"{ROOT}/{self.cluster}/{self.node_id}/"

    def key(self, position: Position) -> str:
        """Return the key of an object. Keys sort as positions do."""
        return f"{self.prefix}{position.epoch:0{_DIGITS}}/{position.sequence:0{_DIGITS}}"

    def parse_key(self, key: str) -> Position | None:
        """Return the position that a key stands for; None for any other key."""
        parts = key.removeprefix(self.prefix).split("/")
        if len(parts) != 2 or any(len(part) != _DIGITS or not part.isascii() or not part.isdigit() for part in parts):
            return None
        position = Position(int(parts[0]), int(parts[1]))
        return position if self.key(position) == key else None

    def wal_id(self, store_name: str) -> str:
        """Return the log's id in the catalog, 16 hex digits: it stays the same in all epochs of the node."""
        text = f"{store_name}\0{self.prefix}\0{self.catalog_id.hex()}"
        return sha256(text.encode()).hexdigest()[:16]

    def record_salt(self, epoch: int) -> int:
        """Return the CRC state that the header CRC of each record of an epoch starts from."""
        return crc32c(_SALT.pack(self.catalog_id, self.node_id, epoch))


class EndedBy(NamedTuple):
    """Node that put an end, and its epoch."""

    node_id: int
    node_epoch: int


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """Header of an object. In a fence, the fields from `first_live` to `first_offset` are not used."""

    position: Position
    first_live: Position
    """First object with a record that is not trimmed, or a later place where there is none: at most `position`."""
    trim_offset: int
    """Records at this logical offset and below are trimmed; -1: none."""
    first_offset: int
    """Logical offset of the body's first byte."""
    body_bytes: int
    records: int
    flags: Flags = Flags.NONE

    @property
    def end_offset(self) -> int:
        """Logical offset where the next object begins."""
        return self.first_offset + (0 if self.flags else self.body_bytes)


def encode_header(name: LogName, header: ObjectHeader, body: Buffer) -> bytes:
    """Encode the header that precedes `body`."""
    assert len(name.catalog_id) == CATALOG_ID_BYTES, f"catalog id of {len(name.catalog_id)} bytes"
    assert header.body_bytes == len(body), f"body of {len(body)} bytes, expected {header.body_bytes}"
    assert header.first_live <= header.position, f"first live past the object: {header}"
    fields = _HEADER.pack(
        MAGIC,
        VERSION,
        header.flags,
        header.records,
        name.catalog_id,
        name.node_id,
        *header.position,
        *header.first_live,
        header.trim_offset,
        header.first_offset,
        header.body_bytes,
        crc32c(body),
    )
    return fields + _CRC.pack(crc32c(fields))


def decode_header(name: LogName, position: Position, data: Buffer) -> ObjectHeader | str:
    """Decode the header of the object at `position`; return the reason if it is not valid there."""
    if len(data) < HEADER_BYTES:
        return f"{len(data)} bytes, expected at least the {HEADER_BYTES} of a header"
    magic, version, flags, records, catalog_id, node_id, *numbers, _ = _HEADER.unpack_from(data)
    epoch, sequence, live_epoch, live_sequence, trim_offset, first_offset, body_bytes = numbers
    if magic != MAGIC:
        return f"magic {magic!r}, expected {MAGIC!r}"
    if version != VERSION:
        return f"format version {version}, this program supports {VERSION}"
    found = crc32c(data[: _HEADER.size])
    (expected,) = _CRC.unpack_from(data, _HEADER.size)
    if found != expected:
        return f"header CRC {found:#010x}, expected {expected:#010x}"
    if (node_id, epoch, sequence) != (name.node_id, *position):
        return f"an object of node {node_id}, epoch {epoch}, sequence {sequence}, expected {name.node_id}, {position}"
    if catalog_id != name.catalog_id:
        return f"an object of catalog {catalog_id.hex()}, this node's is {name.catalog_id.hex()}: check catalog.url"
    if flags not in (Flags.NONE, Flags.FENCE, Flags.CLOSED):
        return f"flags {flags}, expected {list(Flags)}"
    return ObjectHeader(
        position, Position(live_epoch, live_sequence), trim_offset, first_offset, body_bytes, records, Flags(flags)
    )


def encode_end(name: LogName, header: ObjectHeader, ended_by: EndedBy) -> bytes:
    """Encode an object that ends a prefix."""
    assert header.flags, "an end is a fence or closed"
    body = _ENDED_BY.pack(*ended_by)
    return encode_header(name, header, body) + body


def new_end(
    flags: Flags, position: Position, first_live: Position, *, trim_offset: int = -1, offset: int = 0
) -> ObjectHeader:
    """Return the header of an end at `position`."""
    return ObjectHeader(position, first_live, trim_offset, offset, _ENDED_BY.size, 0, flags)


def ended_by(data: Buffer) -> EndedBy:
    """Return who put an end, given the bytes of the whole object."""
    return EndedBy._make(_ENDED_BY.unpack_from(data, HEADER_BYTES))


def decode_body(name: LogName, header: ObjectHeader, data: memoryview) -> list[RecoveredRecord] | str:
    """Decode the records of an object, given its bytes with the header; return the reason if one is not valid."""
    body = data[HEADER_BYTES:]
    if len(body) != header.body_bytes:
        return f"a body of {len(body)} bytes, expected {header.body_bytes}"
    (expected,) = _CRC.unpack_from(data, _HEADER.size - _CRC.size)
    found = crc32c(body)
    if found != expected:
        return f"body CRC {found:#010x}, expected {expected:#010x}"
    records: list[RecoveredRecord] = []
    for record in _records(name, header, body):
        if isinstance(record, str):
            return record
        records.append(record)
    if len(records) != header.records:
        return f"{len(records)} records, expected {header.records}"
    return records


def _records(name: LogName, header: ObjectHeader, body: memoryview) -> Iterator[RecoveredRecord | str]:
    """Yield the records of a body, or the reason why the next one is not valid."""
    salt = name.record_salt(header.position.epoch)
    at = 0
    while at < len(body):
        offset = header.first_offset + at
        if at + RECORD_HEADER_BYTES > len(body):
            yield f"{len(body) - at} bytes past the last record"
            return
        record = decode_record_header(body, at, offset, salt)
        if record is None or record.magic != RECORD_MAGIC:
            yield f"at offset {offset}: {explain_record_header(body, at, offset, salt)}"
            return
        content = body[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + record.body_bytes]
        if len(content) != record.body_bytes or crc32c(content) != record.body_crc:
            yield f"at offset {offset}: a record of {record.body_bytes} bytes that is not whole"
            return
        yield RecoveredRecord(offset, content)
        at += RECORD_HEADER_BYTES + record.body_bytes
