"""Cuts the bytes of a client into frames: each request is one, with its size before it. Does no I/O.

Invariants:

- Bytes between frames are received into a scratch buffer that all connections of a loop share. What is left there at
  the end of a read is copied out of it before the next read.
- A frame that does not arrive in one read gets a buffer of its size, which is lent to the kernel for the rest. From
  then on a record batch is a memoryview of that buffer.
- The buffer is allocated only when `begin` is called: its memory must be reserved first.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from anabranch.broker.node.net.slabs import SlabPool
from anabranch.broker.node.settings.memory import FRAME_SIZE_BYTES
from anabranch.wal.interface import Buffer

SCRATCH_BYTES: Final = 64 << 10
"""Size of the scratch buffer."""
SMALL_FRAME_BYTES: Final = 4 << 10
"""Frames up to this size are bytearrays: cheaper than a slice of a slab, and they do not keep a slab alive."""
FRAME_BYTES_MIN: Final = 8
"""API key, version and correlation id: the minimum of a request."""
LARGE_FRAME_BYTES: Final = SCRATCH_BYTES + 1
"""Frames of this size, length prefix included, never arrive in one read."""
_SIZE: Final = Struct(">i")
_OTHER_PROTOCOLS: Final[Mapping[bytes, str]] = {
    b"\x16\x03": "a TLS handshake",
    b"SSH-": "an SSH client",
    b"PRI ": "an HTTP/2 request",
    **dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PATC"), "an HTTP request"),
}
"""Protocols of clients that connect to the wrong port, by the first bytes that they send."""


def other_protocol(head: bytes) -> str:
    """Return the protocol of a client that connects to the wrong port, by its first bytes; empty if it is unknown."""
    return _OTHER_PROTOCOLS.get(head[:4]) or _OTHER_PROTOCOLS.get(head[:2]) or ""


class InvalidFrame(Exception):
    """The bytes are not the beginning of a frame that is allowed."""


class Framer:
    """Bytes of one connection that are not complete frames yet.

    After bytes were received into `buffer`, call `fill` if there is a `frame`. Else call `next_frame`, and again while
    there are `unread_bytes`, until it returns None. If a frame waits then, call `begin` or `set_aside` at once.
    """

    __slots__ = (
        "_end",
        "_head",
        "_prefix",
        "_scratch",
        "_slabs",
        "filled",
        "frame",
        "frame_bytes_max",
        "unread_bytes",
        "waiting_bytes",
    )

    def __init__(self, scratch: memoryview, slabs: SlabPool, frame_bytes_max: int) -> None:
        self._scratch = scratch
        self._slabs = slabs
        self.frame_bytes_max = frame_bytes_max
        """Largest frame that is allowed, without the size prefix. It may change between frames."""
        self.frame: memoryview | None = None
        """Frame that is being received into a buffer of its own."""
        self.filled = 0
        """Bytes of that frame that have arrived."""
        self.waiting_bytes = 0
        """Size of a frame that waits for `begin`, without the size prefix; 0 if none does."""
        self._head: Buffer = b""
        """First bytes of the waiting frame."""
        self._prefix = b""
        """Part of a size prefix, from the end of the last read."""
        self._end = 0
        """End of the bytes in the scratch buffer."""
        self.unread_bytes = 0
        """Bytes in the scratch buffer that are behind the last frame."""

    def buffer(self, bytes_max: int) -> memoryview:
        """Return the memory for the next bytes: the rest of the frame, or scratch memory.

        In the latter there is no room for more than `bytes_max` bytes of the next frame, its size prefix included.
        """
        if self.frame is not None:
            return self.frame[self.filled :]
        scratch = self._scratch
        if bytes_max < SCRATCH_BYTES:
            scratch = scratch[:bytes_max]
        prefix = self._prefix
        if not prefix:
            return scratch
        scratch[: len(prefix)] = prefix
        return scratch[len(prefix) :]

    def fill(self, count: int) -> memoryview | None:
        """Note that `count` more bytes of the frame have arrived; return it if it is complete."""
        frame = self.frame
        assert frame is not None, "a frame is being received"
        self.filled += count
        if self.filled < len(frame):
            return None
        self.frame = None
        return frame

    def next_frame(self, count: int = 0) -> Buffer | None:
        """Return the next frame that is complete in the scratch buffer, into which `count` more bytes have arrived.

        Returns None if none is left. Raises InvalidFrame.
        """
        if count:
            start, end = 0, len(self._prefix) + count
            self._prefix = b""
            self._end = end
        else:
            end = self._end
            start = end - self.unread_bytes
        self.unread_bytes = 0
        scratch = self._scratch
        if end - start < FRAME_SIZE_BYTES:
            if start < end:
                self._prefix = bytes(scratch[start:end])
            return None
        (size,) = _SIZE.unpack_from(scratch, start)
        start += FRAME_SIZE_BYTES
        if not FRAME_BYTES_MIN <= size <= self.frame_bytes_max:
            raise self._invalid(size)
        stop = start + size
        if stop > end:
            self.waiting_bytes = size
            self._head = scratch[start:end]
            return None
        self.unread_bytes = end - stop
        if size <= SMALL_FRAME_BYTES:
            return bytearray(scratch[start:stop])
        copy = self._slabs.allocate(size)
        copy[:] = scratch[start:stop]
        return copy

    def _invalid(self, size: int) -> InvalidFrame:
        other = other_protocol(_SIZE.pack(size))
        if other:
            return InvalidFrame(f"{other}, but this port expects Kafka's protocol without TLS")
        return InvalidFrame(f"frame of {size} bytes, allowed are {FRAME_BYTES_MIN} to {self.frame_bytes_max}")

    def begin(self) -> None:
        """Receive the waiting frame into a buffer of its own. Raises MemoryError or OSError if there is no memory."""
        size, head = self.waiting_bytes, self._head
        self.forget_waiting()
        frame = self._slabs.allocate(size) if size > SMALL_FRAME_BYTES else memoryview(bytearray(size))
        frame[: len(head)] = head
        self.frame = frame
        self.filled = len(head)

    def set_aside(self) -> None:
        """Keep the first bytes of the waiting frame while others use the scratch buffer."""
        self._head = bytes(self._head)

    def forget_waiting(self) -> None:
        """Drop the frame that waits."""
        self.waiting_bytes = 0
        self._head = b""

    def forget_frame(self) -> None:
        """Drop the frame that is being received."""
        self.frame = None
