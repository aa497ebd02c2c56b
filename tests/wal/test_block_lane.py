"""The native lane of a block beside the writer in Python: the same writes, acks, counters and errors."""

import errno
import gc
import sys
import weakref
from asyncio import Task, create_task, gather, sleep
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.interface import AppendedRecord, WalError, WalFailed, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.requests import IoKind, IoRequest
from anabranch.wal.settings import WalSettings
from anabranch.wal.tools import resize
from tests.support.native import native_mode
from tests.support.sim_device import DeviceFaults, SimDevice, SimDisk
from tests.support.virtual_time import run_virtual

SETTINGS = WalSettings(
    capacity_bytes=RING_POSITION + 64 * PAGE_BYTES,
    block_bytes_max=4 * PAGE_BYTES,
    window_bytes=16 * PAGE_BYTES,
    window_bytes_max=16 * PAGE_BYTES,
    queue_bytes_max=32 * PAGE_BYTES,
)
SEEDS = 60


class Device(SimDevice):
    """Notes what is written to the ring, and how many of these writes the native lane handed over."""

    def __init__(self, disk: SimDisk, events: list[object]) -> None:
        super().__init__(disk)
        self.events = events
        self.native = 0
        self.refusing: OSError | None = None

    def submit(self, request: IoRequest) -> None:
        if self.refusing is not None:
            raise self.refusing
        if request.kind is IoKind.WRITE and request.segments[0][0] >= RING_POSITION:
            self.events.append([(position, len(data), crc32c(data)) for position, data in request.segments])
            self.native += "BlockLane" in str(request.done)
        super().submit(request)


