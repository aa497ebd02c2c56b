"""Quick checks of a batch's records: lengths, and the shape of a compressed frame.

Apache Kafka decompresses each batch that a client sends, and refuses one that its consumers could not read. Here the
head of the frame, and the lengths of its blocks, are compared with what clients write. Only a frame of another shape
has to be decompressed to be accepted.
"""

from struct import Struct
from struct import error as struct_error
from typing import Final

from anabranch.protocol import lz4_frame
from anabranch.protocol.batch import RECORD_BYTES_MIN
from anabranch.protocol.compression import XERIAL_HEADER_BYTES, XERIAL_MAGIC, Compression
from anabranch.protocol.errors import InvalidRecord, MalformedMessage
from anabranch.protocol.varint import read_uvarint
from anabranch.protocol.wire import Buffer

BLOCKS_MAX: Final = 1024
"""Blocks of a frame that are looked at: 32 MiB of snappy, more of other codecs."""
WINDOW_BYTES_MAX: Final = 1 << 27
"""Largest window of a zstd frame that readers accept."""

_FIRST_ZIGZAG_MIN: Final = RECORD_BYTES_MIN - 1 << 1
"""Smallest length that a record begins with."""
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00"
_GZIP_BYTES_MIN: Final = 18
_GZIP_RATIO_MAX: Final = 1032
_SNAPPY_RATIO_MAX: Final = 64
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_UNREADABLE: Final = 0x0B
"""Bits of a frame's descriptor for a dictionary, and the reserved one."""
_ZSTD_SINGLE_SEGMENT: Final = 0x20
_ZSTD_CHECKSUM: Final = 0x04
_ZSTD_WINDOW_MAX: Final = 0x88
"""Descriptor of a window of `WINDOW_BYTES_MAX`."""
_ZSTD_RUN, _ZSTD_RESERVED = 1, 3

_UINT32_LE: Final = Struct("<I")
_INT32: Final = Struct(">i")


def records_fit(view: Buffer, start: int, size: int, count: int) -> bool:
    """Return whether `size` bytes of records, which begin at `start`, can be `count` of them. Takes constant time.

    The first record must end inside (a single one at the end) and leave room for the others.
    """
    if size < count * RECORD_BYTES_MIN:
        return False
    zigzag, end = view[start], 1
    if zigzag > 127:
        second = view[start + 1]
        if second < 128:
            zigzag, end = zigzag & 127 | second << 7, 2
        else:
            try:
                zigzag, position = read_uvarint(view, start)
            except (IndexError, MalformedMessage):
                return False
            end = position - start
    end += zigzag >> 1
    if zigzag & 1 or zigzag < _FIRST_ZIGZAG_MIN:
        return False
    return end == size if count == 1 else size - end >= (count - 1) * RECORD_BYTES_MIN


def has_plain_frame(view: Buffer, start: int, codec: int, count: int) -> bool:
    """Return whether the frame of `count` records that begins at `start` has the shape that clients give it.

    Its blocks may be damaged nevertheless. A frame of another shape may be valid: decompress it to find out.
    """
    try:
        if codec == Compression.LZ4:
            return _is_plain_lz4(view, start)
        if codec == Compression.ZSTD:
            return _is_plain_zstd(view, start)
        shape = _is_plain_snappy if codec == Compression.SNAPPY else _is_plain_gzip
        return shape(view, start, count)
    except (IndexError, struct_error, MalformedMessage, InvalidRecord):
        return False


def _is_plain_gzip(view: Buffer, start: int, count: int) -> bool:
    size = len(view) - start
    if view[start : start + 4] != _GZIP_HEAD or size < _GZIP_BYTES_MIN:
        return False
    (length,) = _UINT32_LE.unpack_from(view, len(view) - 4)
    return bool(count * RECORD_BYTES_MIN <= length <= size * _GZIP_RATIO_MAX)


def _is_plain_snappy(view: Buffer, start: int, count: int) -> bool:
    if view[start : start + 8] == XERIAL_MAGIC:
        return _is_plain_xerial(view, start + XERIAL_HEADER_BYTES)
    length, position = read_uvarint(view, start)
    tag = view[position]
    if tag & 3 or length > (len(view) - start) * _SNAPPY_RATIO_MAX:
        return False  # a block begins with a literal
    literal = max(0, (tag >> 2) - 59)  # bytes of its length, if it is not in the tag
    return records_fit(view, position + 1 + literal, length, count)


def _is_plain_xerial(view: Buffer, position: int) -> bool:
    for _ in range(BLOCKS_MAX):
        (size,) = _INT32.unpack_from(view, position)
        position += 4 + size
        if size <= 0 or position >= len(view):
            return bool(size > 0 and position == len(view))
    return False


def _is_plain_lz4(view: Buffer, start: int) -> bool:
    flags, position = lz4_frame.parse_head(view, start)
    end = lz4_frame.find_end(view, position, flags, blocks_max=BLOCKS_MAX)
    checksum = 4 if flags & lz4_frame.CONTENT_CHECKSUM else 0
    return end is not None and end > position + 4 and end + checksum == len(view)


def _is_plain_zstd(view: Buffer, start: int) -> bool:
    descriptor, position = view[start + 4], start + 5
    if view[start : start + 4] != _ZSTD_MAGIC or descriptor & _ZSTD_UNREADABLE:
        return False
    if not descriptor & _ZSTD_SINGLE_SEGMENT:
        if view[position] > _ZSTD_WINDOW_MAX:
            return False
        position += 1
        position += (0, 2, 4, 8)[descriptor >> 6]
    else:
        end = position + (1, 2, 4, 8)[descriptor >> 6]
        if int.from_bytes(view[position:end], "little") > WINDOW_BYTES_MAX:
            return False
        position = end
    for _ in range(BLOCKS_MAX):
        head = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        kind, size = head >> 1 & 3, head >> 3
        position += 3 + (1 if kind == _ZSTD_RUN else size)
        if head & 1 or kind == _ZSTD_RESERVED:
            checksum = 4 if descriptor & _ZSTD_CHECKSUM else 0
            return kind != _ZSTD_RESERVED and position + checksum == len(view)
    return False
