"""Damage in every kind of place: the records a repair keeps, that the log continues, and that nothing else changes."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from anabranch.wal.format import GAPS_MAX, PAGE_BYTES, RECORD_HEADER_BYTES, RING_POSITION, LogGap
from anabranch.wal.interface import WalCorrupt, WalDamaged, WalError, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.repair import RepairPlan, join_gaps, plan_repair, read_damaged, read_kept, repair
from anabranch.wal.settings import WalSettings
from tests.support.sim_device import DeviceFaults, SimDevice, SimDisk

SETTINGS = WalSettings(
    capacity_bytes=RING_POSITION + 128 * PAGE_BYTES,
    block_bytes_max=4 * PAGE_BYTES,
    window_bytes=4 * PAGE_BYTES,
    window_bytes_max=16 * PAGE_BYTES,
    queue_bytes_max=64 * PAGE_BYTES,
)


class WrittenLog:
    """A log of known records on a simulated disk; `records` are those that are not trimmed."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(SETTINGS.capacity_bytes, Random(seed))
        self.records: dict[int, bytes] = {}
        self.epoch = 0

    def wal(self, faults: DeviceFaults | None = None) -> DeltaWal:
        self.epoch += 1
        device = SimDevice(self.disk, faults)
        return DeltaWal(device, SETTINGS, node_id=1, node_epoch=self.epoch, now_ms=lambda: self.epoch)

    async def fill(self, blocks: int, *, trim: int = 0, clean: bool = False, body_bytes: int = 3000) -> None:
        """Write blocks of three records, then free the first `trim` records."""
        wal = self.wal()
        async for _ in wal.recover():
            pass
        for _ in range(blocks):
            bodies = [self.random.randbytes(body_bytes) for _ in range(3)]
            appended = [wal.append([body]) for body in bodies]
            await appended[-1].durable
            self.records |= {one.offset: body for one, body in zip(appended, bodies, strict=True)}
        if trim:
            last = sorted(self.records)[trim - 1]
            await wal.trim(last)
            self.records = {offset: body for offset, body in self.records.items() if offset > last}
        if clean:
            await wal.close()

    def position(self, offset: int) -> int:
        return RING_POSITION + offset % (SETTINGS.capacity_bytes - RING_POSITION)

    def damage(self, *offsets: int, length: int = 1) -> None:
        for offset in offsets:
            for at in range(offset, offset + length):
                self.disk.data[self.position(at)] ^= 0x5A
        self.disk.stable[:] = self.disk.data

    async def recover(self) -> dict[int, bytes]:
        return {record.offset: bytes(record.body) async for record in self.wal().recover()}

    async def plan(self) -> RepairPlan:
        return await plan_repair(SimDevice(self.disk))

    async def repair(self) -> RepairPlan:
        device = SimDevice(self.disk)
        plan = await plan_repair(device)
        await repair(device, plan, now_ms=lambda: 77)
        return plan

    def without(self, *offsets: int) -> dict[int, bytes]:
        return {offset: body for offset, body in self.records.items() if offset not in offsets}


async def check_goes_on(log: WrittenLog, expected: dict[int, bytes]) -> None:
    """The log recovers the expected records, accepts new ones, trims past the damage, and recovers after each step."""
    assert await log.recover() == expected
    wal = log.wal()
    async for _ in wal.recover():
        pass
    more = wal.append([b"more"])
    await more.durable
    expected = expected | {more.offset: b"more"}
    assert await log.recover() == expected
    for offset in sorted(expected)[:-1]:
        wal = log.wal()
        async for _ in wal.recover():
            pass
        await wal.trim(offset)
        del expected[offset]
        assert await log.recover() == expected
    assert not (await log.plan()).needed


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("part", ["header", "body"])
@pytest.mark.parametrize("number", [0, 4, 8])
async def test_one_damaged_record_is_all_that_is_lost(number: int, part: str, clean: bool) -> None:
    log = WrittenLog()
    await log.fill(6, clean=clean)
    offset = sorted(log.records)[number]
    log.damage(offset if part == "header" else offset + 100)
    with pytest.raises(WalDamaged, match=rf"damaged at offset {offset}: .*; `anabranch wal repair` shows which"):
        await log.recover()
    plan = await log.repair()
    (damage,) = plan.damages
    following = sorted(log.records)[number + 1]
    assert damage.start == offset
    assert damage.end <= following
    assert [remnant.offset for remnant in damage.remains] == ([offset] if part == "body" else [])
    await check_goes_on(log, log.without(offset))