# --- a history on both ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """Logs opened on one disk one after the other: all that can be seen of them from outside."""

    random: Random
    disk: SimDisk
    settings: WalSettings
    events: list[object] = field(default_factory=list)
    native: int = 0

    @classmethod
    def of(cls, seed: int) -> "History":
        random = Random(seed)
        settings = replace(
            SETTINGS,
            capacity_bytes=RING_POSITION + random.choice([24, 64]) * PAGE_BYTES,
            block_bytes_max=random.choice([1, 2, 4]) * PAGE_BYTES,
            writes_in_flight_max=random.choice([1, 2, 4, 4]),
            window_bytes=random.choice([2, 4, 16]) * PAGE_BYTES,
            queue_bytes_max=random.choice([6, 16, 32]) * PAGE_BYTES,
            fencing=random.choices(("local", "strict"), (7, 1))[0],
            write_timeout_ms=100,
            prewrite_bytes=2 * PAGE_BYTES,
            prewrite_ahead_bytes=8 * PAGE_BYTES,
        )
        disk = SimDisk(RING_POSITION + 96 * PAGE_BYTES, random, new=random.random() < 0.15, direct=True)
        return cls(random, disk, settings)

    async def run(self) -> None:
        for epoch in range(1, 5):
            device = Device(self.disk, self.events)
            ticks = count()
            wal = DeltaWal(
                device,
                self.settings,
                node_id=1,
                node_epoch=epoch,
                now_ms=lambda: 1000,
                clock=lambda ticks=ticks: next(ticks) / 1000,  # type: ignore[misc]  # bound early
            )
            self.events.append([(record.offset, bytes(record.body)) async for record in wal.recover()])
            await self.use(wal, device)
            device.faults = DeviceFaults()
            device.release()
            if self.random.random() < 0.6:
                await wal.close()
            self.events.append((asdict(wal.snapshot()), device.requests, str(wal.error)))
            device.crash()
            assert not device.disordered
            self.native += device.native
            if self.random.random() < 0.5:
                await self.resize()

    async def use(self, wal: DeltaWal, device: Device) -> None:
        random = self.random
        acked: list[int] = []
        trims: list[Task[None]] = []
        for _ in range(random.randrange(80)):
            match random.randrange(16):
                case 0 | 1 | 2 | 3 | 4 | 5:
                    self.append(wal, acked)
                case 6 | 7 | 8:
                    for _ in range(random.randrange(4)):
                        await sleep(0)
                case 9 | 10:
                    await sleep(random.choice([0.001, 0.01, 0.03]))
                case 11 | 12 if acked:
                    trims.append(create_task(wal.trim(random.choice(acked[-3:]))))
                case 13:
                    device.hold_blocks = random.randrange(3)
                case 14:
                    device.release()
                case 15 if random.random() < 0.1:
                    device.faults = random.choice(
                        [DeviceFaults(hang=True), DeviceFaults(write_error=0.2), DeviceFaults(read_only_after=3)]
                    )
                case _:
                    pass
        device.faults.hang = False
        device.release()
        self.events += map(str, await gather(*trims, return_exceptions=True))

    def append(self, wal: DeltaWal, acked: list[int], *, again: bool = True) -> None:
        """Append some records; the ack of one in a few appends more, or fails the log."""
        random = self.random
        for _ in range(random.choice([1, 1, 1, 4])):
            body = random.randbytes(random.choice([0, 10, 3000, random.randrange(9000)]))
            try:
                appended = wal.append([body[:7], body[7:]])
            except WalError as error:
                self.events.append(str(error))
                return
            appended.durable.add_done_callback(partial(self.done, appended, acked))
            if again and random.random() < 0.2:
                appended.durable.add_done_callback(lambda _: self.append(wal, acked, again=False))
            if random.random() < 0.004:
                appended.durable.add_done_callback(lambda _: wal.failed(WalFailed("as a callback says")))

    def done(self, appended: AppendedRecord, acked: list[int], error: WalError | None) -> None:
        self.events.append((appended.offset, str(error)))
        if error is None:
            acked.append(appended.offset)

    async def resize(self) -> None:
        capacity_bytes = RING_POSITION + self.random.randrange(24, 97) * PAGE_BYTES
        try:
            await resize(SimDevice(self.disk, in_order=False), capacity_bytes, now_ms=lambda: 1000)
        except WalRefused as refused:
            self.events.append(str(refused))


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Errors that the native part reports and does not raise."""
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: found.append(str(report.exc_value)))
    return found


def history(seed: int, mode: str) -> History:
    with native_mode(mode):
        made = History.of(seed)
        run_virtual(made.run())
        return made


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, SEEDS, 10)], ids=lambda r: r.start)
def test_both_do_the_same_with_a_history(seeds: range, unraisable: list[str]) -> None:
    native = writes = 0
    for seed in seeds:
        python, both = history(seed, "off"), history(seed, "require")
        assert both.events == python.events, f"seed {seed}"
        assert both.disk.data == python.disk.data, f"seed {seed}"
        assert python.native == 0
        native += both.native
        writes += sum(isinstance(event, list) for event in both.events)
    assert native > writes / 6, "the lane has taken too few blocks to be tested"
    assert not unraisable


# --- what is left to Python -------------------------------------------------------------------------------------------


@pytest.fixture
def required() -> Iterator[None]:
    with native_mode("require"):
        yield


async def opened(settings: WalSettings = SETTINGS) -> tuple[DeltaWal, Device]:
    """Return a log whose first block was written, so that it looks for overdue writes, and the lane may be used."""
    device = Device(SimDisk(settings.capacity_bytes, Random(1)), [])
    wal = DeltaWal(device, settings, node_id=1, node_epoch=1, now_ms=lambda: 1000)
    assert [record async for record in wal.recover()] == []
    await wal.append([b"first"]).durable
    return wal, device


def inside(wal: DeltaWal) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of the log and of its writer, to be read and set."""
    return vars(wal), vars(vars(wal)["_writer"])


def state(wal: DeltaWal, device: Device) -> object:
    log, writer = inside(wal)
    block = wal.open_block
    open_block = None if block is None else (block.offset, block.length, block.records, bytes(block.buffer))
    queues = [len(writer[name]) for name in ("_pending", "_writing", "_in_flight")]
    return open_block, queues, asdict(wal.stats), asdict(wal.window), log["_next_offset"], len(device.under_way)


