"""The log on a simulated device: order, limits, failure, fencing, and the cost of a turn of the loop."""

import asyncio
import errno
from asyncio import sleep
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from anabranch.wal.format import (
    CATALOG_UNKNOWN,
    HEADER_COPIES,
    PAGE_BYTES,
    RING_POSITION,
    Header,
    Shutdown,
    decode_header,
    newest_header,
)
from anabranch.wal.interface import (
    AppendedRecord,
    Durable,
    OverCapacity,
    QueueFull,
    RecordTooLarge,
    WalCorrupt,
    WalError,
    WalFailed,
    WalFenced,
    WalRefused,
)
from anabranch.wal.log import DeltaWal
from anabranch.wal.owner import read_header
from anabranch.wal.requests import IoRequest
from anabranch.wal.settings import WalSettings
from tests.support.sim_device import DeviceFaults, SimDevice, SimDisk

pytestmark = pytest.mark.usefixtures("native")

SETTINGS = WalSettings(
    capacity_bytes=RING_POSITION + 64 * PAGE_BYTES,
    block_bytes_max=4 * PAGE_BYTES,
    window_bytes=4 * PAGE_BYTES,
    window_bytes_max=16 * PAGE_BYTES,
    queue_bytes_max=32 * PAGE_BYTES,
)
WIDE = replace(
    SETTINGS, window_bytes=40 * PAGE_BYTES, window_bytes_max=40 * PAGE_BYTES, queue_bytes_max=40 * PAGE_BYTES
)
"""The window never holds a write up."""


def make_disk(seed: int = 1, size_bytes: int = SETTINGS.capacity_bytes) -> SimDisk:
    return SimDisk(size_bytes, Random(seed))


def make_wal(
    device: SimDevice,
    settings: WalSettings = SETTINGS,
    *,
    node: int = 1,
    epoch: int = 1,
    catalog: bytes = CATALOG_UNKNOWN,
) -> DeltaWal:
    return DeltaWal(
        device, settings, node_id=node, node_epoch=epoch, now_ms=lambda: 1000, cluster="c", catalog_id=catalog
    )


async def bodies(wal: DeltaWal) -> list[bytes]:
    return [bytes(record.body) async for record in wal.recover()]


async def opened(disk: SimDisk, settings: WalSettings = SETTINGS, *, epoch: int = 1) -> tuple[DeltaWal, SimDevice]:
    device = SimDevice(disk)
    wal = make_wal(device, settings, epoch=epoch)
    await bodies(wal)
    return wal, device


async def outcome(durable: Durable) -> WalError | None:
    try:
        await durable
    except WalError as error:
        return error
    return None


async def test_appends_of_one_turn_share_one_write() -> None:
    wal, device = await opened(make_disk())
    before = device.writes
    appended = [wal.append([b"x" * 100]) for _ in range(50)]
    assert len({id(one.durable) for one in appended}) == 1
    await appended[-1].durable
    assert device.writes == before + 1
    assert [one.offset for one in appended] == [124 * number for number in range(50)]
    assert wal.snapshot().records == 50
    assert wal.stats.latency_us(0.5) > 0


async def test_blocks_are_sealed_at_their_limit_and_larger_records_written_whole() -> None:
    wal, device = await opened(make_disk())
    appended = [wal.append([bytes(size_bytes)]) for size_bytes in (8000, 8000, 8000, 30000)]
    await appended[-1].durable
    assert wal.stats.blocks == 3
    assert wal.stats.block_bytes == 4 * PAGE_BYTES + 2 * PAGE_BYTES + 8 * PAGE_BYTES
    await wal.close()
    after, _ = await opened(device.disk, epoch=2)
    assert after.used_bytes == 14 * PAGE_BYTES


async def test_acks_come_in_the_order_of_appends() -> None:
    wal, _ = await opened(make_disk(7))
    order: list[int] = []

    def acked(number: int, error: WalError | None) -> None:
        assert error is None
        order.append(number)

    for number in range(20):
        wal.append([bytes(5000)]).durable.add_done_callback(partial(acked, number))
    await wal.append([b"end"]).durable
    assert order == list(range(20))


