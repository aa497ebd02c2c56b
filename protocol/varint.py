"""Variable-length integers: seven bits per byte, lowest first; the top bit is set in all but the last byte.

Unsigned ones encode the lengths, tags and counts of flexible versions, zigzag ones the fields of records.
"""

from typing import Final

from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.wire import Buffer

ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))
UVARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10


def uvarint(n: int) -> bytes:
    """Encode an unsigned 32-bit integer."""
    if n < 128:
        return ONE_BYTE[n]
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned 32-bit integer; return it and the position after it.

    Raises MalformedMessage, or IndexError if the buffer ends first.
    """
    value = shift = 0
    for _ in range(UVARINT_BYTES_MAX):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 32:
                break
            return value, position
        shift += 7
    raise MalformedMessage(f"unsigned varint before byte {position}: expected 32 bits, found more")


def varlong(n: int) -> bytes:
    """Encode a signed 64-bit integer, zigzag."""
    z = (n << 1) ^ (n >> 63)
    if z < 128:
        return ONE_BYTE[z]
    out = bytearray()
    while z > 127:
        out.append(z & 127 | 128)
        z >>= 7
    out.append(z)
    return bytes(out)


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a signed 64-bit integer, zigzag; return it and the position after it.

    Raises MalformedMessage, or IndexError if the buffer ends first.
    """
    value = shift = 0
    for _ in range(VARLONG_BYTES_MAX):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise MalformedMessage(f"varint before byte {position}: expected 64 bits, found more")