def take_turn(wal: DeltaWal) -> bool:
    taken: bool = vars(wal)["_take_turn"]()
    return taken


Attributes = dict[str, Any]
LEFT: dict[str, Callable[[Attributes, Attributes], object]] = {
    "stopped": lambda _, writer: writer.update(_stopped=True),
    "block-waits": lambda _, writer: writer["_pending"].append(None),
    "writers-busy": lambda _, writer: writer["_in_flight"].update(dict.fromkeys("abcd", 0.0)),
    "overdue-unseen": lambda _, writer: writer.update(_timeout_timer=None),
    "window-too-small": lambda _, writer: setattr(writer["window"], "bound", 2 * PAGE_BYTES),
    "gap-before-it": lambda _, writer: setattr(writer["window"], "handed", 0),
    "ring-full": lambda log, _: log.update(_limit_offset=3 * PAGE_BYTES),
    "zeros-missing": lambda log, _: setattr(log["_prewriter"], "limit_offset", 3 * PAGE_BYTES),
    "nothing-open": lambda log, _: log.update(open_block=None),
}


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("change", LEFT.values(), ids=LEFT)
async def test_the_lane_changes_nothing_when_it_leaves_a_block(
    change: Callable[[Attributes, Attributes], object], unraisable: list[str]
) -> None:
    wal, device = await opened()
    wal.append([bytes(9000)])
    change(*inside(wal))
    before = state(wal, device)
    assert not take_turn(wal)
    assert state(wal, device) == before
    assert not unraisable


@pytest.mark.usefixtures("required")
async def test_the_lane_takes_a_usual_block_up_to_each_limit() -> None:
    wal, device = await opened()
    durable = wal.append([bytes(9000)]).durable
    log, writer = inside(wal)
    writer["_in_flight"].update(dict.fromkeys("abc", 0.0))
    wal.window.bound = 3 * PAGE_BYTES
    log["_limit_offset"] = log["_prewriter"].limit_offset = 4 * PAGE_BYTES
    assert take_turn(wal)
    for name in "abc":
        del writer["_in_flight"][name]
    await durable
    assert device.native == 1
    assert wal.stats.blocks == wal.stats.writes == 2


@pytest.mark.usefixtures("required")
async def test_a_large_block_counts_as_several_writes() -> None:
    sizes = {
        "capacity_bytes": 4 << 20,
        "window_bytes": 1 << 20,
        "window_bytes_max": 1 << 20,
        "queue_bytes_max": 1 << 20,
    }
    wal, device = await opened(replace(SETTINGS, **sizes))  # type: ignore[arg-type]  # all are sizes
    await wal.append([bytes(600 << 10)]).durable
    assert device.native == 1
    assert wal.stats.writes == 1 + 3


@pytest.mark.usefixtures("required")
async def test_a_block_that_crosses_the_end_of_the_ring_is_left_to_python() -> None:
    wal, device = await opened()
    while wal.snapshot().write_position != 63 * PAGE_BYTES:
        appended = wal.append([b"a page"])
        await appended.durable
        await wal.trim(appended.offset)
    native = device.native
    assert native > 50
    durable = wal.append([bytes(5000)]).durable
    assert not take_turn(wal)
    await durable
    assert device.native == native
    await wal.append([b"at the beginning"]).durable
    assert device.native == native + 1


@pytest.mark.usefixtures("required")
async def test_the_place_of_a_block_follows_from_a_base_offset_past_it() -> None:
    wal, device = await opened()
    header = inside(wal)[1]["_header"]
    header.header = replace(header.header, base_offset=62 * PAGE_BYTES)
    appended = wal.append([b"a"])
    await appended.durable
    assert device.native == 1
    assert device.events[-1][0][0] == header.header.position_of(appended.offset) == RING_POSITION + 3 * PAGE_BYTES  # type: ignore[index]


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("off", SETTINGS),
        ("require", replace(SETTINGS, fencing="strict")),
        ("require", replace(SETTINGS, iops_max=1000)),
        ("require", replace(SETTINGS, bandwidth_bytes_max=10 << 20)),
    ],
    ids=["off", "strict-fencing", "limited-writes", "limited-bytes"],
)
async def test_a_log_that_does_more_for_each_block_has_no_lane(mode: str, settings: WalSettings) -> None:
    with native_mode(mode):
        wal, device = await opened(settings)
        assert vars(wal)["_take_turn"] is None
        await wal.append([b"a"]).durable
        assert device.native == 0


