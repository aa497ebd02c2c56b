"""The object log on a store in memory whose calls a test can hold up, refuse, or leave without an answer."""

from asyncio import Event
from collections.abc import Callable, Sequence

from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.wal.interface import Buffer
from anabranch.wal.object.format import HEADER_BYTES, LogName, ObjectHeader, Position, decode_header
from anabranch.wal.object.log import ObjectWal
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.object.store import StoreAway
from tests.support.memory_store import MemoryStore

NAME = LogName("c", 3, bytes(range(16)))


class TestStore(ObjectLogStore):
    """A `LogStore` of one writer over `memory`."""

    __test__ = False

    def __init__(self, memory: MemoryStore, writer_id: str = "w") -> None:
        super().__init__(memory, writer_id)
        self.gates: dict[int, Event] = {}
        """PUTs of a sequence wait for its event, the first time only."""
        self.refuse: Callable[[str], bool] = lambda _key: False
        """PUTs of these keys have no effect and fail."""
        self.lose: Callable[[str], bool] = lambda _key: False
        """PUTs of these keys take effect and fail."""
        self.puts: list[str] = []
        """Keys in the order in which they were put, repeated ones too."""

    async def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self.puts.append(key)
        position = NAME.parse_key(key)
        gate = None if position is None else self.gates.pop(position.sequence, None)
        if gate is not None:
            await gate.wait()
        if self.refuse(key):
            raise StoreAway(f"{key}: refused by the test")
        created = await super().create(key, parts)
        if self.lose(key):
            raise StoreAway(f"{key}: no answer, says the test")
        return created

    def gate(self, sequence: int) -> Event:
        """Hold the next PUT of a sequence up until the event is set."""
        self.gates[sequence] = Event()
        return self.gates[sequence]


async def opened_wal(
    store: ObjectLogStore, epoch: int = 1, settings: ObjectWalSettings | None = None
) -> tuple[ObjectWal, list[bytes]]:
    """Return a recovered log, and the bodies that it found."""
    wal = ObjectWal(store, NAME, settings or ObjectWalSettings(), node_epoch=epoch)
    return wal, [bytes(record.body) async for record in wal.recover()]


def sequences(memory: MemoryStore, epoch: int) -> list[int]:
    """Return the sequences that an epoch has objects of."""
    positions = [NAME.parse_key(key) for key in sorted(memory.objects)]
    return [each.sequence for each in positions if each is not None and each.epoch == epoch]


def header_at(memory: MemoryStore, epoch: int, sequence: int) -> ObjectHeader:
    """Return the header of an object."""
    position = Position(epoch, sequence)
    header = decode_header(NAME, position, memory.objects[NAME.key(position)][0][:HEADER_BYTES])
    assert isinstance(header, ObjectHeader), header
    return header
