"""The fence on a shared device: a claim against a former owner that continues, in every order of their steps.

ANABRANCH_WAL_SEED repeats one of the seeded runs.
"""

import os
from asyncio import Task, create_task, sleep
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest

from anabranch.wal.claim import claim
from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Header, decode_header
from anabranch.wal.interface import OverCapacity, WalError, WalFailed, WalFenced
from anabranch.wal.log import DeltaWal
from anabranch.wal.owner import HeaderWriter, Owner
from anabranch.wal.requests import IoKind
from anabranch.wal.settings import WalSettings
from tests.support.stepped_device import EveryOrder, SteppedDevice, run_steps, settle, take_step

SEEDS = 2_000 if os.environ.get("ANABRANCH_SOAK") else 100
SEED = os.environ.get("ANABRANCH_WAL_SEED")
BATCH = 20
SETTINGS = WalSettings(
    capacity_bytes=RING_POSITION + 64 * PAGE_BYTES,
    block_bytes_max=4 * PAGE_BYTES,
    window_bytes=2 * PAGE_BYTES,
    window_bytes_max=16 * PAGE_BYTES,
    queue_bytes_max=32 * PAGE_BYTES,
    fencing="strict",
)


def first(_count: int) -> int:
    return 0


def copies(disk: bytearray) -> list[Header | str]:
    return [decode_header(disk[at : at + PAGE_BYTES]) for at in (0, PAGE_BYTES)]


async def claimed(device: SteppedDevice, epoch: int, choose: Callable[[int], int] = first) -> tuple[Header, Header]:
    task = create_task(claim(device, SETTINGS, Owner(1, epoch, "c"), 1000))
    await run_steps([device], choose)
    return await task


async def owned_disk() -> tuple[bytes, Header]:
    """A disk with a log of epoch 1, and its header."""
    disk = bytearray(SETTINGS.capacity_bytes)
    _, header = await claimed(SteppedDevice(disk), 1)
    return bytes(disk), header


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("pairs", "whole_reads", "orders_least"), [(1, False, 3000), (2, True, 4000)])
async def test_no_order_of_header_writes_and_a_claim_passes_the_fence(
    pairs: int, whole_reads: bool, orders_least: int
) -> None:
    """The former owner never uses a state that the claim did not find, and its late write undoes no claim."""
    begin, header = await owned_disk()
    orders = EveryOrder()
    more = True
    used_states = fenced = 0
    while more:
        disk = bytearray(begin)
        old, new = (SteppedDevice(disk, whole_reads=whole_reads) for _ in range(2))
        former = FormerOwner(old, header, pairs)
        task = create_task(claim(new, SETTINGS, Owner(1, 2, "c"), 1000))
        await run_steps([old, new], orders.choose)
        found, _ = await task
        assert max(former.used) <= found.trim_offset, f"order {orders.runs}: used {former.used}, found {found}"
        assert any(isinstance(copy, Header) and copy.node_epoch == 2 for copy in copies(disk)), f"order {orders.runs}"
        assert (former.used[-1] == pairs) != isinstance(former.error, WalFenced), f"order {orders.runs}"
        used_states += len(former.used) > 1
        fenced += former.error is not None
        more = orders.next()
    assert orders.runs > orders_least
    assert used_states > 0
    assert fenced > orders.runs / 2


class FormerOwner:
    """Writes a given number of headers, with trim offsets 1, 2 ..., one request after the other."""

    def __init__(self, device: SteppedDevice, header: Header, requests: int) -> None:
        self.used = [header.trim_offset]
        """Trims in the order they were durable."""
        self.error: WalError | None = None
        self._left = requests
        self._writer = HeaderWriter(device, header, self._current, self._flushed, lambda _: None)
        self._request(None)

    def _request(self, error: WalError | None) -> None:
        self.error = error
        if error is None and self._left:
            self._left -= 1
            self._writer.request().add_done_callback(self._request)

    def _current(self, header: Header) -> Header:
        return replace(header, trim_offset=header.trim_offset + 1 if header.trim_offset > 0 else 1)

    def _flushed(self, header: Header) -> None:
        self.used.append(header.trim_offset)