@pytest.mark.usefixtures("required")
async def test_a_closed_or_failed_log_has_nothing_for_the_lane() -> None:
    closed, device = await opened()
    durable = closed.append([b"a"]).durable
    await closed.close()
    assert durable.done
    assert durable.error is None
    failed, _ = await opened()
    durable = failed.append([b"a"]).durable
    failed.failed(WalFailed("gone"))
    assert str(durable.error) == "gone"
    before = state(closed, device)
    assert not take_turn(closed)
    assert not take_turn(failed)
    assert state(closed, device) == before


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("required")
async def test_a_native_write_that_never_ends_times_out() -> None:
    wal, device = await opened(replace(SETTINGS, write_timeout_ms=20))
    device.faults.hang = True
    durable = wal.append([b"a"]).durable
    with pytest.raises(WalFailed, match="took longer than 20 ms"):
        await durable
    assert device.native == 1


@pytest.mark.usefixtures("required")
async def test_nothing_is_acked_after_a_native_write_that_failed() -> None:
    wal, device = await opened()
    device.hold_blocks = 2
    first = wal.append([b"a"]).durable
    await sleep(0)
    second = wal.append([b"b"]).durable
    await sleep(0)
    assert device.native == 2
    [fails, succeeds] = device.held
    fails.error = OSError(errno.EIO, "Input/output error")
    fails.done(fails)
    succeeds.done(succeeds)
    for durable in (first, second):
        assert "write of 4096 bytes at position 12288 (offset 4096) failed" in str(durable.error)


def fail_submit(wal: DeltaWal, device: Device) -> None:
    device.refusing = OSError(errno.EBADF, "Bad file descriptor")


def fail_seal(wal: DeltaWal, device: Device) -> None:
    wal.stats.records = "none"  # type: ignore[assignment]


def fail_clock(wal: DeltaWal, device: Device) -> None:
    inside(wal)[1]["_loop"] = None


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("fail", [fail_submit, fail_seal, fail_clock])
async def test_an_error_in_the_midst_fails_the_log(
    fail: Callable[[DeltaWal, Device], None], unraisable: list[str]
) -> None:
    wal, device = await opened()
    device.hold_blocks = 1
    earlier = wal.append([b"a"]).durable
    await sleep(0)
    durable = wal.append([b"b"]).durable
    fail(wal, device)
    assert take_turn(wal)
    for each in (earlier, durable):
        assert each.done
        assert "a block was handed over in part" in str(each.error)
    with pytest.raises(WalFailed, match="a block was handed over in part"):
        wal.append([b"c"])
    [held] = device.held
    held.done(held)
    assert (wal.window.start, len(inside(wal)[1]["_in_flight"])) == (PAGE_BYTES, 0)
    assert not unraisable


@pytest.mark.usefixtures("required")
async def test_an_error_before_anything_was_changed_is_reported_and_python_writes(unraisable: list[str]) -> None:
    wal, device = await opened()
    durable = wal.append([b"a"]).durable
    log, _ = inside(wal)
    prewriter, log["_prewriter"] = log["_prewriter"], None
    before = state(wal, device)
    assert not take_turn(wal)
    assert state(wal, device) == before
    assert [text for text in unraisable if "limit_offset" in text]
    log["_prewriter"] = prewriter
    await durable


@pytest.mark.usefixtures("required")
async def test_a_log_is_freed_with_its_lane() -> None:
    wal, _ = await opened()
    await wal.append([b"a"]).durable
    await wal.close()
    freed = weakref.ref(wal)
    del wal
    for _ in range(3):
        await sleep(0)
    gc.collect()
    assert freed() is None
