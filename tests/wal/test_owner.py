"""The header's writer: both copies, one after the other, and its behaviour when one of them has another owner."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from anabranch.wal.claim import claim
from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Header, decode_header, encode_header, newest_header
from anabranch.wal.interface import Durable, WalFailed, WalFenced
from anabranch.wal.log import DeltaWal
from anabranch.wal.owner import HeaderWriter, Owner, confirm_owner, uncertainty_of
from anabranch.wal.requests import IoRequest
from anabranch.wal.settings import WalSettings
from tests.support.sim_device import SimDevice, SimDisk

SETTINGS = WalSettings(
    capacity_bytes=RING_POSITION + 64 * PAGE_BYTES,
    block_bytes_max=4 * PAGE_BYTES,
    window_bytes=4 * PAGE_BYTES,
    window_bytes_max=16 * PAGE_BYTES,
    queue_bytes_max=32 * PAGE_BYTES,
    fencing="strict",
)


def disk_of(seed: int = 1) -> SimDisk:
    return SimDisk(SETTINGS.capacity_bytes, Random(seed))


def copies_of(disk: SimDisk) -> list[Header | str]:
    return [decode_header(memoryview(disk.data)[at : at + PAGE_BYTES]) for at in (0, PAGE_BYTES)]


def put(disk: SimDisk, number: int, header: Header) -> None:
    disk.write(number * PAGE_BYTES, memoryview(encode_header(header)), synced=True)


async def claimed(disk: SimDisk, epoch: int = 2) -> Header:
    return (await claim(SimDevice(disk), SETTINGS, Owner(1, epoch, "c"), 1000))[1]


async def test_a_state_is_used_when_both_copies_hold_it() -> None:
    disk = disk_of()
    device = SimDevice(disk)
    seen: list[list[Header | str]] = []
    writer = HeaderWriter(
        device,
        await claimed(disk),
        lambda header: replace(header, trim_offset=5),
        lambda _: seen.append(copies_of(disk)),
        lambda _: None,
    )
    await writer.request()
    assert [copy.trim_offset for copy in seen[0] if isinstance(copy, Header)] == [5, 5]


@pytest.mark.parametrize("number", [0, 1])
async def test_the_loss_of_one_copy_brings_back_no_older_state(number: int) -> None:
    disk = disk_of()
    wal = DeltaWal(SimDevice(disk), SETTINGS, node_id=1, node_epoch=2, now_ms=lambda: 1000)
    async for _ in wal.recover():
        pass
    first = wal.append([b"trimmed"])
    await first.durable
    await wal.append([b"kept"]).durable
    await wal.trim(first.offset)
    disk.data[number * PAGE_BYTES + 30] ^= 1
    following = DeltaWal(SimDevice(disk), SETTINGS, node_id=1, node_epoch=3, now_ms=lambda: 1000)
    assert [bytes(record.body) async for record in following.recover()] == [b"kept"]


@pytest.mark.parametrize("damage", ["flip", "former owner"])
async def test_an_owner_in_doubt_takes_no_more_writes(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is not its own may lie over the claim of a newer owner."""
    monkeypatch.setattr("anabranch.wal.owner._REREAD_S", 0.0)
    disk = disk_of()
    wal = DeltaWal(SimDevice(disk), SETTINGS, node_id=1, node_epoch=2, now_ms=lambda: 1000)
    async for _ in wal.recover():
        pass
    mine = copies_of(disk)[1]
    assert isinstance(mine, Header)
    if damage == "flip":
        disk.data[PAGE_BYTES + 30] ^= 1
    else:
        put(disk, 1, replace(mine, node_epoch=1))
    reason = {
        "flip": "header copy 1 is damaged: header CRC",
        "former owner": "copy 1 was overwritten by a former owner",
    }
    with pytest.raises(WalFailed, match=reason[damage]):
        await wal.append([b"not acked"]).durable
    with pytest.raises(WalFailed, match="restart the node"):
        wal.append([b"not taken"])


async def test_a_copy_read_while_it_is_written_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.wal.owner._REREAD_S", 0.0)
    disk = disk_of()
    own = await claimed(disk)
    torn = bytearray(disk.data[:RING_POSITION])
    torn[30] ^= 1
    decided = Durable()
    confirm_owner(SimDevice(disk), torn, own, decided.complete)
    assert not decided.done
    await decided
    assert decided.error is None


async def test_either_copy_of_a_newer_owner_fences() -> None:
    """Even where the other copy has a higher sequence."""
    disk = disk_of()
    own = await claimed(disk)
    for number in (0, 1):
        copies = bytearray(disk.data[:RING_POSITION])
        copies[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] = encode_header(replace(own, node_epoch=3, sequence=1))
        with pytest.raises(WalFenced, match="claimed by node 1 with epoch 3, this is node 1 with epoch 2"):
            uncertainty_of(copies, own, "sim")
    assert uncertainty_of(bytes(disk.data[:RING_POSITION]), own, "sim") is None


def newest(*headers: Header) -> Header:
    found = newest_header(b"".join(encode_header(header) for header in headers))
    assert found is not None
    return found


async def test_the_newest_state_counts_under_the_newest_owner() -> None:
    own = await claimed(disk_of(), 1)
    written = replace(own, sequence=10, state_sequence=10, trim_offset=7)
    cut_short = replace(own, sequence=9, node_epoch=2, state_sequence=8, catalog_id=bytes([5] * 16))
    for pair in ((written, cut_short), (cut_short, written)):
        found = newest(*pair)
        assert (found.trim_offset, found.node_epoch, found.sequence) == (7, 2, 10)
        assert found.catalog_id == bytes([5] * 16)
    late = replace(own, sequence=99, state_sequence=99, trim_offset=3)
    owned = replace(own, sequence=12, node_epoch=2, state_epoch=2, state_sequence=12, trim_offset=8)
    for pair in ((late, owned), (owned, late)):
        assert (newest(*pair).trim_offset, newest(*pair).node_epoch, newest(*pair).sequence) == (8, 2, 99)


class Undoing(SimDevice):
    """A device on which another node writes its own header over each one that is written."""

    def __init__(self, disk: SimDisk, other: Header) -> None:
        super().__init__(disk)
        self._other = other

    def submit(self, request: IoRequest) -> None:
        done: Callable[[IoRequest], None] = request.done

        def undo(request: IoRequest) -> None:
            if request.segments and request.segments[0][0] < RING_POSITION:
                put(self.disk, request.segments[0][0] // PAGE_BYTES, self._other)
            done(request)

        if request.kind.name == "WRITE":
            request.done = undo
        super().submit(request)


async def test_a_claim_that_is_always_overwritten_gives_up() -> None:
    disk = disk_of()
    other = await claimed(disk, 1)
    with pytest.raises(WalFailed, match="32 claims of the log were overwritten: another node continues to write"):
        await claim(Undoing(disk, other), SETTINGS, Owner(1, 2, "c"), 1000)


async def test_a_claim_gives_way_to_a_higher_epoch() -> None:
    disk = disk_of()
    own = await claimed(disk, 1)
    with pytest.raises(WalFenced, match="claimed with node epoch 3, this node's is 2"):
        await claim(Undoing(disk, replace(own, node_epoch=3)), SETTINGS, Owner(1, 2, "c"), 1000)