async def test_a_full_ring_refuses_until_it_is_trimmed() -> None:
    wal, _ = await opened(make_disk())
    assert wal.capacity_bytes == 64 * PAGE_BYTES
    assert wal.snapshot().write_position == 0
    offsets = []
    for _ in range(15):
        appended = wal.append([bytes(16000)])
        offsets.append(appended.offset)
        await appended.durable
    with pytest.raises(OverCapacity, match=r"the ring is full: record of 16024 bytes, 12288 of 262144 bytes free"):
        wal.append([bytes(16000)])
    await wal.append([bytes(12000)]).durable
    assert wal.used_bytes == wal.capacity_bytes - PAGE_BYTES
    assert wal.snapshot().write_position == 63 * PAGE_BYTES
    assert wal.error is None
    await wal.trim(offsets[0])
    assert wal.used_bytes == wal.capacity_bytes - 5 * PAGE_BYTES
    await wal.append([bytes(16000)]).durable
    assert wal.snapshot().write_position == 3 * PAGE_BYTES, "it began anew at the ring's start"
    assert wal.stats.over_capacity == 1


async def test_what_is_trimmed_is_in_use_until_the_header_says_so() -> None:
    wal, _ = await opened(make_disk())
    offsets = []
    for _ in range(15):
        appended = wal.append([bytes(16000)])
        offsets.append(appended.offset)
        await appended.durable
    used_bytes = wal.used_bytes
    async with asyncio.TaskGroup() as group:
        trimming = group.create_task(wal.trim(offsets[-1]))
        await sleep(0)
        assert not trimming.done()
        assert wal.used_bytes == used_bytes
        with pytest.raises(OverCapacity):
            wal.append([bytes(16000)])
    assert wal.used_bytes == 0
    await wal.append([bytes(16000)]).durable


def largest_last(wal: DeltaWal) -> AppendedRecord:
    """Append as much as the ring takes, but for a few bytes."""
    try:
        return wal.append([bytes(15000)])
    except OverCapacity:
        return wal.append([bytes(11000)])


async def test_a_log_torn_on_the_rings_last_page_goes_on() -> None:
    """There must be a page for the skip record even then, or the next start would find durable bytes behind a hole."""
    disk = make_disk()
    wal, _ = await opened(disk)
    for _ in range(15):
        await wal.append([bytes(16000)]).durable
    whole = largest_last(wal)
    torn = wal.append([b"torn"])
    await torn.durable
    disk.data[RING_POSITION + torn.offset] ^= 1
    second = make_wal(SimDevice(disk), epoch=2)
    found = [record.offset async for record in second.recover()]
    assert found[-1] == whole.offset
    await second.trim(found[5])
    await second.append([b"new"]).durable
    third = make_wal(SimDevice(disk), epoch=3)
    assert [bytes(record.body) async for record in third.recover()][-1] == b"new"


async def test_the_queue_to_a_slow_device_is_bounded() -> None:
    wal, device = await opened(make_disk())
    device.faults.hang = True
    for _ in range(8):
        wal.append([bytes(16000)])
    with pytest.raises(
        QueueFull, match=r"the device is behind: record of 16024 bytes, \d+ bytes wait for it"
    ) as caught:
        wal.append([bytes(16000)])
    assert wal.snapshot().queued_bytes <= SETTINGS.queue_bytes_max
    device.faults.hang = False
    device.release()
    await caught.value.durable
    await wal.append([bytes(16000)]).durable


async def test_a_record_that_never_fits_says_so() -> None:
    wal, _ = await opened(make_disk())
    with pytest.raises(RecordTooLarge, match="record of 200024 bytes, the largest is"):
        wal.append([bytes(200000)])
    await wal.append([b"fine"]).durable


