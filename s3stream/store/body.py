"""Request bodies from many buffers: large ones are passed to the socket without a copy, small ones are joined."""

import base64
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from anabranch.s3stream.background import Pace
from anabranch.wal.interface import Buffer

PIECE_BYTES = 256 * 1024
GATHER_BYTES = 64 * 1024
"""Buffers shorter than this are joined: a write per buffer would cost more than the copy."""


class RequestBody:
    """Body of a request for botocore and aiohttp: it has a length, and is iterated once per attempt."""

    def __init__(self, parts: Sequence[Buffer], pace: Pace | None = None) -> None:
        """`pace` limits the speed at which the pieces are handed out; None: no limit."""
        self._pace = pace
        self._pieces = list(_pieces(parts))
        self._size = sum(len(piece) for piece in self._pieces)

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return self._size > 0

    def __aiter__(self) -> "_AsyncPieces":
        return _AsyncPieces(iter(self._pieces), self._pace)

    def read(self) -> bytes:
        """Return the whole body. botocore recognises a streamed body by this method, and does not call it."""
        return b"".join(self._pieces)

    def checksum(self) -> str:
        """Return the CRC32C in S3's encoding."""
        crc = 0
        for piece in self._pieces:
            crc = crc32c(piece, crc)
        return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _pieces(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers to write, in order: large ones in pieces, small ones joined."""
    small: list[Buffer] = []
    small_bytes = 0
    for part in parts:
        size = len(part)
        if size < GATHER_BYTES:
            small.append(part)
            small_bytes += size
            if small_bytes < PIECE_BYTES:
                continue
        if small_bytes:
            yield b"".join(small)
            small, small_bytes = [], 0
        if size >= GATHER_BYTES:
            view = memoryview(part)
            for at in range(0, size, PIECE_BYTES):
                yield view[at : at + PIECE_BYTES]
    if small_bytes:
        yield b"".join(small)


class _AsyncPieces:
    """Asynchronous iterator over pieces, at a pace."""

    def __init__(self, pieces: Iterator[Buffer], pace: Pace | None) -> None:
        self._pieces = pieces
        self._pace = pace

    def __aiter__(self) -> "_AsyncPieces":
        return self

    async def __anext__(self) -> Buffer:
        for piece in self._pieces:
            if self._pace is not None:
                async with self._pace.piece(len(piece)):
                    pass  # the client sends it when this returns
            return piece
        raise StopAsyncIteration
