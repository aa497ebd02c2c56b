"""The compression codecs of record batches, with a limit on the decompressed size.

It reads what Apache Kafka's consumer reads: gzip; snappy either raw (librdkafka) or in the framing of the Java library
xerial; lz4 frames of independent blocks; zstd frames without a dictionary. It writes gzip, snappy in xerial's framing
(all readers accept it), lz4 and zstd.

Decompression writes into a private mapping of the size of the limit, so a small batch that would decompress to more
fails at the limit, and pages beyond the real size are never touched. The GIL is released during decompression.
"""

import mmap
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import cramjam

from anabranch.protocol import lz4_frame
from anabranch.protocol.errors import DecompressedTooLarge, ErrorCode, InvalidRecord, KafkaError
from anabranch.protocol.wire import Buffer

DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024

_INT32: Final = Struct(">i")
_ROOM_IS_FULL: Final = "failed to write whole buffer"
"""Text of the codecs' error when the output is larger than the buffer."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
XERIAL_HEADER_BYTES: Final = len(_XERIAL_HEADER)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_GZIP_HEAD: Final = b"\x1f\x8b\x08"
_GZIP_PIECE_BYTES: Final = 256 * 1024


class Compression(IntEnum):
    """The codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compression_of(attributes: int) -> Compression:
    """Return the codec that a batch's attributes name. Raises KafkaError (UNSUPPORTED_COMPRESSION_TYPE)."""
    code = attributes & 7
    if code > Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression type id: {code}")
    return Compression(code)


@contextmanager
def decompressed(
    compression: Compression, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[memoryview]:
    """Yield a view of a batch's decompressed records, valid inside the `with` block only.

    Raises InvalidRecord for bytes that Kafka's consumers could not decompress, DecompressedTooLarge past `bytes_max`.
    """
    if compression is Compression.NONE:
        with memoryview(data) as view:
            yield view
        return
    # The view is released before the mapping is closed: a raised error may still refer to it.
    with mmap.mmap(-1, max(1, bytes_max), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        whole = memoryview(room)
        try:
            size = _decompress_into(compression, data, whole[:bytes_max])
            with whole[:size] as view:
                yield view
        finally:
            whole.release()


def decompress(compression: Compression, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Decompress a batch's records. Raises like `decompressed`."""
    if compression is Compression.NONE:
        return data
    with decompressed(compression, data, bytes_max=bytes_max) as view:
        return bytes(view)


def _decompress_into(compression: Compression, data: Buffer, room: memoryview) -> int:
    with room, memoryview(data) as view:
        try:
            return int(_DECOMPRESSORS[compression](view, room))
        except (cramjam.DecompressionError, zlib.error, struct_error, IndexError) as error:
            what = f"{compression.name.lower()} records of {len(view)} bytes"
            if _ROOM_IS_FULL in str(error):
                raise DecompressedTooLarge(f"{what} decompress to more than {len(room)} bytes") from None
            raise InvalidRecord(f"{what} cannot be decompressed: {error}") from error


def compress(compression: Compression, data: Buffer, *, level: int | None = None) -> bytes:
    """Compress a batch's records. `level` is on the codec's own scale; snappy has no levels."""
    if compression is Compression.NONE:
        return bytes(data)
    if compression is Compression.SNAPPY:
        return _compress_snappy(data)
    if compression is Compression.LZ4:
        return _compress_lz4(data, level)
    module: Any = cramjam.gzip if compression is Compression.GZIP else cramjam.zstd
    return bytes(module.compress(data, level))


def _blocks(data: Buffer, size: int) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[i : i + size] for i in range(0, len(view), size))


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    settings = {} if level is None else {"level": level}
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False, **settings)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_snappy(data: Buffer) -> bytes:
    pieces: list[Any] = [_XERIAL_HEADER]
    for block in _blocks(data, _XERIAL_BLOCK_BYTES):
        packed = cramjam.snappy.compress_raw(block)
        pieces += (_INT32.pack(len(packed)), packed)
    return b"".join(pieces)


def _decompress_gzip(data: memoryview, room: memoryview) -> int:
    """Decompress all members. Bytes behind the last are ignored."""
    position = end = 0
    while position == 0 or bytes(data[position : position + 3]) == _GZIP_HEAD:
        member = zlib.decompressobj(zlib.MAX_WBITS + 16)
        while not member.eof:
            piece: Buffer = member.unconsumed_tail
            if not piece:
                piece = data[position : position + _GZIP_PIECE_BYTES]
                position += len(piece)
            if not piece:
                raise InvalidRecord("gzip records are cut short")
            output = member.decompress(piece, _GZIP_PIECE_BYTES)
            if len(output) > len(room) - end:
                raise DecompressedTooLarge(f"gzip records decompress to more than {len(room)} bytes")
            room[end : end + len(output)] = output
            end += len(output)
        position -= len(member.unused_data)
    return end


def _decompress_lz4(data: memoryview, room: memoryview) -> int:
    """Decompress the first frame, without what Kafka's consumers ignore: content size, checksum, bytes behind it."""
    flags, begin = lz4_frame.parse_head(data)
    end = lz4_frame.find_end(data, begin, flags, blocks_max=len(data))
    assert end is not None, "each block has a byte"
    if flags & (lz4_frame.CONTENT_SIZE | lz4_frame.CONTENT_CHECKSUM):
        head = bytes((lz4_frame.EXPECTED_FLAGS | flags & lz4_frame.BLOCK_CHECKSUM, data[5]))
        whole = lz4_frame.MAGIC + head + bytes((lz4_frame.header_checksum(head),)) + data[begin:end]
        return int(cramjam.lz4.decompress_into(whole, room))
    return int(cramjam.lz4.decompress_into(data[:end], room))


def _decompress_zstd(data: memoryview, room: memoryview) -> int:
    return int(cramjam.zstd.decompress_into(data, room))


def _decompress_snappy(data: memoryview, room: memoryview) -> int:
    if bytes(data[:8]) != XERIAL_MAGIC:
        return _decompress_snappy_block(data, room, 0)
    position, end = XERIAL_HEADER_BYTES, 0
    while position + 4 <= len(data):
        if bytes(data[position : position + 8]) == XERIAL_MAGIC:  # streams may follow each other
            if _INT32.unpack_from(data, position + 8)[0] < 1:
                raise InvalidRecord(f"snappy stream at byte {position}: an unknown version")
            position += XERIAL_HEADER_BYTES
            continue
        size = _INT32.unpack_from(data, position)[0]
        position += 4
        if not 0 <= size <= len(data) - position:
            raise InvalidRecord(f"snappy block at byte {position}: length {size} of {len(data) - position} bytes left")
        end = _decompress_snappy_block(data[position : position + size], room, end)
        position += size
    return end


def _decompress_snappy_block(block: memoryview, room: memoryview, start: int) -> int:
    """Decompress one block to `start` of the buffer; return its end."""
    if not block:
        raise InvalidRecord("an empty snappy block")
    end = start + cramjam.snappy.decompress_raw_len(block)
    if end > len(room):
        raise DecompressedTooLarge(f"snappy records decompress to more than {len(room)} bytes")
    if end > start:
        with room[start:end] as place:
            cramjam.snappy.decompress_raw_into(block, place)
    return int(end)


_DECOMPRESSORS: Final[Mapping[Compression, Callable[[memoryview, memoryview], int]]] = {
    Compression.GZIP: _decompress_gzip,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: _decompress_lz4,
    Compression.ZSTD: _decompress_zstd,
}