async def test_a_damaged_padding_record_loses_nothing() -> None:
    log = WrittenLog()
    await log.fill(6)
    third = sorted(log.records)[2]
    log.damage(third + RECORD_HEADER_BYTES + 3000 + 30)
    with pytest.raises(WalDamaged):
        await log.recover()
    await log.repair()
    await check_goes_on(log, log.records)


async def test_damage_in_several_places_and_at_the_head() -> None:
    log = WrittenLog()
    await log.fill(8, trim=2)
    offsets = sorted(log.records)
    log.damage(offsets[0], offsets[5] + 40, offsets[6], offsets[12])
    plan = await log.repair()
    assert len(plan.damages) >= 3
    await check_goes_on(log, log.without(offsets[0], offsets[5], offsets[6], offsets[12]))


async def test_damage_across_the_rings_end() -> None:
    log = WrittenLog()
    await log.fill(30, trim=60)
    await log.fill(14)
    ring_end = SETTINGS.capacity_bytes - RING_POSITION
    around = [offset for offset in log.records if offset - 3100 <= ring_end < offset + 3100]
    assert around, "records lie at the ring's end"
    log.damage(ring_end - 5, length=10)
    with pytest.raises(WalDamaged):
        await log.recover()
    await log.repair()
    kept = await log.recover()
    assert set(log.records) - set(kept) <= set(around)
    await check_goes_on(log, kept)


async def test_a_damaged_tail_ends_the_log() -> None:
    log = WrittenLog()
    await log.fill(4, clean=True)
    offsets = sorted(log.records)
    log.damage(offsets[-2], length=12_000)
    plan = await log.repair()
    assert plan.damages[0].end == plan.header.durable_offset
    await check_goes_on(log, log.without(*offsets[-2:]))


async def test_what_was_never_acked_stays_dropped() -> None:
    """Damage next to a skip record: the log continues at the skip record's end, with and without the header's gap."""
    log = WrittenLog()
    await log.fill(3)
    crashed = log.wal()
    async for _ in crashed.recover():
        pass
    device = crashed.device
    assert isinstance(device, SimDevice)
    device.hold_blocks = 1
    held = crashed.append([b"held"])
    await crashed.device.close()
    assert not held.durable.done
    await log.fill(3)
    offsets = sorted(log.records)
    log.damage(offsets[2] + 3000 + 2 * RECORD_HEADER_BYTES)  # padding in front of the skip record
    for gaps in (True, False):
        if not gaps:
            plan = await log.plan()
            await repair(SimDevice(log.disk), replace(plan, repaired=replace(plan.header, gaps=())), now_ms=lambda: 1)
        plan = await log.plan()
        kept = [record.offset async for records in read_kept(SimDevice(log.disk), plan) for record in records]
        assert kept == offsets


@pytest.mark.parametrize("number", [0, 1])
async def test_a_damaged_copy_of_the_header_is_written_anew(number: int) -> None:
    log = WrittenLog()
    await log.fill(3)
    log.disk.data[number * PAGE_BYTES + 40] ^= 1
    log.disk.stable[:] = log.disk.data
    plan = await log.repair()
    assert plan.damages == ()
    assert plan.damaged_copies[0].startswith(f"copy {number}: header CRC")
    assert not (await log.plan()).needed
    await check_goes_on(log, log.records)


async def test_without_a_header_it_says_what_is_left_to_do() -> None:
    log = WrittenLog()
    await log.fill(3)
    for number in (0, 1):
        log.disk.data[number * PAGE_BYTES + 40] ^= 1
    with pytest.raises(WalCorrupt, match=r"both copies .* keep a copy of the device, then set wal\.format"):
        await log.plan()
    with pytest.raises(WalRefused, match="blank"):
        await plan_repair(SimDevice(SimDisk(SETTINGS.capacity_bytes, Random(1))))


