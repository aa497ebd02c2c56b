"""Byte layout of the log: the only code that packs and unpacks headers and records. `FORMAT.md` describes them.

Bytes read from a device are untrusted until their CRC is verified: decoding returns None or a reason, and never raises.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from anabranch.wal.interface import Buffer

PAGE_BYTES: Final = 4096
HEADER_COPIES: Final = 2
RING_POSITION: Final = HEADER_COPIES * PAGE_BYTES
VERSION: Final = 2
HEADER_MAGIC: Final = b"ANABRWAL"
CLUSTER_BYTES_MAX: Final = 64
CATALOG_ID_BYTES: Final = 16
CATALOG_UNKNOWN: Final = bytes(CATALOG_ID_BYTES)
"""Catalog id of a log without a catalog yet, such as every log of version 1."""
GAPS_MAX: Final = 16

RECORD_HEADER_BYTES: Final = 24
PADDING_BYTES_MIN: Final = RECORD_HEADER_BYTES + 8
BODY_BYTES_MAX: Final = (1 << 32) - 1

_HEADER: Final = Struct("<8sIIQQQQQqQQqqq64s")
_STATE: Final = Struct("<qQ")
_GAP: Final = Struct("<QQ")
_GAPS_AT: Final = _HEADER.size + CATALOG_ID_BYTES + _STATE.size
_CRC_AT: Final = {1: _HEADER.size, VERSION: _GAPS_AT + GAPS_MAX * _GAP.size}
"""Position of the CRC in a header, by version: the fields that version 2 added precede it."""
_VERSION: Final = Struct("<8sI")
_CRC: Final = Struct("<I")
_RECORD: Final = Struct("<IIQI")
_RECORD_FULL: Final = Struct("<IIQII")
_DURABLE: Final = Struct("<Q")
_SKIP: Final = Struct("<QQ")
_LOG_ID: Final = Struct("<Q")

RECORD_START_BYTES: Final = _RECORD.size
pack_record_start = _RECORD.pack
pack_into_record = Struct("<20sI").pack_into
"""The two steps of packing a record's header, for the append path: the first 20 bytes, then those with their CRC."""
unpack_record = _RECORD_FULL.unpack_from
"""Unpacks magic, body bytes, body offset, body CRC and header CRC without checks, for the recovery loop."""


class Magic(IntEnum):
    """First four bytes of a record, as a little-endian integer."""

    RECORD = int.from_bytes(b"ABWR", "little")
    PADDING = int.from_bytes(b"ABWP", "little")
    SKIP = int.from_bytes(b"ABWS", "little")


RECORD_MAGIC: Final = int(Magic.RECORD)
_BODY_BYTES_MIN: Final = {
    int(Magic.RECORD): 0,
    int(Magic.PADDING): PADDING_BYTES_MIN - RECORD_HEADER_BYTES,
    int(Magic.SKIP): PAGE_BYTES - RECORD_HEADER_BYTES,
}


class Shutdown(IntEnum):
    """State in which the last owner left the log."""

    RUNNING = 0
    GRACEFUL = 1


