"""A shared disk whose requests advance one step at a time, in the order that a test chooses.

A write takes one step, and each copy of the header is read in a separate step (or both in one, with `whole_reads`). So
a test can run the steps of two owners in every order, or in orders drawn from a seed.
"""

from asyncio import sleep
from collections.abc import Callable, Sequence

from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.requests import IoKind, IoRequest

_TURNS = 3
"""Turns of the loop after which every task waits for a step."""


class SteppedDevice:
    """One opening of `disk`; several share it."""

    def __init__(self, disk: bytearray, *, whole_reads: bool = False, shared: bool = True) -> None:
        self.disk = disk
        self.under_way: list[tuple[IoRequest, list[Callable[[], None]]]] = []
        """Requests and their remaining steps, in the order of submission."""
        self._whole_reads = whole_reads
        self._shared = shared

    @property
    def name(self) -> str:
        return "stepped"

    @property
    def size_bytes(self) -> int:
        return len(self.disk)

    @property
    def description(self) -> str:
        return "stepped"

    @property
    def shared(self) -> bool:
        return self._shared

    async def unwritten(self) -> list[tuple[int, int]]:
        return []

    def submit(self, request: IoRequest) -> None:
        self.under_way.append((request, self._steps(request)))

    def step(self, index: int) -> None:
        """Take the next step of one request; the last one completes it."""
        request, steps = self.under_way[index]
        steps.pop(0)()
        if not steps:
            self.under_way.pop(index)
            request.done(request)

    def complete_flushes(self) -> bool:
        """Complete the flushes under way; returns True if there were any. A finished write is durable without them."""
        flushes = [request for request, steps in self.under_way if not steps]
        self.under_way = [(request, steps) for request, steps in self.under_way if steps]
        for request in flushes:
            request.done(request)
        return bool(flushes)

    async def close(self) -> None:
        """Leave requests under way as they are: they may still complete."""

    def _steps(self, request: IoRequest) -> list[Callable[[], None]]:
        if request.kind is IoKind.FLUSH:
            return []
        if request.kind is IoKind.READ:
            return [
                lambda position=position, data=data: self._read(position, data)  # type: ignore[misc]  # bound early
                for position, data in _pieces(request, whole=self._whole_reads)
            ]
        copies = bytearray(RING_POSITION)

        def land() -> None:
            for position, content in request.segments:
                self.disk[position : position + len(content)] = content

        def check(at: int, length: int) -> None:
            copies[at : at + length] = self.disk[at : at + length]
            request.header = bytes(copies)

        if not request.check_header:
            return [land]
        if self._whole_reads:
            return [land, lambda: check(0, RING_POSITION)]
        return [land, lambda: check(0, PAGE_BYTES), lambda: check(PAGE_BYTES, PAGE_BYTES)]

    def _read(self, position: int, data: memoryview) -> None:
        data[:] = self.disk[position : position + len(data)]


def _pieces(request: IoRequest, *, whole: bool) -> list[tuple[int, memoryview]]:
    """Split a read that begins with both copies of the header between them."""
    pieces = []
    for position, data in request.segments:
        cut = PAGE_BYTES if position == 0 and not whole else len(data)
        pieces.append((position, data[:cut]))
        if cut < len(data):
            pieces.append((position + cut, data[cut:]))
    return pieces


async def settle() -> None:
    """Run the loop until every task waits for a step."""
    for _ in range(_TURNS):
        await sleep(0)


async def take_step(devices: Sequence[SteppedDevice], choose: Callable[[int], int]) -> bool:
    """Take one step of any request of any device; `choose(count)` picks it. Returns False if no step is left."""
    await settle()
    while any(device.complete_flushes() for device in devices):
        await settle()
    choices = [(device, index) for device in devices for index in range(len(device.under_way))]
    if not choices:
        return False
    device, index = choices[choose(len(choices))]
    device.step(index)
    return True


async def run_steps(devices: Sequence[SteppedDevice], choose: Callable[[int], int]) -> None:
    """Take steps until none is left."""
    while await take_step(devices, choose):
        pass
    await settle()


class EveryOrder:
    """Enumerates all sequences of choices: `choose` within a run, `next` between runs."""

    def __init__(self) -> None:
        self.runs = 0
        self._path: list[tuple[int, int]] = []
        self._at = 0

    def choose(self, count: int) -> int:
        """Return this run's choice at this point, out of `count`."""
        if self._at == len(self._path):
            self._path.append((0, count))
        chosen, before = self._path[self._at]
        assert before == count, "a run must be deterministic"
        self._at += 1
        return chosen

    def next(self) -> bool:
        """Advance to the next sequence; returns False when all have run."""
        self.runs += 1
        self._at = 0
        while self._path:
            chosen, count = self._path.pop()
            if chosen + 1 < count:
                self._path.append((chosen + 1, count))
                return True
        return False
