"""Encode and decode messages, with encoders and decoders compiled per message type and version.

    message, end = decode(FetchRequest, frame, version, offset=header.body_offset)
    data = encode(FetchResponse(...), version)
    parts = encode_parts(FetchResponse(...), version)   # large records are not copied

Functions are compiled on the first use of a message type in a version, and kept. For any bytes, `decode` returns a
message or raises MalformedMessage. `encode` raises UnencodableMessage for values that do not fit. A version that the
message does not have raises UnsupportedVersion.
"""

import struct
from typing import Any, Final, TypeVar

from anabranch.protocol.decoder import Decoder, compile_decoder, decoder_source
from anabranch.protocol.encoder import Encoder, compile_encoder, encoder_source
from anabranch.protocol.errors import MalformedMessage, UnencodableMessage, UnsupportedVersion
from anabranch.protocol.wire import Buffer, schema_of

M = TypeVar("M")

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class _Decoders(dict[tuple[type, int], Decoder]):
    """The decoders compiled so far."""

    def __missing__(self, key: tuple[type, int]) -> Decoder:
        _check_version(*key)
        decoder = self[key] = compile_decoder(*key)
        return decoder


class _Encoders(dict[tuple[type, int], Encoder]):
    """The encoders compiled so far."""

    def __missing__(self, key: tuple[type, int]) -> Encoder:
        _check_version(*key)
        encoder = self[key] = compile_encoder(*key)
        return encoder


# Caches of compiled functions by message type and version; bounded by the API table.
_DECODERS: Final = _Decoders()
_ENCODERS: Final = _Encoders()


def _check_version(message_type: type, version: int) -> None:
    versions = schema_of(message_type).versions
    if versions is None or version not in versions:
        raise UnsupportedVersion(f"{message_type.__name__} has no version {version}")


def decode(message_type: type[M], buffer: Buffer, version: int, offset: int = 0) -> tuple[M, int]:
    """Decode a message that begins at `offset`; returns it and the offset after it.

    Records fields are memoryviews of `buffer`; everything else is copied out of it. Raises MalformedMessage.
    """
    decoder = _DECODERS[message_type, version]
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    try:
        return decoder(view, offset, len(view))
    except (struct.error, IndexError) as error:
        raise MalformedMessage(f"{message_type.__name__} v{version}: truncated ({len(view) - offset} bytes)") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"{message_type.__name__} v{version}: a string is not UTF-8") from error
    except MalformedMessage as error:
        raise MalformedMessage(f"{message_type.__name__} v{version}: {error}") from error


def decode_exact(message_type: type[M], buffer: Buffer, version: int, offset: int = 0) -> M:
    """Decode a message that takes all of the buffer from `offset` on. Raises MalformedMessage, also for bytes left."""
    message, end = decode(message_type, buffer, version, offset)
    if end != len(buffer):
        raise MalformedMessage(f"{message_type.__name__} v{version}: {len(buffer) - end} bytes after its end")
    return message


def encode(message: object, version: int) -> bytes:
    """Encode a message into one piece."""
    return b"".join(_pieces(message, version, [], []))


def encode_parts(message: object, version: int, head: Buffer = b"") -> list[Buffer]:
    """Encode a message, after `head`, into few buffers: large records are not copied, the rest is joined."""
    cuts: list[int] = []
    return _joined(_pieces(message, version, [head], cuts), cuts)[0]


def encode_frame(message: object, version: int, head: bytes) -> list[Buffer]:
    """Like `encode_parts`, for a whole frame: the int32 size of all that follows comes first."""
    cuts: list[int] = []
    pieces = _pieces(message, version, [head], cuts)
    if not cuts:
        body = b"".join(pieces)
        return [_INT32.pack(len(body)) + body]
    parts, size = _joined(pieces, cuts)
    parts[0] = _INT32.pack(size) + parts[0]  # the head is in it
    return parts


def encode_versioned(message: object, version: int) -> bytes:
    """Encode a message after its int16 version, as records of internal topics and group metadata are."""
    return b"".join(_pieces(message, version, [_INT16.pack(version)], []))


def read_version(buffer: Buffer) -> int:
    """Return the int16 version that a versioned message begins with."""
    try:
        version: int = _INT16.unpack_from(buffer, 0)[0]
    except struct.error as error:
        raise MalformedMessage(f"version: expected 2 bytes, found {len(buffer)}") from error
    return version


def decode_versioned(message_type: type[M], buffer: Buffer) -> M:
    """Decode what `encode_versioned` has encoded. Raises MalformedMessage, also for bytes left."""
    return decode_exact(message_type, buffer, read_version(buffer), _INT16.size)


def _pieces(message: object, version: int, pieces: list[Buffer], cuts: list[int]) -> list[Buffer]:
    encoder = _ENCODERS[type(message), version]
    try:
        encoder(message, pieces, cuts)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise UnencodableMessage(f"{type(message).__name__} v{version}: {error}") from error
    return pieces


def _joined(pieces: list[Buffer], cuts: list[int]) -> tuple[list[Buffer], int]:
    """Join the pieces around large records. Returns the parts and their size."""
    parts: list[Buffer] = []
    done = size = 0
    places = iter((*cuts, len(pieces), len(pieces), 0))
    for first, last, records_bytes in zip(places, places, places, strict=True):
        if small := b"".join(pieces[done:first]):
            parts.append(small)
        parts += pieces[first:last]
        size += len(small) + records_bytes
        done = last
    return parts, size


def generated_source(message_type: type[Any], version: int) -> str:
    """Return the Python source of a message's encoder and decoder, for debugging."""
    return decoder_source(message_type, version)[0].text() + encoder_source(message_type, version)[0].text()