async def test_a_plan_changes_nothing_and_a_repair_only_the_header() -> None:
    log = WrittenLog()
    await log.fill(6)
    log.damage(sorted(log.records)[4])
    before = bytes(log.disk.data)
    plan = await log.plan()
    assert bytes(log.disk.data) == before
    saved = {at: bytes(page) async for at, page in read_damaged(SimDevice(log.disk), plan)}
    await log.repair()
    assert bytes(log.disk.data)[RING_POSITION:] == before[RING_POSITION:]
    assert saved[0] == before[:RING_POSITION]
    assert all(before[at : at + len(page)] == page for at, page in saved.items())
    assert any(at <= log.position(plan.damages[0].start) < at + len(page) for at, page in saved.items() if at)


async def test_a_crash_in_a_repair_leaves_the_old_state_or_the_new_one() -> None:
    old = new = 0
    for seed in range(60):
        log = WrittenLog(seed)
        await log.fill(4)
        offset = sorted(log.records)[4]
        log.damage(offset)
        plan = await log.plan()
        device = SimDevice(log.disk, DeviceFaults(cut_after=seed % 6))
        with suppress(WalError):
            await repair(device, plan, now_ms=lambda: 77)
        device.crash()
        log.disk.power_cut()
        try:
            assert await log.recover() == log.without(offset)
            new += 1
        except WalDamaged:
            old += 1
            await log.repair()
            assert await log.recover() == log.without(offset)
    assert old > 0
    assert new > 0


async def test_more_damage_than_the_header_holds_joins_the_nearest() -> None:
    log = WrittenLog()
    await log.fill(20, body_bytes=2000, clean=True)
    offsets = sorted(log.records)
    hit = offsets[1 : 3 * (GAPS_MAX + 2) : 3]
    log.damage(*hit)
    plan = await log.repair()
    assert len(plan.damages) == GAPS_MAX + 2
    assert len(plan.repaired.gaps) == GAPS_MAX
    assert plan.given_up_bytes > 0
    kept = await log.recover()
    assert kept.items() <= log.records.items()
    assert len(kept) == len(offsets) - len(hit) - 2 * 2, "two joins, two records between"


def test_gaps_join_by_what_lies_between() -> None:
    gaps = (LogGap(0, 10), LogGap(10, 20), LogGap(30, 40), LogGap(45, 50))
    assert join_gaps(gaps, 4) == ((LogGap(0, 20), LogGap(30, 40), LogGap(45, 50)), 0)
    assert join_gaps(gaps, 2) == ((LogGap(0, 20), LogGap(30, 50)), 5)
    assert join_gaps(gaps, 1) == ((LogGap(0, 50),), 15)
    assert join_gaps((), 2) == ((), 0)


async def test_random_damage_keeps_everything_that_it_did_not_touch() -> None:
    """Records without a damaged byte are kept, whatever else is damaged, unless gaps had to be joined."""
    repaired = 0
    for seed in range(80):
        log = WrittenLog(seed)
        await log.fill(12, trim=log.random.randrange(20), clean=log.random.random() < 0.5, body_bytes=1000)
        records = sorted(log.records)
        hit = set()
        for _ in range(log.random.randrange(1, 5)):
            at = log.random.randrange(records[0], records[-1])
            length = log.random.choice([1, 1, 512, 5000])
            length = min(length, records[-1] - at)
            log.damage(at, length=length)
            hit |= {record for record in records if record < at + length and record + RECORD_HEADER_BYTES + 1000 > at}
        try:
            await log.recover()
        except WalDamaged:
            repaired += 1
            await log.repair()
        kept = await log.recover()
        assert kept.items() <= log.records.items(), f"seed {seed}"
        assert log.without(*hit).items() <= kept.items(), f"seed {seed}: lost more than {hit}"
    assert repaired > 40
