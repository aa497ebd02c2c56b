"""Seeded histories of appends, trims, crashes and recoveries on a simulated disk.

150 of them; 20,000 with ANABRANCH_SOAK set (`make soak-wal`). ANABRANCH_WAL_HISTORIES sets another number,
ANABRANCH_WAL_SEED repeats one.
"""

import os
from asyncio import TaskGroup, sleep
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from anabranch.native import VARIABLE
from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.interface import OverCapacity, QueueFull, RecordTooLarge, WalError, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import WalSettings
from anabranch.wal.tools import resize
from tests.support.native import native_mode
from tests.support.sim_device import DeviceFaults, SimDevice, SimDisk
from tests.support.wal_model import WalModel

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("ANABRANCH_WAL_HISTORIES", "20000" if os.environ.get("ANABRANCH_SOAK") else "150"))
SEED = os.environ.get("ANABRANCH_WAL_SEED")
BATCH = 25


@dataclass(slots=True)
class History:
    """One disk, the logs opened on it one after the other, and their guarantees."""

    random: Random
    settings: WalSettings
    disk: SimDisk
    trim_rate: float
    """Share of possible trims that are made: if it is small, the ring is full most of the time."""
    native: str
    """ANABRANCH_NATIVE: half of the histories run in Python alone."""
    model: WalModel = field(default_factory=WalModel)
    epoch: int = 0
    opened: int = 0
    acked: int = 0
    zeroed: int = 0

    @classmethod
    def of(cls, seed: int, *, volatile: bool = False, new: bool = False) -> "History":
        """Return the history of a seed. With `new`, on a file that is written while it is used."""
        random = Random(seed)
        ring_pages = random.choice([16, 24, 48, 96])
        block_pages = random.choice([1, 2, 4])
        window_pages = random.choice([1, 2, 4, 8])
        settings = WalSettings(
            capacity_bytes=RING_POSITION + ring_pages * PAGE_BYTES,
            block_bytes_max=block_pages * PAGE_BYTES,
            writes_in_flight_max=random.choice([1, 2, 4, 8]),
            window_bytes=min(window_pages, 16) * PAGE_BYTES,
            window_bytes_max=16 * PAGE_BYTES,
            queue_bytes_max=random.choice([5, 16, 64]) * PAGE_BYTES,
            fencing=random.choice(["strict", "local"]),
            prewrite_bytes=random.choice([1, 2, 8]) * PAGE_BYTES,
            prewrite_ahead_bytes=random.choice([0, 4, 32]) * PAGE_BYTES,
        )
        size_bytes = RING_POSITION + 128 * PAGE_BYTES
        disk = SimDisk(size_bytes, random, volatile=volatile, new=new, direct=random.choice([True, False]))
        native = "off" if seed % 2 else os.environ.get(VARIABLE) or "auto"
        return cls(random, settings, disk, random.choice([1.0, 1.0, 0.3]), native)

    async def run(self, steps: int) -> None:
        with native_mode(self.native):
            for _ in range(steps):
                await self.live()

    async def live(self) -> None:
        wal, device = await self.open()
        if wal is None:
            return
        await self.use(wal, device)
        await self.stop(wal, device)
        if self.random.random() < 0.3:
            await self.resize()

    def faults(self) -> DeviceFaults:
        random = self.random
        faults = DeviceFaults()
        match random.randrange(12):
            case 0:
                faults.write_error = 0.03
            case 1:
                faults.read_only_after = random.randrange(30)
            case 2:
                faults.read_error = 0.1
            case 3 | 4:
                faults.cut_after = random.randrange(60)
            case _:
                pass
        return faults

    async def open(self) -> tuple[DeltaWal | None, SimDevice]:
        """Recover and check; returns None if the power failed during recovery."""
        self.epoch += 1
        device = SimDevice(self.disk, self.faults())
        wal = DeltaWal(
            device, self.settings, node_id=1, node_epoch=self.epoch, now_ms=lambda: self.epoch, clock=lambda: 0.0
        )
        try:
            recovered = [record async for record in wal.recover()]
        except WalError:
            assert device.faults != DeviceFaults(), "recovery failed without a fault"
            self.crash(device)
            return None, device
        self.model.check(recovered)
        self.opened += 1
        return wal, device

    async def use(self, wal: DeltaWal, device: SimDevice) -> None:
        random = self.random
        for _ in range(random.randrange(40)):
            try:
                match random.randrange(10):
                    case 0 | 1 | 2 | 3 | 4:
                        self.append(wal)
                    case 5 | 6:
                        await sleep(0)
                    case 7 | 8:
                        await self.trim(wal)
                    case _:
                        if self.model.records:
                            for _ in range(random.randrange(20)):
                                await sleep(0)
                                assert wal.used_bytes <= wal.capacity_bytes
            except QueueFull as full:
                if random.random() < 0.5:
                    with suppress(WalError):
                        await full.durable
            except OverCapacity:
                await self.trim(wal)
            except WalError:
                assert device.faults != DeviceFaults(), "failed without a fault"
                return

    def append(self, wal: DeltaWal) -> None:
        random = self.random
        for _ in range(random.choice([1, 1, 3, 10])):
            size_bytes = random.choice([0, 1, random.randrange(100), random.randrange(5000), random.randrange(17000)])
            body = random.randbytes(size_bytes)
            cut = random.randrange(size_bytes + 1)
            try:
                self.model.appended(wal.append([body[:cut], memoryview(body)[cut:]]), body)
            except RecordTooLarge:
                assert size_bytes > PAGE_BYTES

    async def trim(self, wal: DeltaWal) -> None:
        acked = [record.offset for record in self.model.records if record.acked]
        if not acked or self.random.random() >= self.trim_rate:
            return
        offset = self.random.choice([acked[-1], self.random.choice(acked)])
        self.model.trim_requested = max(self.model.trim_requested, offset)
        cancelled = self.random.random() < 0.1
        confirmed = False
        try:
            async with TaskGroup() as group:
                trimming = group.create_task(wal.trim(offset))
                await sleep(0)
                if self.random.random() < 0.5:  # space that is being freed must not be overwritten yet
                    with suppress(OverCapacity):
                        self.append(wal)
                if cancelled:
                    trimming.cancel()
            confirmed = not cancelled
        except* WalError:
            pass
        if confirmed:
            self.model.trim_confirmed = max(self.model.trim_confirmed, offset)

    async def stop(self, wal: DeltaWal, device: SimDevice) -> None:
        if self.random.random() < 0.2:
            await wal.close()
            if device.faults == DeviceFaults():
                assert all(record.acked for record in self.model.records), "closed with records that are not durable"
            self.crash(device)
        else:
            self.crash(device)
        self.acked += len(self.model.acks)
        self.zeroed += device.zeroed
        assert not device.disordered

    def crash(self, device: SimDevice) -> None:
        device.crash()
        if self.random.random() < 0.6:
            self.disk.power_cut()

    async def resize(self) -> None:
        capacity = RING_POSITION + self.random.randrange(16, 129) * PAGE_BYTES
        faults = DeviceFaults(cut_after=self.random.choice([None, self.random.randrange(30)]))
        device = SimDevice(self.disk, faults, in_order=False)  # copies of records need no zeros: a flush follows
        try:
            await resize(device, capacity, now_ms=lambda: self.epoch)
        except WalRefused:
            pass
        except WalError:
            assert device.faults.cut_after is not None
        self.crash(device)


