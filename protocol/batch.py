"""Record batches of format v2: the header, its checks, and the fields that a broker changes in place.

On the way from the socket to the disk, the header of a batch is parsed, its checksum verified, and two fields are
overwritten: base offset and partition leader epoch, which precede the checksummed part for that reason. Of the records,
this module reads the length of the first at most; `protocol.records` decodes them.

    0  base offset            int64      21  attributes         int16     43  producer id     int64
    8  length after it        int32      23  last offset delta  int32     51  producer epoch  int16
    12 partition leader epoch int32      27  base timestamp     int64     53  base sequence   int32
    16 magic                  int8       35  max timestamp      int64     57  record count    int32
    17 CRC32C of 21..end      uint32                                      61  records

Formats v0 and v1 have their magic at the same place and are refused, as Apache Kafka 4 does.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from anabranch.protocol.compression import Compression, compression_of
from anabranch.protocol.errors import CorruptBatch, InvalidRecord, UnsupportedMagic
from anabranch.protocol.wire import Buffer

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LOG_OVERHEAD_BYTES: Final = 12
MAGIC: Final = 2
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
CHECKED_POSITION: Final = 21
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, lengths of key and value, count of headers: at least a byte each."""
_SEQUENCE_MODULUS: Final = 1 << 31
_BASE_OFFSET: Final = Struct(">q")
_LEADER_EPOCH: Final = Struct(">i")
_LEADER_EPOCH_POSITION: Final = 12
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP: Final = Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35


class BatchHeader(NamedTuple):
    """Header of a batch, 61 bytes. `length` counts the bytes after it; `size_bytes` is the whole batch."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record. Compaction keeps it even if it removes that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The producer's sequence number of the last record. Sequences wrap at 2^31."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_MODULUS

    @property
    def compression(self) -> Compression:
        """The codec of the records."""
        return compression_of(self.attributes)

    @property
    def has_untimed(self) -> bool:
        """True if all records, or the first, have no timestamp. The header does not show it for others."""
        return self.max_timestamp < 0 or (self.base_timestamp < 0 and not self.is_log_append_time)

    @property
    def is_log_append_time(self) -> bool:
        """True if the timestamp of all records is `max_timestamp`, which the broker set."""
        return self.attributes & TIMESTAMP_TYPE_MASK != 0

    @property
    def is_transactional(self) -> bool:
        """True if the batch is part of a transaction."""
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        """True if the batch holds a control record, such as a transaction marker, and no data."""
        return self.attributes & CONTROL_MASK != 0


def parse_batch(view: Buffer, offset: int = 0) -> BatchHeader:
    """Parse the header of the batch at `offset`, all of which must be in `view`.

    Raises UnsupportedMagic for formats v0 and v1, CorruptBatch for bytes that cannot be a batch. Does not verify the
    checksum: see `check_crc`.
    """
    left = len(view) - offset
    if left < HEADER_BYTES:
        _refuse_short(view, offset, left)
    header = BatchHeader._make(HEADER.unpack_from(view, offset))
    if header.magic != MAGIC:
        _refuse_magic(header.magic, offset)
    if not HEADER_BYTES - LOG_OVERHEAD_BYTES <= header.length <= left - LOG_OVERHEAD_BYTES:
        raise CorruptBatch(f"record batch at byte {offset}: length {header.length}, found {left - LOG_OVERHEAD_BYTES}")
    return header


def _refuse_short(view: Buffer, offset: int, left: int) -> None:
    if left > MAGIC_POSITION and view[offset + MAGIC_POSITION] in {0, 1}:
        _refuse_magic(view[offset + MAGIC_POSITION], offset)
    raise CorruptBatch(f"record batch at byte {offset}: expected at least {HEADER_BYTES} bytes, found {left}")


def _refuse_magic(magic: int, offset: int) -> None:
    if magic in {0, 1}:
        raise UnsupportedMagic(f"record batch at byte {offset}: magic {magic}, only magic {MAGIC} is supported")
    raise CorruptBatch(f"record batch at byte {offset}: magic {magic}, expected {MAGIC}")


def check_crc(view: Buffer, header: BatchHeader, offset: int = 0) -> None:
    """Raise CorruptBatch unless the batch at `offset` matches the checksum in its header."""
    found = crc32c(memoryview(view)[offset + CHECKED_POSITION : offset + header.size_bytes])
    if found != header.crc:
        raise CorruptBatch(f"record batch at byte {offset}: expected CRC32C {header.crc:#010x}, found {found:#010x}")


def check_client_batch(header: BatchHeader) -> None:
    """Raise InvalidRecord if a client must not send this batch: Apache Kafka's checks before an append."""
    offsets = header.last_offset_delta + 1
    if offsets <= 0:
        raise InvalidRecord(f"Batch has an invalid offset range: [{header.base_offset}, {header.last_offset}]")
    if header.record_count <= 0:
        raise InvalidRecord(f"Invalid reported count for record batch: {header.record_count}")
    if offsets != header.record_count:
        raise InvalidRecord(
            f"Inconsistent batch offset range [{header.base_offset}, {header.last_offset}] "
            f"and count of records {header.record_count}"
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(
            f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
        )
    if header.is_control:
        raise InvalidRecord("Clients are not allowed to write control records")


def patch(view: bytearray | memoryview, base_offset: int, leader_epoch: int, offset: int = 0) -> None:
    """Set base offset and partition leader epoch in place. The checksum does not cover them."""
    _BASE_OFFSET.pack_into(view, offset, base_offset)
    _LEADER_EPOCH.pack_into(view, offset + _LEADER_EPOCH_POSITION, leader_epoch)


def stamp_append_time(view: bytearray | memoryview, timestamp_ms: int, offset: int = 0) -> None:
    """Set the broker's time, for `message.timestamp.type=LogAppendTime`, and update the checksum."""
    header = parse_batch(view, offset)
    _ATTRIBUTES.pack_into(view, offset + CHECKED_POSITION, header.attributes | TIMESTAMP_TYPE_MASK)
    _MAX_TIMESTAMP.pack_into(view, offset + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    write_crc(view, offset)


def write_crc(view: bytearray | memoryview, offset: int = 0) -> None:
    """Write the checksum of the batch at `offset`."""
    header = parse_batch(view, offset)
    checked = memoryview(view)[offset + CHECKED_POSITION : offset + header.size_bytes]
    _CRC.pack_into(view, offset + CRC_POSITION, crc32c(checked))


def iterate_batches(view: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a records field, each with its bytes. Raises like `parse_batch` at a bad one."""
    view = memoryview(view)
    position = 0
    while position < len(view):
        header = parse_batch(view, position)
        end = position + header.size_bytes
        yield header, view[position:end]
        position = end
