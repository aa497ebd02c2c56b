"""A simulated disk with a volatile cache, driven by a seed: it reorders, delays, tears, loses and refuses.

`SimDisk` is the medium: it survives crashes of the process. A power cut may lose each sector that was not flushed.
`SimDevice` is one opening of it, a `wal.device.Device`: its requests complete on later turns of the loop, in an order
that follows from the seed.
"""

import errno
from asyncio import get_running_loop
from dataclasses import dataclass
from random import Random

from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Magic
from anabranch.wal.requests import IoKind, IoRequest

SECTOR_BYTES = 512


@dataclass(slots=True)
class DeviceFaults:
    """Faults to inject, as probabilities per request unless stated otherwise."""

    write_error: float = 0.0
    """EIO; part of the write may have reached the disk."""
    read_error: float = 0.0
    """EIO, or a short read that the device layer gave up on."""
    read_only_after: int | None = None
    """From this many writes on, every write fails with EROFS: the kernel remounted the disk."""
    cut_after: int | None = None
    """From this many requests on, the power is off: writes under way are torn, nothing completes without error."""
    hang: bool = False
    """No request completes."""


class SimDisk:
    """The medium: reads see `data`, and `stable` survives a power cut."""

    def __init__(
        self, size_bytes: int, random: Random, *, volatile: bool = False, new: bool = False, direct: bool = False
    ) -> None:
        self.random = random
        self.direct = direct
        """True if a write is durable when it completes, but that a page is no longer unwritten only after a flush."""
        self.unwritten = set(range(size_bytes // PAGE_BYTES)) if new else set[int]()
        """Pages that a file system would report as never written."""
        self.converting: set[int] = set()
        """Pages written once, which a power cut may turn into unwritten ones again: they then read as zeros."""
        self.volatile = volatile
        """True if a completed write stays in the cache until a flush (a device used with `durability=direct`)."""
        self.data = bytearray(size_bytes)
        self.stable = bytearray(size_bytes)
        self.dirty: set[int] = set()
        """Sectors of `data` that are not in `stable` yet."""

    def write(self, position: int, content: memoryview, *, synced: bool) -> None:
        end = position + len(content)
        assert position % SECTOR_BYTES == end % SECTOR_BYTES == 0, "unaligned write"
        self.data[position:end] = content
        pages = set(range(position // PAGE_BYTES, -(-end // PAGE_BYTES))) & self.unwritten
        self.unwritten -= pages
        if self.direct or not synced:
            self.converting |= pages
        sectors = range(position // SECTOR_BYTES, end // SECTOR_BYTES)
        if synced:
            self.stable[position:end] = content
            self.dirty.difference_update(sectors)
        else:
            self.dirty.update(sectors)

    def flush(self) -> None:
        for sector in self.dirty:
            at = sector * SECTOR_BYTES
            self.stable[at : at + SECTOR_BYTES] = self.data[at : at + SECTOR_BYTES]
        self.dirty.clear()
        self.converting.clear()

    def tear(self, position: int, content: memoryview) -> None:
        """Write some sectors of a write to the cache: none, all, a prefix or any subset."""
        sectors = range(0, len(content), SECTOR_BYTES)
        match self.random.randrange(4):
            case 0:
                chosen = []
            case 1:
                chosen = list(sectors)
            case 2:
                chosen = list(sectors[: self.random.randrange(len(sectors) + 1)])
            case _:
                chosen = [at for at in sectors if self.random.random() < 0.5]
        for at in chosen:
            self.write(position + at, content[at : at + SECTOR_BYTES], synced=False)

    def power_cut(self) -> None:
        """Lose or keep each unflushed sector at random."""
        for sector in sorted(self.dirty):
            at = sector * SECTOR_BYTES
            if self.random.random() < 0.5:
                self.stable[at : at + SECTOR_BYTES] = self.data[at : at + SECTOR_BYTES]
        for page in sorted(self.converting):
            if self.random.random() < 0.5:
                self.stable[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
                self.unwritten.add(page)
        self.data[:] = self.stable
        self.dirty.clear()
        self.converting.clear()


class SimDevice:
    """One opening of a `SimDisk`."""

    def __init__(
        self,
        disk: SimDisk,
        faults: DeviceFaults | None = None,
        *,
        name: str = "sim",
        shared: bool = False,
        in_order: bool = True,
    ) -> None:
        self.disk = disk
        self.faults = faults or DeviceFaults()
        self.requests = 0
        self.writes = 0
        self.closed = False
        self.zeroed = 0
        """Writes of zeros ahead of the records."""
        self.under_way: list[IoRequest] = []
        self.hold_blocks = 0
        """Number of the next writes into the ring that are held back until `release`."""
        self.held: list[IoRequest] = []
        self.in_order = in_order
        """Check that zeros go where nothing was written, and records where zeros were."""
        self.disordered: list[tuple[int, str]] = []
        """Writes that broke this rule: position and content."""
        self._name = name
        self._shared = shared
        self._scheduled = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return len(self.disk.data)

    @property
    def description(self) -> str:
        return "simulated"

    @property
    def shared(self) -> bool:
        return self._shared

    async def unwritten(self) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for page in sorted(self.disk.unwritten):
            start = page * PAGE_BYTES
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, (page + 1) * PAGE_BYTES))
        return ranges

    def submit(self, request: IoRequest) -> None:
        if self.in_order and request.kind is IoKind.WRITE and request.segments[0][0] >= RING_POSITION:
            self._check_order(request)
        if self.hold_blocks and request.kind is IoKind.WRITE and request.segments[0][0] >= RING_POSITION:
            self.hold_blocks -= 1
            self.held.append(request)
            return
        self.under_way.append(request)
        self._schedule()

    def _check_order(self, request: IoRequest) -> None:
        """Check that zeros go to pages that were never written, and records (not a skip record) to others."""
        first = request.segments[0][1]
        zeros = not any(bytes(content).strip(b"\0") for _, content in request.segments)
        self.zeroed += zeros
        for position, content in request.segments:
            pages = set(range(position // PAGE_BYTES, (position + len(content)) // PAGE_BYTES))
            if zeros:
                sound = pages <= self.disk.unwritten
            else:
                skip = int.from_bytes(first[:4], "little") == Magic.SKIP
                sound = skip or (pages.isdisjoint(self.disk.unwritten) and pages.isdisjoint(self.disk.converting))
            if not sound:
                self.disordered.append((position, "zeros" if zeros else "records"))

    def release(self) -> None:
        """Submit the writes that were held back."""
        self.under_way += self.held
        self.held.clear()
        self._schedule()

    async def close(self) -> None:
        self.crash()

    def crash(self) -> None:
        """Kill the process: writes under way are torn in the disk's cache, and no callback runs after this."""
        self.closed = True
        for request in self.under_way:
            self._tear(request)
        self.under_way.clear()

    def _schedule(self) -> None:
        if not self._scheduled and not self.closed and not self.faults.hang:
            self._scheduled = True
            get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """Complete some of the requests under way, in any order."""
        self._scheduled = False
        random = self.disk.random
        while self.under_way and not self.closed:
            if random.random() < 0.4:
                break
            request = self.under_way.pop(random.randrange(len(self.under_way)))
            self._perform(request)
            self._complete(request)
        if self.under_way:
            self._schedule()

    def _complete(self, request: IoRequest) -> None:
        request.done(request)

    def _perform(self, request: IoRequest) -> None:
        faults, random = self.faults, self.disk.random
        self.requests += 1
        if faults.cut_after is not None and self.requests > faults.cut_after:
            self._tear(request)
            request.error = OSError(errno.ENODEV, "power cut")
        elif request.kind is IoKind.FLUSH:
            self.disk.flush()
        elif request.kind is IoKind.READ:
            self._read(request)
        else:
            self.writes += 1
            if faults.read_only_after is not None and self.writes > faults.read_only_after:
                request.error = OSError(errno.EROFS, "Read-only file system")
            elif random.random() < faults.write_error:
                self._tear(request)
                request.error = OSError(errno.EIO, "Input/output error")
            else:
                for position, content in request.segments:
                    self.disk.write(position, content, synced=not self.disk.volatile)
                if request.check_header:
                    request.header = bytes(self.disk.data[:RING_POSITION])

    def _read(self, request: IoRequest) -> None:
        if self.disk.random.random() < self.faults.read_error:
            request.error = OSError(errno.EIO, "short read")
            return
        for position, buffer in request.segments:
            buffer[:] = self.disk.data[position : position + len(buffer)]

    def _tear(self, request: IoRequest) -> None:
        if request.kind is IoKind.WRITE:
            for position, content in request.segments:
                self.disk.tear(position, content)
