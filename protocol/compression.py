"""The compression codecs of record batches, with a limit on the decompressed size.

Read: gzip; snappy either raw (librdkafka) or in the framing of the Java library xerial; lz4 frames; zstd frames.
Written: gzip, raw-in-xerial snappy (all readers accept it), lz4 frames of independent blocks (Apache Kafka's reader
refuses linked ones), zstd.

Decompression writes into a private mapping of the size of the limit, so a small batch that would decompress to more
fails at the limit, and pages beyond the real size are never touched. The GIL is released during decompression.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct
from typing import Any, Final

import cramjam

from protocol.errors import CorruptBatch, DecompressedTooLarge, ErrorCode, KafkaError
from protocol.wire import Buffer

DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024

_INT32: Final = Struct(">i")
_ROOM_IS_FULL: Final = "failed to write whole buffer"
"""Text of the codecs' error when the output is larger than the buffer."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK_BYTES: Final = 32 * 1024


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

    Raises CorruptBatch for bytes that the codec cannot decompress, DecompressedTooLarge past `bytes_max`.
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
    with room:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), room)
        try:
            return int(_module(compression).decompress_into(data, room))
        except cramjam.DecompressionError as error:
            what = f"{compression.name.lower()} records of {len(data)} bytes"
            if _ROOM_IS_FULL in str(error):
                raise DecompressedTooLarge(f"{what} decompress to more than {len(room)} bytes") from None
            raise CorruptBatch(f"{what} cannot be decompressed: {error}") from error


def compress(compression: Compression, data: Buffer, *, level: int | None = None) -> bytes:
    """Compress a batch's records. `level` is on the codec's own scale; snappy has no levels."""
    if compression is Compression.NONE:
        return bytes(data)
    if compression is Compression.SNAPPY:
        return _compress_snappy(data)
    if compression is Compression.LZ4:
        return _compress_lz4(data, level)
    return bytes(_module(compression).compress(data, level))


def _module(compression: Compression) -> Any:
    return {Compression.GZIP: cramjam.gzip, Compression.LZ4: cramjam.lz4, Compression.ZSTD: cramjam.zstd}[compression]


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


def _decompress_snappy(data: memoryview, room: memoryview) -> int:
    if data[:8].tobytes() != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, room, 0)
    position, end = len(_XERIAL_HEADER), 0
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptBatch(f"snappy block at byte {position}: expected a length, found the end")
        size = _INT32.unpack_from(data, position)[0]
        position += 4
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch(f"snappy block at byte {position}: length {size} of {len(data) - position} bytes left")
        end = _decompress_snappy_block(data[position : position + size], room, end)
        position += size
    return end


def _decompress_snappy_block(block: memoryview, room: memoryview, start: int) -> int:
    """Decompress one block to `start` of the buffer; return its end."""
    try:
        end = start + cramjam.snappy.decompress_raw_len(block)
        if end > len(room):
            raise DecompressedTooLarge(f"snappy records decompress to more than {len(room)} bytes")
        if end > start:
            with room[start:end] as place:
                cramjam.snappy.decompress_raw_into(block, place)
        return int(end)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy block of {len(block)} bytes: {error}") from error
