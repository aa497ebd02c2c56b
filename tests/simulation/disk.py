"""The log's disk of a simulated node: requests take time on the virtual clock, and outlive a paused process."""

from collections.abc import Callable
from contextvars import Context, copy_context
from pathlib import Path
from random import Random

from anabranch.wal.interface import WalInUse
from anabranch.wal.requests import Device, IoRequest
from anabranch.wal.settings import WalSettings
from tests.simulation.loop import PROCESS, SimLoop
from tests.support.sim_device import DeviceFaults, SimDevice, SimDisk

WRITE_S = (0.0001, 0.001)
"""Time until some of the requests under way complete."""
STALL_SHARE = 0.002
STALL_S = (0.05, 2.0)


class SimLogDevice(SimDevice):
    """One opening of a disk by a simulated process."""

    def __init__(self, disk: SimDisk, faults: DeviceFaults, loop: SimLoop, random: Random) -> None:
        super().__init__(disk, faults, name="log")
        self._loop = loop
        self._times = random
        self._context = copy_context()
        process = PROCESS.get()
        assert process is not None
        process.ended.append(self.crash)

    def _schedule(self) -> None:
        if self._scheduled or self.closed or self.faults.hang:
            return
        self._scheduled = True
        stall = self._times.random() < STALL_SHARE
        # The disk works on while the process is paused: this is no callback of the process.
        self._loop.call_later(self._times.uniform(*(STALL_S if stall else WRITE_S)), self._step, context=Context())

    def go_on(self) -> None:
        """Complete what is under way, after `faults.hang` has ended."""
        if self.under_way and not self.closed:
            self._schedule()

    def _complete(self, request: IoRequest) -> None:
        self._loop.call_soon(request.done, request, context=self._context)


class SimLogFiles:
    """The disks of a machine, by path. A disk outlives its process; a power cut may take what was not flushed."""

    def __init__(self, loop: SimLoop, random: Random, *, volatile: Callable[[], bool]) -> None:
        self._loop = loop
        self._random = random
        self._volatile = volatile
        self.disks: dict[Path, SimDisk] = {}
        self.faults = DeviceFaults()
        """Faults of devices opened from now on."""
        self.open_device: SimLogDevice | None = None
        self._openings: list[SimLogDevice] = []

    def exists(self, path: Path) -> bool:
        return path in self.disks

    def open(self, path: Path, settings: WalSettings, *, create: bool, exclusive: bool = True) -> Device:
        if exclusive and self.is_open:
            raise WalInUse(f"{path}: in use")
        disk = self.disks.get(path)
        if disk is None:
            assert create
            disk = SimDisk(settings.capacity_bytes, self._random, new=True, direct=not self._volatile(), volatile=False)
            self.disks[path] = disk
        self.open_device = SimLogDevice(disk, self.faults, self._loop, self._random)
        self._openings = [*(each for each in self._openings if not each.closed), self.open_device]
        return self.open_device

    @property
    def is_open(self) -> bool:
        """True if a process has the newest opening."""
        return self.open_device is not None and not self.open_device.closed

    def hang(self, *, hangs: bool) -> None:
        """Let the disks complete no request, or all of them again, also those of a node that another one recovers."""
        self.faults.hang = hangs
        if not hangs:
            for device in self._openings:
                device.go_on()

    def share(self) -> None:
        """Let another machine open the disks while a process of this one has them open."""
        self.open_device = None

    def power_cut(self) -> None:
        """Lose what was not flushed. No process may be running."""
        for disk in self.disks.values():
            disk.power_cut()
