"""Zeros ahead of the records of a new file: their order, their pauses, and what happens when they fail."""

from asyncio import get_running_loop, sleep
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Header, Shutdown
from anabranch.wal.interface import QueueFull, WalFailed, WalFenced
from anabranch.wal.log import DeltaWal
from anabranch.wal.prewriter import unwritten_offsets
from anabranch.wal.requests import IoKind, IoRequest
from anabranch.wal.settings import WalSettings
from tests.support.sim_device import DeviceFaults, SimDevice, SimDisk
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

RING_PAGES = 64
SETTINGS = WalSettings(
    capacity_bytes=RING_POSITION + RING_PAGES * PAGE_BYTES,
    block_bytes_max=4 * PAGE_BYTES,
    window_bytes=4 * PAGE_BYTES,
    window_bytes_max=16 * PAGE_BYTES,
    queue_bytes_max=32 * PAGE_BYTES,
    prewrite_bytes=2 * PAGE_BYTES,
    prewrite_ahead_bytes=8 * PAGE_BYTES,
)
RECORD = b"r" * 3000


def is_zeros(request: IoRequest) -> bool:
    return request.kind is IoKind.WRITE and not any(any(content) for _, content in request.segments)


class SlowZeros(SimDevice):
    """A device that takes `seconds` for each write of zeros, or until `release_zeros` while `holds_zeros` is set."""

    def __init__(self, disk: SimDisk, seconds: float = 0.0) -> None:
        super().__init__(disk)
        self.seconds = seconds
        self.holds_zeros = False
        self.held_zeros: list[IoRequest] = []
        self.began: list[float] = []

    def submit(self, request: IoRequest) -> None:
        if not is_zeros(request):
            super().submit(request)
            return
        loop = get_running_loop()
        self.began.append(loop.time())
        if self.holds_zeros:
            self.held_zeros.append(request)
        else:
            loop.call_later(self.seconds, super().submit, request)

    def release_zeros(self) -> None:
        self.holds_zeros = False
        for request in self.held_zeros:
            super().submit(request)


def new_disk() -> SimDisk:
    return SimDisk(SETTINGS.capacity_bytes, Random(1), new=True, direct=True)


async def opened(device: SimDevice, settings: WalSettings = SETTINGS, *, epoch: int = 1) -> DeltaWal:
    wal = DeltaWal(device, settings, node_id=1, node_epoch=epoch, now_ms=lambda: 0)
    assert [bytes(record.body) async for record in wal.recover()] == []
    return wal


def left(wal: DeltaWal) -> int:
    return wal.snapshot().unwritten_bytes // PAGE_BYTES


def fill(wal: DeltaWal) -> QueueFull:
    """Append until the log waits for zeros; return the error."""
    for _ in range(RING_PAGES):
        try:
            wal.append([RECORD])
        except QueueFull as full:
            return full
    raise AssertionError("the log never waited")


async def append_for_good(wal: DeltaWal) -> None:
    """Append whenever there is room, until the log fails."""
    while True:
        await fill(wal).durable


async def written_in_full(wal: DeltaWal) -> None:
    await until(lambda: left(wal) == 0, timeout_s=600, pause_s=0.001)


def test_ranges_are_in_the_order_in_which_the_log_reaches_them() -> None:
    header = Header(
        sequence=0,
        log_id=1,
        capacity_bytes=RING_POSITION + 8 * PAGE_BYTES,
        base_offset=16 * PAGE_BYTES,
        head_offset=17 * PAGE_BYTES,
        trim_offset=-1,
        durable_offset=0,
        window_bytes=PAGE_BYTES,
        node_id=1,
        node_epoch=1,
        last_write_ms=0,
        cluster="",
        shutdown=Shutdown.RUNNING,
    )

    def pages(next_page: int, *ranges: tuple[float, float]) -> list[tuple[float, float]]:
        positions = [(int(RING_POSITION + a * PAGE_BYTES), int(RING_POSITION + b * PAGE_BYTES)) for a, b in ranges]
        found = unwritten_offsets(header, positions, next_page * PAGE_BYTES)
        return [(start / PAGE_BYTES, end / PAGE_BYTES) for start, end in found]

    assert pages(16, (0, 8)) == [(16, 24)]
    assert pages(16, (3, 8)) == [(19, 24)]
    assert pages(19, (0, 8)) == [(19, 24), (24, 27)]  # the second range is before the next write: a lap later
    assert pages(21, (1, 2), (4, 6)) == [(21, 22), (25, 26), (28, 29)]
    assert pages(24, (0, 1)) == [(24, 25)]
    assert pages(16, (-2, 1), (7, 99)) == [(16, 17), (23, 24)]  # neither the headers nor past the capacity
    assert pages(16, (0.5, 2), (4, 5.5)) == [(17, 18), (20, 21)]  # a page that was written in part is left alone
    assert pages(16, (2.25, 2.75)) == []