@pytest.mark.parametrize("batch", range(0, HISTORIES, BATCH))
async def test_what_was_acked_comes_back(batch: int) -> None:
    opened = acked = 0
    for seed in [int(SEED)] if SEED else range(batch, min(batch + BATCH, HISTORIES)):
        history = History.of(seed)
        try:
            await history.run(12)
        except BaseException as error:
            error.add_note(f"repeat with ANABRANCH_WAL_SEED={seed}")
            raise
        opened += history.opened
        acked += history.acked
    assert opened > 0
    assert acked > 0


@pytest.mark.parametrize("batch", range(0, HISTORIES, BATCH))
async def test_what_was_acked_comes_back_from_a_file_that_is_still_being_written(batch: int) -> None:
    opened = acked = zeroed = 0
    for seed in [int(SEED)] if SEED else range(batch, min(batch + BATCH, HISTORIES)):
        history = History.of(seed, new=True)
        try:
            await history.run(6)
        except BaseException as error:
            error.add_note(f"repeat with ANABRANCH_WAL_SEED={seed}")
            raise
        opened += history.opened
        acked += history.acked
        zeroed += history.zeroed
    assert opened > 0
    assert acked > 0
    assert zeroed > 0


async def test_the_harness_notices_a_volatile_cache() -> None:
    """With a cache that a power cut empties and no flush, acked records are lost: the check must see it."""
    lost = 0
    for seed in range(30):
        try:
            await History.of(seed, volatile=True).run(12)
        except (AssertionError, WalError):
            lost += 1
    assert lost > 10
