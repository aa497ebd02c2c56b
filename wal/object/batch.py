"""A batch: the records of one object, gathered in recycled memory as blocks of the log on a device are."""

from collections.abc import Sequence
from typing import Final

from anabranch.native import native_part
from anabranch.wal.block import WalBlock
from anabranch.wal.format import PADDING_BYTES_MIN
from anabranch.wal.interface import Buffer, Durable
from anabranch.wal.object.format import ObjectHeader, Position


class Batch:
    """Records from one logical offset on. It passes once through: open, sealed, in flight, durable."""

    __slots__ = ("block", "durable", "head", "head_offset", "header", "recyclable", "stored")

    def __init__(self, block: WalBlock) -> None:
        self.block: Final = block
        self.durable: Final[Durable] = block.durable
        self.header: ObjectHeader
        """Set when the batch is sealed."""
        self.head = b""
        """The encoded header."""
        self.head_offset = 0
        """Logical offset of the first live object when the batch was sealed."""
        self.recyclable = True
        """False if the memory may still be read when the batch is durable."""
        self.stored = False
        """True when the store has the object; the batch is durable when all earlier ones are stored, too."""

    @property
    def body(self) -> memoryview:
        """Records appended so far."""
        return self.block.buffer[: self.block.length]

    def parts(self) -> Sequence[Buffer]:
        """Bytes of the object, once the batch is sealed."""
        return (self.head, self.body)

    def seal(self, header: ObjectHeader, head: bytes) -> None:
        """Set the header. No record is added from now on."""
        self.header, self.head = header, head


class StoredObject:
    """An object that is durable and whose records are not all trimmed."""

    __slots__ = ("last_offset", "position", "start")

    def __init__(self, position: Position, start: int, last_offset: int) -> None:
        self.position: Final = position
        self.start: Final = start
        """Logical offset of the first byte of its body."""
        self.last_offset: Final = last_offset
        """Offset of its last record; less than `start` if it has none."""


def new_block(offset: int, buffer: memoryview, room_bytes: int, salt: int, opened_at: float) -> WalBlock:
    """Return a block with room for `room_bytes` of records: objects need no padding record."""
    return native_part().twin(WalBlock)(offset, buffer, room_bytes + PADDING_BYTES_MIN, salt, opened_at)