def test_a_new_log_opens_when_its_beginning_is_written() -> None:
    async def main() -> None:
        device = SlowZeros(new_disk(), 0.010)
        wal = await opened(device)
        assert left(wal) == RING_PAGES - 8
        await wal.append([RECORD]).durable
        await written_in_full(wal)
        assert device.zeroed == RING_PAGES // 2
        assert not device.disordered
        assert not device.disk.unwritten
        await wal.close()

    # The pause after a chunk must not end before the log is seen open: in real time it is as short as the chunk was.
    run_virtual(main())


async def test_an_append_waits_for_zeros_and_the_pauses_end() -> None:
    device = SlowZeros(new_disk())
    wal = await opened(device)
    device.holds_zeros = True
    full = fill(wal)
    while not device.held_zeros:  # zeros were already at the device
        await full.durable
        full = fill(wal)
    assert "the new file is not written so far: record of 3024 bytes" in str(full)
    assert wal.used_bytes <= (RING_PAGES - left(wal)) * PAGE_BYTES
    for _ in range(20):
        await sleep(0)
    assert not full.durable.done
    device.release_zeros()
    await full.durable
    last = wal.append([RECORD])
    await last.durable
    assert not device.disordered
    await wal.close()


def test_zeros_take_a_fifth_of_the_time_unless_the_log_comes_near() -> None:
    async def idle() -> list[float]:
        device = SlowZeros(new_disk(), 0.010)
        wal = await opened(device)
        await written_in_full(wal)
        await wal.close()
        return device.began

    began = run_virtual(idle())
    assert len(began) == RING_PAGES // 2
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(began)]
    # Four chunks are the part that the log opens with; the fifth is the first that nobody waits for.
    assert gaps == [0.010] * 3 + [0.050] * (len(gaps) - 3)

    async def busy() -> list[float]:
        device = SlowZeros(new_disk(), 0.010)
        wal = await opened(device)
        while left(wal):
            try:
                wal.append([RECORD])
            except QueueFull as full:
                await full.durable
        await wal.close()
        return device.began

    began = run_virtual(busy())
    assert began[-1] - began[0] == pytest.approx(0.010 * (RING_PAGES // 2 - 1))


def test_zeros_count_against_the_budget() -> None:
    async def main() -> float:
        device = SlowZeros(new_disk())
        settings = replace(SETTINGS, bandwidth_bytes_max=64 * PAGE_BYTES)
        wal = await opened(device, settings)
        await written_in_full(wal)
        await wal.close()
        return device.began[-1] - device.began[0]

    # Eight pages at the whole rate, since the log waits for them, and 56 at a quarter of it.
    assert run_virtual(main()) == pytest.approx(8 / 64 + 56 / 16, abs=0.1)


def test_zeros_leave_most_of_a_budget_to_records() -> None:
    async def main() -> tuple[float, float]:
        settings = replace(
            SETTINGS,
            capacity_bytes=RING_POSITION + 1024 * PAGE_BYTES,
            bandwidth_bytes_max=64 * PAGE_BYTES,
            prewrite_ahead_bytes=64 * PAGE_BYTES,
        )
        device = SlowZeros(SimDisk(settings.capacity_bytes, Random(1), new=True, direct=True), 0.001)
        wal = await opened(device, settings)
        loop = get_running_loop()
        before, began = left(wal), loop.time()
        waited_s = 0.0
        for _ in range(40):
            await sleep(0.1)
            appended = loop.time()
            await wal.append([RECORD]).durable
            waited_s += loop.time() - appended
        zeroed = before - left(wal)
        rate = zeroed / (loop.time() - began)
        await wal.close()
        return rate, waited_s / 40

    rate, waited_s = run_virtual(main())
    assert 0 < rate < 64 / 3, "pages of zeros per second, of 64"
    assert waited_s < 0.02, "the budget's time of a chunk is 0.03 s"


async def test_a_log_that_is_closed_in_the_middle_is_continued() -> None:
    disk = new_disk()
    device = SlowZeros(disk)
    wal = await opened(device)
    device.holds_zeros = True
    full = fill(wal)
    while not device.held_zeros:  # zeros were already at the device
        await full.durable
        full = fill(wal)
    before = left(wal)
    closing = get_running_loop().create_task(wal.close())
    for _ in range(20):
        await sleep(0)
    assert not closing.done()
    assert not device.closed
    device.release_zeros()
    await closing
    await full.durable
    rest = before - SETTINGS.prewrite_bytes // PAGE_BYTES
    assert len(disk.unwritten) == rest
    device = SlowZeros(disk)
    wal = DeltaWal(device, SETTINGS, node_id=1, node_epoch=2, now_ms=lambda: 0)
    assert {bytes(record.body) async for record in wal.recover()} == {RECORD}
    await until(lambda: left(wal) == 0)
    assert len(device.began) == rest // 2
    assert not device.disordered
    await wal.close()


async def test_zeros_that_cannot_be_written_fail_the_log() -> None:
    class Failing(SlowZeros):
        def _perform(self, request: IoRequest) -> None:
            self.faults = DeviceFaults(write_error=float(fails and is_zeros(request)))
            super()._perform(request)

    fails = False
    wal = await opened(Failing(new_disk()))
    fails = True
    with pytest.raises(WalFailed, match=r"sim: write of zeros at position \d+ failed: \[Errno 5\]"):
        await append_for_good(wal)
    with pytest.raises(WalFailed, match="failed"):
        wal.append([RECORD])
    await wal.close()


@pytest.mark.parametrize("kind", [IoKind.WRITE, IoKind.FLUSH])
def test_zeros_that_hang_fail_the_log(kind: IoKind) -> None:
    class Hanging(SlowZeros):
        hangs = False

        def submit(self, request: IoRequest) -> None:
            if not (self.hangs and (is_zeros(request) if kind is IoKind.WRITE else request.kind is kind)):
                super().submit(request)

    async def main() -> float:
        device = Hanging(new_disk())
        wal = await opened(device)
        device.hangs = True
        began = get_running_loop().time()
        with pytest.raises(WalFailed, match=r"write of zeros at offset \d+ took longer than 30000 ms"):
            await append_for_good(wal)
        with pytest.raises(WalFailed, match="took longer"):
            wal.append([RECORD])
        await wal.close()
        return get_running_loop().time() - began

    assert 30 <= run_virtual(main()) < 60


async def test_a_beginning_that_cannot_be_written_is_refused_at_the_start() -> None:
    device = SimDevice(new_disk(), DeviceFaults(read_only_after=5))
    wal = DeltaWal(device, SETTINGS, node_id=1, node_epoch=1, now_ms=lambda: 0)
    with pytest.raises(WalFailed, match=r"write of zeros at position \d+ failed: .*Read-only file system"):
        async for _ in wal.recover():
            pass
    await wal.close()


async def test_a_log_with_strict_fencing_opens_when_all_is_written() -> None:
    device = SlowZeros(new_disk())
    wal = await opened(device, replace(SETTINGS, fencing="strict"))
    assert not device.disk.unwritten
    assert len(device.began) == RING_PAGES // 2
    await wal.append([RECORD]).durable
    assert not device.disordered
    await wal.close()


async def test_a_paused_host_writes_no_zeros_over_the_records_of_the_next_owner() -> None:
    disk = new_disk()
    strict = replace(SETTINGS, fencing="strict")
    paused = SlowZeros(disk)
    paused.holds_zeros = True
    paused.in_order = False
    former = DeltaWal(paused, strict, node_id=1, node_epoch=1, now_ms=lambda: 0)
    opening = get_running_loop().create_task(anext(former.recover(), None))
    await until(lambda: bool(paused.held_zeros))
    successor = await opened(SlowZeros(disk), strict, epoch=2)
    appended = [successor.append([RECORD]) for _ in range(10)]
    await appended[-1].durable
    paused.release_zeros()
    with pytest.raises(WalFenced, match="claimed by node 1 with epoch 2"):
        await opening
    assert len(paused.began) == 1, "only the write that was at the device"
    await former.close()
    await successor.close()