@dataclass(slots=True)
class Claimant:
    """A log on a shared disk that works until it fails or is stopped."""

    disk: bytearray
    epoch: int
    random: Random
    device: SteppedDevice = field(init=False)
    wal: DeltaWal = field(init=False)
    recovered: dict[int, bytes] | None = None
    appended: dict[int, bytes] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    trim_requested: int = -1
    trim_confirmed: int = -1
    stopped: bool = False
    pace: float = 1.0
    """Share of the steps at which the node is awake."""

    def __post_init__(self) -> None:
        self.device = SteppedDevice(self.disk)
        settings = replace(SETTINGS, capacity_bytes=len(self.disk))
        self.wal = DeltaWal(
            self.device, settings, node_id=1, node_epoch=self.epoch, now_ms=lambda: self.epoch, clock=lambda: 0.0
        )

    async def recover(self) -> None:
        """Recover, unless a former owner's late header write leaves it in doubt whose the log is."""
        try:
            self.recovered = {record.offset: bytes(record.body) async for record in self.wal.recover()}
        except WalFailed as error:
            if "was overwritten by a former owner" not in str(error):
                raise

    async def land_blocks(self) -> None:
        """Let the blocks under way land, and go through the check that follows."""
        while blocks := [
            index
            for index, (request, _) in enumerate(self.device.under_way)
            if request.kind is IoKind.WRITE and request.segments[0][0] >= RING_POSITION
        ]:
            self.device.step(blocks[0])
            await settle()

    async def work(self) -> None:
        """Append and trim, a trim and up to 12 appends at a time."""
        random = self.random
        with suppress(WalError):
            while not self.stopped:
                with suppress(OverCapacity):
                    for _ in range(random.randrange(5)):
                        self.append(random.randbytes(random.choice([8, 300, 5000, 13_000])))
                kept = [*(self.recovered or {}), *sorted(self.acked)]
                if kept and random.random() < 0.5:
                    self.trim_requested = max(self.trim_requested, random.choice(kept))
                    trimming = self.trim_requested
                    await self.wal.trim(trimming)
                    self.trim_confirmed = trimming
                await sleep(0)

    def append(self, body: bytes) -> None:
        appended = self.wal.append([body])
        self.appended[appended.offset] = body
        appended.durable.add_done_callback(
            lambda error: self.acked.add(appended.offset) if error is None else None,
        )


async def take_over(seed: int) -> tuple[int, bool]:
    """Let nodes take over from each other while the previous one still works; return acks and if one was fenced.

    A former owner's last header write may land as late as the claim of the owner after the next. So may its blocks, but
    not after the ring has wrapped around to their position.
    """
    random = Random(seed)
    ring_pages = random.choice([64, 1024])
    disk = bytearray(RING_POSITION + ring_pages * PAGE_BYTES)
    nodes: list[Claimant] = []
    at_work: list[Task[None]] = []

    async def steps(most: int, done: Callable[[], bool] = lambda: False) -> None:
        for _ in range(most):
            awake = [node.device for node in nodes if random.random() < node.pace]
            await take_step(awake, random.randrange)
            if done():
                return

    for epoch in range(1, 5):
        for former in nodes[:-1]:
            former.pace = 0.0
        await run_steps([former.device for former in nodes[:-1]], random.randrange)
        node = Claimant(disk, epoch, random)
        nodes.append(node)
        recovering = create_task(node.recover())
        await steps(100_000, recovering.done)
        await recovering
        if ring_pages == 64:
            for former in nodes[:-1]:
                await former.land_blocks()
        at_work.append(create_task(node.work()))
        await steps(random.randrange(150))
        node.pace = random.choice([1.0, 0.5, 0.05, 0.0])
    for node in nodes:
        node.stopped, node.pace = True, 1.0
    await steps(100_000, lambda: all(task.done() for task in at_work))
    await run_steps([node.device for node in nodes], random.randrange)
    last = Claimant(disk, 5, random)
    recovering = create_task(last.recover())
    await run_steps([last.device], random.randrange)
    await recovering
    check([*nodes, last])
    return sum(len(node.acked) for node in nodes), any(isinstance(node.wal.error, WalFenced) for node in nodes)


def check(history: list[Claimant]) -> None:
    """Assert that each node found the records that earlier nodes acked, unchanged, and only records they appended."""
    recovered = [node for node in history if node.recovered is not None]
    trimmed = -1
    for node, following in pairwise(recovered):
        assert node.recovered is not None
        assert following.recovered is not None
        trimmed = max(trimmed, node.trim_requested)
        known = node.recovered | node.appended
        due = {offset for offset in node.acked | node.recovered.keys() if offset > trimmed}
        where = f"from epoch {node.epoch} to {following.epoch}"
        assert due <= following.recovered.keys(), f"{where}: lost {sorted(due - following.recovered.keys())}"
        strange = [offset for offset, body in following.recovered.items() if known.get(offset) != body]
        assert not strange, f"{where}: not known before: {strange}"
        assert all(offset > node.trim_confirmed for offset in following.recovered), f"{where}: trimmed ones came back"


@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(BATCH, SEEDS, BATCH))]
)
async def test_nothing_acked_is_lost_while_nodes_take_over_from_each_other(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.wal.owner._REREAD_S", 0.0)
    acked = fenced = 0
    for seed in [int(SEED)] if SEED else range(batch, batch + BATCH):
        try:
            acks, was_fenced = await take_over(seed)
        except BaseException as error:
            error.add_note(f"repeat with ANABRANCH_WAL_SEED={seed}")
            raise
        acked += acks
        fenced += was_fenced
    assert acked > 0
    assert fenced > 0