class LogGap(NamedTuple):
    """Offsets from `start` to `end` that are not part of the log, whatever their content. Not always page-aligned."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """Content of a copy of the header. All offsets are logical."""

    sequence: int
    log_id: int
    capacity_bytes: int
    base_offset: int
    head_offset: int
    trim_offset: int
    durable_offset: int
    window_bytes: int
    node_id: int
    node_epoch: int
    last_write_ms: int
    cluster: str
    shutdown: Shutdown
    catalog_id: bytes = CATALOG_UNKNOWN
    """Identity of the catalog that contains the records' streams."""
    state_epoch: int = -1
    state_sequence: int = 0
    """Node epoch and sequence of the header that first carried this state. A claim keeps both."""
    gaps: tuple[LogGap, ...] = ()
    """Gaps at or past the head, in order."""

    @property
    def state_version(self) -> tuple[int, int]:
        """Order of states: any state of a later owner is newer than those of an earlier one."""
        return self.state_epoch, self.state_sequence

    @property
    def ring_bytes(self) -> int:
        """Bytes between the headers and the capacity."""
        return self.capacity_bytes - RING_POSITION

    @property
    def position(self) -> int:
        """Position that this header is written to: the two copies alternate."""
        return self.sequence % HEADER_COPIES * PAGE_BYTES

    def position_of(self, offset: int) -> int:
        """Return the position of a logical offset on the device."""
        return RING_POSITION + (offset - self.base_offset) % self.ring_bytes

    def segments(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return positions and lengths of the bytes [offset, offset + length): two if they cross the ring's end."""
        capacity_bytes = self.capacity_bytes
        position = RING_POSITION + (offset - self.base_offset) % (capacity_bytes - RING_POSITION)
        first = capacity_bytes - position
        if length <= first:
            return [(position, length)]
        return [(position, first), (RING_POSITION, length - first)]


def page_up(offset: int) -> int:
    """Round up to a page boundary."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES


def record_salt(log_id: int) -> int:
    """Return the CRC state that the header CRC of each record of a log starts from."""
    return crc32c(_LOG_ID.pack(log_id))


def encode_header(header: Header) -> bytes:
    """Encode a header into one page."""
    cluster = header.cluster.encode()
    assert len(cluster) <= CLUSTER_BYTES_MAX, f"cluster name longer than {CLUSTER_BYTES_MAX} bytes: {header.cluster}"
    assert len(header.catalog_id) == CATALOG_ID_BYTES, f"catalog id of {len(header.catalog_id)} bytes"
    assert len(header.gaps) <= GAPS_MAX, f"{len(header.gaps)} gaps, at most {GAPS_MAX} fit"
    fields = _HEADER.pack(
        HEADER_MAGIC,
        VERSION,
        header.shutdown,
        header.sequence,
        header.log_id,
        header.capacity_bytes,
        header.base_offset,
        header.head_offset,
        header.trim_offset,
        header.durable_offset,
        header.window_bytes,
        header.node_id,
        header.node_epoch,
        header.last_write_ms,
        cluster,
    )
    fields += header.catalog_id + _STATE.pack(*header.state_version)
    fields += b"".join(_GAP.pack(*gap) for gap in header.gaps).ljust(GAPS_MAX * _GAP.size, b"\0")
    return (fields + _CRC.pack(crc32c(fields))).ljust(PAGE_BYTES, b"\0")


def decode_header(page: Buffer) -> Header | str:
    """Decode one copy; return the reason if it is not a valid header."""
    if len(page) < PAGE_BYTES:
        return f"{len(page)} bytes, expected {PAGE_BYTES}"
    magic, version = _VERSION.unpack_from(page)
    if magic != HEADER_MAGIC:
        return "blank" if not any(page) else f"magic {magic!r}, expected {HEADER_MAGIC!r}"
    crc_at = _CRC_AT.get(version)
    if crc_at is None:
        return f"format version {version}, this program supports {' and '.join(map(str, _CRC_AT))}"
    found = crc32c(page[:crc_at])
    (expected,) = _CRC.unpack_from(page, crc_at)
    if expected != found:
        return f"header CRC {found:#010x}, expected {expected:#010x}"
    _, _, shutdown, *numbers, cluster = _HEADER.unpack_from(page)
    sequence, log_id, capacity, base, head, trim, durable, window, node_id, node_epoch, last_write_ms = numbers
    if capacity < RING_POSITION + PAGE_BYTES or capacity % PAGE_BYTES:
        return f"capacity {capacity} bytes, expected whole pages"
    if base % PAGE_BYTES or head % PAGE_BYTES or durable % PAGE_BYTES:
        return f"base offset {base}, head offset {head}, durable offset {durable}, expected page boundaries"
    if not head <= durable <= head + capacity - RING_POSITION:
        return f"durable offset {durable}, expected at most a ring of {capacity - RING_POSITION} bytes past {head}"
    header = Header(
        sequence=sequence,
        log_id=log_id,
        capacity_bytes=capacity,
        base_offset=base,
        head_offset=head,
        trim_offset=trim,
        durable_offset=durable,
        window_bytes=window,
        node_id=node_id,
        node_epoch=node_epoch,
        last_write_ms=last_write_ms,
        cluster=cluster.rstrip(b"\0").decode(errors="replace"),
        shutdown=Shutdown.GRACEFUL if shutdown == Shutdown.GRACEFUL else Shutdown.RUNNING,
        state_epoch=node_epoch,
        state_sequence=sequence,
    )
    return header if version == 1 else _with_version_2(header, page)


def _with_version_2(header: Header, page: Buffer) -> Header | str:
    """Return `header` with the fields that version 2 added, or the reason if they are not valid."""
    epoch, sequence = _STATE.unpack_from(page, _HEADER.size + CATALOG_ID_BYTES)
    content = bytes(page[_GAPS_AT : _CRC_AT[VERSION]])
    gaps: tuple[LogGap, ...] = ()
    if any(content):
        gaps = tuple(gap for gap in map(LogGap._make, _GAP.iter_unpack(content)) if gap.start < gap.end)
    for gap in gaps:
        if gap.end > header.head_offset + header.ring_bytes:
            return f"gap from {gap.start} to {gap.end}, expected an end at most a ring past {header.head_offset}"
    return replace(
        header,
        catalog_id=bytes(page[_HEADER.size : _HEADER.size + CATALOG_ID_BYTES]),
        state_epoch=epoch,
        state_sequence=sequence,
        gaps=gaps,
    )


def decode_copies(copies: Buffer) -> tuple[Header | str, ...]:
    """Decode the first two pages of a device: each copy, or why it is invalid."""
    view = memoryview(copies)
    return tuple(decode_header(view[at : at + PAGE_BYTES]) for at in range(0, RING_POSITION, PAGE_BYTES))


def newest_header(copies: Buffer) -> Header | None:
    """Return the header in force from the first two pages of a device, None if neither copy is valid.

    It is the newest state, with the highest owner and sequence of both copies. During a claim, or after a late header
    write of a former owner, these are in the other copy.
    """
    valid = [copy for copy in decode_copies(copies) if isinstance(copy, Header)]
    if not valid:
        return None
    newest = max(valid, key=lambda header: (header.state_version, header.node_epoch, header.sequence))
    same_log = [header for header in valid if header.log_id == newest.log_id]
    owner = max(same_log, key=lambda header: (header.node_epoch, header.sequence))
    sequence = max(header.sequence for header in same_log)
    return replace(newest, sequence=sequence, node_epoch=owner.node_epoch, catalog_id=owner.catalog_id)


def next_header(header: Header) -> Header:
    """Return the header that its owner writes after `header`: a newer state, to be changed by the caller."""
    sequence = header.sequence + 1
    return replace(header, sequence=sequence, state_epoch=header.node_epoch, state_sequence=sequence)


class RecordHeader(NamedTuple):
    """A record header with a valid CRC, magic and offset. The body is not checked."""

    magic: int
    body_bytes: int
    body_crc: int


def decode_record_header(page: Buffer, at: int, offset: int, salt: int) -> RecordHeader | None:
    """Decode the 24 bytes at index `at`, expected at logical `offset`; return None if they are not a valid header."""
    magic, body_bytes, body_offset, body_crc, header_crc = _RECORD_FULL.unpack_from(page, at)
    if body_offset != offset + RECORD_HEADER_BYTES or magic not in _BODY_BYTES_MIN:
        return None
    if crc32c(page[at : at + _RECORD.size], salt) != header_crc or body_bytes < _BODY_BYTES_MIN[magic]:
        return None
    return RecordHeader(magic, body_bytes, body_crc)


def explain_record_header(page: Buffer, at: int, offset: int, salt: int) -> str:
    """Return, for messages, why there is no valid record header. Call it after `decode_record_header` returned None."""
    magic, _, body_offset, _, header_crc = _RECORD_FULL.unpack_from(page, at)
    if not any(page[at : at + RECORD_HEADER_BYTES]):
        return "no record: zeros"
    if magic not in _BODY_BYTES_MIN:
        return f"no record: magic {magic:#010x}, expected {RECORD_MAGIC:#010x}"
    if body_offset != offset + RECORD_HEADER_BYTES:
        return f"record of body offset {body_offset}, expected {offset + RECORD_HEADER_BYTES}"
    return f"record header CRC {crc32c(page[at : at + _RECORD.size], salt):#010x}, expected {header_crc:#010x}"


def encode_record_into(target: memoryview, at: int, offset: int, magic: Magic, salt: int, body_bytes: int) -> None:
    """Write the header of the record at index `at`, logical `offset`. The body is already in place after it."""
    body = at + RECORD_HEADER_BYTES
    start = _RECORD.pack(magic, body_bytes, offset + RECORD_HEADER_BYTES, crc32c(target[body : body + body_bytes]))
    pack_into_record(target, at, start, crc32c(start, salt))


def encode_padding_into(target: memoryview, at: int, offset: int, durable_offset: int, salt: int) -> int:
    """Write the padding record that ends a block at index `at`, logical `offset`; return the block's length."""
    end = page_up(at + PADDING_BYTES_MIN)
    body = at + RECORD_HEADER_BYTES
    target[body:end] = bytes(end - body)
    _DURABLE.pack_into(target, body, durable_offset)
    encode_record_into(target, at, offset, Magic.PADDING, salt, end - body)
    return end


def decode_durable_offset(body: Buffer) -> int:
    """Return the durable offset in the body of a padding record, at least 8 bytes."""
    durable_offset: int = _DURABLE.unpack_from(body)[0]
    return durable_offset


def encode_skip_into(target: memoryview, offset: int, from_offset: int, to_offset: int, salt: int) -> None:
    """Write the page of a skip record at logical `offset`."""
    target[:PAGE_BYTES] = bytes(PAGE_BYTES)
    _SKIP.pack_into(target, RECORD_HEADER_BYTES, from_offset, to_offset)
    encode_record_into(target, 0, offset, Magic.SKIP, salt, PAGE_BYTES - RECORD_HEADER_BYTES)


def decode_skip(body: Buffer) -> tuple[int, int]:
    """Return the offset where the log ended before a skip record, and the offset where it continues."""
    from_offset, to_offset = _SKIP.unpack_from(body)
    return from_offset, to_offset


def wal_id_of(log_id: int) -> str:
    """Return the id by which the catalog knows a log, given the id in its header."""
    return f"{log_id:016x}"