async def test_a_slow_first_write_widens_the_window_before_it_is_passed() -> None:
    """The oldest write hangs while others complete: the bound in the header grows before more is written."""
    disk = make_disk()
    wal, device = await opened(disk, replace(SETTINGS, writes_in_flight_max=2))
    device.hold_blocks = 1
    first = wal.append([bytes(10000)])
    rest = []
    for _ in range(6):
        rest.append(wal.append([bytes(10000)]))
        for _ in range(20):
            await sleep(0)
    header = newest_header(memoryview(disk.data)[:RING_POSITION])
    assert header is not None
    assert SETTINGS.window_bytes < wal.window.handed - wal.window.start <= header.window_bytes
    assert header.window_bytes == wal.window.bound <= SETTINGS.window_bytes_max
    assert wal.stats.window_growths > 0
    assert not any(appended.durable.done for appended in [first, *rest])
    device.release()
    await rest[-1].durable
    assert first.durable.done


@pytest.mark.parametrize(("iops", "expected"), [(0, [1, 1, 4, 1]), (1_000_000, [1] * 7)])
async def test_blocks_that_wait_for_a_writer_share_a_write_unless_a_budget_paces_them(
    monkeypatch: pytest.MonkeyPatch, iops: int, expected: list[int]
) -> None:
    disk = make_disk()
    room = 40 * PAGE_BYTES
    settings = replace(SETTINGS, window_bytes=room, window_bytes_max=room, queue_bytes_max=room, iops_max=iops)
    wal, device = await opened(disk, replace(settings, writes_in_flight_max=2))
    blocks: list[int] = []
    submit = device.submit

    def watch(request: IoRequest) -> None:
        if request.segments[0][0] >= RING_POSITION:
            blocks.append(len(request.segments))
        submit(request)

    monkeypatch.setattr(device, "submit", watch)
    device.hold_blocks = 2
    appended = []
    for number in range(7):
        appended.append(wal.append([bytes([number]) * 15000]))
        if number < 2:
            await sleep(0)
    assert wal.snapshot().in_flight == 2, "the others wait"
    device.release()
    for one in appended:
        await one.durable
    assert blocks == expected
    await device.close()
    again, _ = await opened(disk, settings, epoch=2)
    assert again.recovered is not None
    assert again.recovered.records == 7


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (DeviceFaults(write_error=1.0), "Input/output error"),
        (DeviceFaults(read_only_after=0), "Read-only file system"),
        (DeviceFaults(cut_after=0), "power cut"),
    ],
)
async def test_a_failed_write_fails_the_log_as_a_whole(faults: DeviceFaults, reason: str) -> None:
    wal, device = await opened(make_disk())
    kept = wal.append([b"kept"])
    await kept.durable
    device.faults = faults
    lost = [wal.append([bytes(9000)]) for _ in range(6)]
    errors = [await outcome(appended.durable) for appended in lost]
    assert all(isinstance(error, WalFailed) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert reason in str(errors[0])
    assert "position" in str(errors[0])
    assert wal.error is errors[0]
    with pytest.raises(WalFailed, match=reason):
        wal.append([b"more"])
    with pytest.raises(WalFailed, match=reason):
        await wal.trim(kept.offset)
    await wal.close()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("late", [True, False], ids=["the others later", "the others before"])
async def test_after_a_failed_write_nothing_is_acked_whatever_completes(late: bool, failing: int, strict: bool) -> None:
    """Three writes are under way, one block waits for a writer, and one is open."""
    settings = replace(WIDE, fencing="strict" if strict else "local", writes_in_flight_max=3)
    wal, device = await opened(make_disk(), settings)
    problems = exceptions_in_callbacks()
    device.hold_blocks = 3
    outcomes: list[tuple[int, WalError | None]] = []

    def note(number: int, error: WalError | None) -> None:
        outcomes.append((number, error))

    for number in range(4):
        wal.append([bytes(9000)]).durable.add_done_callback(partial(note, number))
        await sleep(0)
    wal.append([bytes(9000)]).durable.add_done_callback(partial(note, 4))
    others, failed = device.held.copy(), device.held[failing]
    others.remove(failed)
    if not late:
        await perform(device, others)
    failed.error = OSError(errno.EIO, "Input/output error")
    failed.done(failed)
    acked = 0 if late else failing
    assert isinstance(wal.error, WalFailed)
    assert outcomes == [(number, None if number < acked else wal.error) for number in range(5)]
    used_bytes = wal.used_bytes
    if late:
        await perform(device, others)
    assert (len(outcomes), wal.used_bytes, wal.snapshot().in_flight) == (5, used_bytes, 0)
    assert not problems


async def perform(device: SimDevice, requests: Sequence[IoRequest]) -> None:
    """Perform requests that were held back, and return when the device has nothing more to do."""
    for request in requests:
        device.submit(request)
    while device.under_way:  # noqa: ASYNC110 - the condition has no event
        await sleep(0)


def exceptions_in_callbacks() -> list[object]:
    """The exceptions that callbacks of the loop raise from now on, which otherwise are only logged."""
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    return raised


async def test_a_log_that_fails_between_two_acks_fails_the_second() -> None:
    wal, device = await opened(make_disk(), WIDE)
    device.hold_blocks = 2
    first = wal.append([bytes(9000)]).durable
    await sleep(0)
    second = wal.append([bytes(9000)]).durable
    await sleep(0)
    first.add_done_callback(lambda _: wal.failed(WalFailed("the header is not ours")))
    oldest, newest = device.held
    await perform(device, [newest])
    assert not second.done, "it waits for the one before it"
    await perform(device, [oldest])
    assert await outcome(first) is None
    assert str(await outcome(second)) == "the header is not ours"


async def test_a_failed_header_write_fails_the_log() -> None:
    wal, device = await opened(make_disk())
    appended = wal.append([b"a"])
    await appended.durable
    device.faults = DeviceFaults(write_error=1.0)
    with pytest.raises(WalFailed, match="header write at position"):
        await wal.trim(appended.offset)
    with pytest.raises(WalFailed, match="header write at position"):
        wal.append([b"b"])


async def test_a_write_that_never_ends_times_out() -> None:
    wal, device = await opened(make_disk(), replace(SETTINGS, write_timeout_ms=20))
    problems = exceptions_in_callbacks()
    device.faults.hang = True
    durable = wal.append([b"a"]).durable
    error = await outcome(durable)
    assert "took longer than 20 ms" in str(error)
    assert isinstance(wal.error, WalFailed)
    device.faults.hang = False
    device.release()
    await perform(device, ())
    assert (await outcome(durable), wal.error) == (error, error), "it ends too late"
    assert not problems


async def test_a_process_that_was_stopped_for_longer_does_not_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers and the completions are both due when the loop continues: the write itself was not slow."""
    wal, _ = await opened(make_disk(), replace(SETTINGS, write_timeout_ms=20))
    appended = wal.append([b"a"])
    await sleep(0)
    assert wal.snapshot().in_flight == 1
    loop = asyncio.get_running_loop()
    before = loop.time
    monkeypatch.setattr(loop, "time", lambda: before() + 1000)
    await appended.durable
    assert wal.error is None


@pytest.mark.parametrize("strict", [True, False])
async def test_the_former_owner_stops_acking(strict: bool) -> None:
    disk = make_disk()
    settings = replace(SETTINGS, fencing="strict" if strict else "local")
    old, _ = await opened(disk, settings, epoch=1)
    await old.append([b"acked"]).durable
    new = make_wal(SimDevice(disk), settings, epoch=2)
    assert await bodies(new) == [b"acked"]
    if strict:
        error = await outcome(old.append([b"too late"]).durable)
    else:
        with pytest.raises(WalFenced):
            await old.trim(0)
        error = old.error
    assert isinstance(error, WalFenced)
    assert "claimed by node 1 with epoch 2, this is node 1 with epoch 1" in str(error)
    with pytest.raises(WalFenced):
        old.append([b"never"])
    await new.append([b"new"]).durable
    await new.trim(new.append([b"newer"]).offset - 1)
    assert new.error is None


@pytest.mark.slow
async def test_nothing_acked_by_the_former_owner_is_missed_by_the_new_one() -> None:
    """Two concurrent owners, in all interleavings of the seeds: the new one has every record the old one acked."""
    settings = replace(SETTINGS, fencing="strict")
    fenced = 0
    for seed in range(75):
        disk = make_disk(seed)
        old, _ = await opened(disk, settings, epoch=1)
        acked: list[bytes] = []

        async def produce(old: DeltaWal = old, acked: list[bytes] = acked) -> None:
            for number in range(60):
                body = b"%d" % number
                try:
                    await old.append([body]).durable
                except WalFenced:
                    return
                acked.append(body)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            for _ in range(disk.random.randrange(100)):
                await sleep(0)
            new = make_wal(SimDevice(disk), settings, epoch=2)
            found = await bodies(new)
        assert found[: len(acked)] == acked, f"seed {seed}"
        fenced += isinstance(old.error, WalFenced)
        mine = new.append([b"mine"])
        await mine.durable
        await new.close()
        assert (await bodies(make_wal(SimDevice(disk), settings, epoch=3)))[-1] == b"mine"
    assert fenced > 25


async def test_an_older_epoch_cannot_open_the_log() -> None:
    disk = make_disk()
    wal, _ = await opened(disk, epoch=5)
    await wal.close()
    with pytest.raises(WalFenced, match="node epoch 5, this node's is 4"):
        await bodies(make_wal(SimDevice(disk), epoch=4))


async def test_trims_under_way_share_header_writes() -> None:
    wal, _ = await opened(make_disk())
    offsets = [wal.append([b"x" * 200]).offset for _ in range(100)]
    await wal.append([b"last"]).durable
    before = wal.stats.header_writes
    async with asyncio.TaskGroup() as group:
        for offset in offsets:
            group.create_task(wal.trim(offset))
    assert wal.stats.header_writes - before <= 3 * HEADER_COPIES
    await wal.trim(offsets[3])
    assert wal.stats.header_writes - before <= 3 * HEADER_COPIES


async def test_a_clean_stop_leaves_nothing_to_skip_and_a_crash_does() -> None:
    disk = make_disk()
    wal, _ = await opened(disk)
    appended = wal.append([b"a"])
    await wal.close()
    assert appended.durable.done
    await wal.close()
    with pytest.raises(WalFailed, match="closed"):
        wal.append([b"b"])
    header = newest_header(memoryview(disk.data)[:RING_POSITION])
    assert header is not None
    assert header.shutdown == Shutdown.GRACEFUL
    second = make_wal(SimDevice(disk), epoch=2)
    assert await bodies(second) == [b"a"]
    assert second.used_bytes == PAGE_BYTES
    assert second.recovered is not None
    assert second.recovered.reason == "graceful stop"
    third = make_wal(SimDevice(disk), epoch=3)
    assert await bodies(third) == [b"a"]
    assert third.used_bytes == PAGE_BYTES + SETTINGS.window_bytes


async def test_reset_frees_everything() -> None:
    disk = make_disk()
    wal, _ = await opened(disk)
    await wal.reset()
    for _ in range(3):
        wal.append([bytes(20000)])
    await wal.reset()
    assert wal.used_bytes == 0
    last = wal.append([b"after"])
    await last.durable
    assert await bodies(make_wal(SimDevice(disk), epoch=2)) == [b"after"]


async def test_the_budget_spreads_writes() -> None:
    settings = replace(SETTINGS, iops_max=1000, header_iops=10, bandwidth_bytes_max=1 << 30)
    wal, _ = await opened(make_disk(), settings)
    for _ in range(40):
        appended = wal.append([bytes(100)])
        await appended.durable
        await wal.trim(appended.offset)
    assert wal.stats.budget_waits > 0
    assert wal.error is None


async def test_foreign_and_unfit_devices_are_refused() -> None:
    async def refusal(disk: SimDisk, settings: WalSettings = SETTINGS, *, node: int = 1) -> str:
        with pytest.raises((WalRefused, WalCorrupt)) as caught:
            await bodies(make_wal(SimDevice(disk), settings, node=node, epoch=9))
        return str(caught.value)

    small = make_disk(size_bytes=8 * PAGE_BYTES)
    assert "32768 bytes, smaller than the configured capacity of 270336 bytes" in await refusal(small)
    assert "too small for a WAL" in await refusal(make_disk(size_bytes=2 * PAGE_BYTES))
    ext4 = make_disk()
    ext4.data[0x438:0x43A] = b"\x53\xef"
    assert "holds an ext2, ext3 or ext4 file system, not a WAL" in await refusal(ext4)
    unknown = make_disk()
    unknown.data[9000] = 1
    assert "holds unknown data (first non-zero byte at position 9000)" in await refusal(unknown)
    used = make_disk()
    wal, _ = await opened(used)
    await wal.close()
    assert "holds the WAL of node 1, expected node 2" in await refusal(used, node=2)
    used.data[20] ^= 1
    used.data[PAGE_BYTES + 20] ^= 1
    assert "both copies of the WAL header are damaged: copy 0: header CRC" in await refusal(used)


async def test_another_clusters_log_is_refused_unless_told_to_format() -> None:
    disk = make_disk()
    wal, _ = await opened(disk)
    await wal.append([b"of cluster c"]).durable
    device = SimDevice(disk)
    other = DeltaWal(device, SETTINGS, node_id=1, node_epoch=1, now_ms=lambda: 2000, cluster="d")
    with pytest.raises(WalRefused, match="holds the WAL of cluster 'c', expected 'd'"):
        await bodies(other)
    told = DeltaWal(
        SimDevice(disk), replace(SETTINGS, format=True), node_id=1, node_epoch=1, now_ms=lambda: 2000, cluster="d"
    )
    assert await bodies(told) == []
    await told.append([b"of cluster d"]).durable
    again = DeltaWal(
        SimDevice(disk), replace(SETTINGS, format=True), node_id=1, node_epoch=2, now_ms=lambda: 3000, cluster="d"
    )
    assert await bodies(again) == [b"of cluster d"]


def headers(disk: SimDisk) -> list[Header | str]:
    return [decode_header(memoryview(disk.data)[at : at + PAGE_BYTES]) for at in (0, PAGE_BYTES)]


async def test_another_catalogs_log_is_refused() -> None:
    disk = make_disk()
    mine, other = bytes([0xAA] * 16), bytes([0xBB] * 16)
    wal = make_wal(SimDevice(disk), catalog=mine)
    await bodies(wal)
    await wal.append([b"kept"]).durable
    before = bytes(disk.data)
    for catalog in (other, CATALOG_UNKNOWN):
        with pytest.raises(WalRefused) as caught:
            await bodies(make_wal(SimDevice(disk), epoch=2, catalog=catalog))
        assert str(caught.value) == (
            f"sim: holds the WAL of catalog {mine.hex()}, this node is configured with catalog {catalog.hex()}, which "
            "does not contain the WAL's streams: check catalog.url and wal.path"
        )
    assert bytes(disk.data) == before
    assert await bodies(make_wal(SimDevice(disk), epoch=2, catalog=mine)) == [b"kept"]


# A log as version 1 of the format left it when its node died: both header copies and a block of one record.
LOG_OF_VERSION_1 = (
    (
        0,
        "414e41425257414c 01000000 00000000 0200000000000000 0101803e00000000 0020040000000000 0000000000000000"
        "0000000000000000 ffffffffffffffff 0000000000000000 0040000000000000 0100000000000000 0100000000000000"
        "e803000000000000 63" + "00" * 63 + "8e04003e",
    ),
    (
        PAGE_BYTES,
        "414e41425257414c 01000000 00000000 0300000000000000 0101803e00000000 0020040000000000 0000000000000000"
        "0000000000000000 ffffffffffffffff 0000000000000000 0040000000000000 0100000000000000 0100000000000000"
        "e803000000000000 63" + "00" * 63 + "29968ab9",
    ),
    (
        RING_POSITION,
        "41425752 0c000000 1800000000000000 0af26188 42f6e724" + b"of version 1".hex() + "41425750 c40f0000"
        "3c00000000000000 7cec7d12 654a00d0",
    ),
)


async def test_a_log_of_version_1_becomes_one_of_version_2_with_its_next_claim() -> None:
    disk = make_disk()
    for position, content in LOG_OF_VERSION_1:
        disk.write(position, memoryview(bytes.fromhex(content).ljust(PAGE_BYTES, b"\0")), synced=True)
    catalog = bytes(range(16))
    stored = await read_header(SimDevice(disk))
    assert stored is not None
    assert stored.catalog_id == CATALOG_UNKNOWN
    wal = make_wal(SimDevice(disk), epoch=2, catalog=catalog)
    assert await bodies(wal) == [b"of version 1"]
    for header in headers(disk):
        assert isinstance(header, Header)
        assert (header.catalog_id, header.log_id, header.node_epoch) == (catalog, stored.log_id, 2)
    assert disk.data[8] == disk.data[PAGE_BYTES + 8] == 2
    await wal.append([b"more"]).durable
    assert await bodies(make_wal(SimDevice(disk), epoch=3, catalog=catalog)) == [b"of version 1", b"more"]
    with pytest.raises(WalRefused, match=r"check catalog\.url"):
        await bodies(make_wal(SimDevice(disk), epoch=4, catalog=bytes([9] * 16)))


async def test_a_format_that_was_cut_short_is_begun_again() -> None:
    disk = make_disk()
    disk.data[PAGE_BYTES : PAGE_BYTES + 8] = b"ANABRWAL"
    assert await bodies(make_wal(SimDevice(disk))) == []


async def test_a_larger_device_gets_the_configured_capacity_for_good() -> None:
    disk = make_disk(size_bytes=SETTINGS.capacity_bytes * 2)
    wal, _ = await opened(disk)
    assert wal.capacity_bytes == 64 * PAGE_BYTES
    await wal.close()
    larger = make_wal(SimDevice(disk), replace(SETTINGS, capacity_bytes=SETTINGS.capacity_bytes * 2), epoch=2)
    await bodies(larger)
    assert larger.capacity_bytes == 64 * PAGE_BYTES


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"capacity_bytes": 1000}, "capacity_bytes: 1000, expected"),
        ({"capacity_bytes": SETTINGS.capacity_bytes + 1}, "a multiple of 4096"),
        ({"writes_in_flight_max": 0}, "writes_in_flight_max"),
        ({"window_bytes": 32 * PAGE_BYTES}, "window_bytes"),
        ({"iops_max": 5}, "header_iops"),
        ({"capacity_bytes": RING_POSITION + 16 * PAGE_BYTES, "block_bytes_max": 8 * PAGE_BYTES}, "four blocks"),
    ],
)
def test_bad_settings_are_refused_by_name(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(WalRefused, match=reason):
        replace(SETTINGS, **changes)  # type: ignore[arg-type]  # bad values on purpose


async def test_a_log_proves_its_ownership_by_its_header_until_another_node_claims_it() -> None:
    disk = make_disk()
    settings = replace(SETTINGS, fencing="strict")
    old, _ = await opened(disk, settings, epoch=1)
    await old.prove_ownership()
    assert await bodies(make_wal(SimDevice(disk), settings, epoch=2)) == []
    with pytest.raises(WalFenced):
        await old.prove_ownership()
    assert isinstance(old.error, WalFenced)
    with pytest.raises(WalFenced):
        await old.prove_ownership()
