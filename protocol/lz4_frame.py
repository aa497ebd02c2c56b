"""The subset of LZ4 frames that Apache Kafka's reader accepts, as far as its checks need it.

It reads one frame of independent blocks, and neither dictionaries nor skippable frames. It ignores the content size and
the checksum of the content, but not that of the header, and not those of blocks.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

from anabranch.protocol.errors import InvalidRecord
from anabranch.protocol.wire import Buffer

MAGIC: Final = b"\x04\x22\x4d\x18"
BLOCK_CHECKSUM: Final = 0x10
CONTENT_SIZE: Final = 0x08
CONTENT_CHECKSUM: Final = 0x04
_REQUIRED: Final = 0xE3
"""Flags that are the same in all frames that can be read."""
EXPECTED_FLAGS: Final = 0x60
"""Their values: version 1, independent blocks, no dictionary, nothing reserved."""
_INDEPENDENT: Final = 0x20
_SIZE_CLASSES: Final = frozenset((0x40, 0x50, 0x60, 0x70))
_STORED: Final = 1 << 31
_UINT32: Final = Struct("<I")
_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_MASK: Final = 0xFFFFFFFF


def parse_head(view: Buffer, start: int = 0) -> tuple[int, int]:
    """Return the flags of a frame and the end of its header.

    Raises InvalidRecord for a frame that Kafka's consumers cannot read, IndexError if it ends inside its header.
    """
    if view[start : start + 4] != MAGIC:
        raise InvalidRecord("an LZ4 frame begins with other bytes")
    flags, size_class = view[start + 4], view[start + 5]
    end = start + (14 if flags & CONTENT_SIZE else 6)
    if flags & _REQUIRED != EXPECTED_FLAGS:
        linked = "" if flags & _INDEPENDENT else " (linked blocks: write independent ones)"
        raise InvalidRecord(f"an LZ4 frame with flags {flags:#04x}, which Kafka's consumers cannot read{linked}")
    if size_class not in _SIZE_CLASSES:
        raise InvalidRecord(f"an LZ4 frame with the unknown block size {size_class:#04x}")
    expected = header_checksum(bytes(view[start + 4 : end]))
    if view[end] != expected:
        raise InvalidRecord(f"an LZ4 frame with header checksum {view[end]:#04x}, expected {expected:#04x}")
    return flags, end + 1


def find_end(view: Buffer, position: int, flags: int, *, blocks_max: int) -> int | None:
    """Return the end of the blocks at `position`, with the end mark; None if there are more than `blocks_max`.

    Raises struct.error if they are cut short, or the checksum after them is.
    """
    between = 8 if flags & BLOCK_CHECKSUM else 4
    for _ in range(blocks_max):
        size = _UINT32.unpack_from(view, position)[0] & ~_STORED
        if not size:
            if flags & CONTENT_CHECKSUM:
                _UINT32.unpack_from(view, position + 4)
            return position + 4
        position += between + size
    return None


@lru_cache(maxsize=64)
def header_checksum(head: bytes) -> int:
    """Return the checksum of an LZ4 frame's header without its magic: the second byte of its XXH32."""
    return xxh32(head) >> 8 & 0xFF


def xxh32(data: bytes) -> int:
    """Return the XXH32 checksum of less than 16 bytes."""
    assert len(data) < 16, "longer input has another beginning"
    prime1, prime2, prime3, prime4, prime5 = _PRIMES
    total = prime5 + len(data)
    words_end = len(data) & ~3
    for at in range(0, words_end, 4):
        total = total + _UINT32.unpack_from(data, at)[0] * prime3 & _MASK
        total = (total << 17 | total >> 15) * prime4 & _MASK
    for byte in data[words_end:]:
        total = total + byte * prime5 & _MASK
        total = (total << 11 | total >> 21) * prime1 & _MASK
    total = (total ^ total >> 15) * prime2 & _MASK
    total = (total ^ total >> 13) * prime3 & _MASK
    return total ^ total >> 16
