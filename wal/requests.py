"""Requests to a device, which complete by callback, and the protocol that devices implement."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from anabranch.wal.interface import Durable, WalFailed


class IoKind(Enum):
    """Kind of a request."""

    READ = 1
    WRITE = 2
    FLUSH = 3


Segment = tuple[int, memoryview]
"""Position on the device and aligned memory to write from or read into."""


class IoRequest:
    """A request for segments, in order. `done` is called on the event loop's thread, with `error` set or None."""

    __slots__ = ("check_header", "done", "error", "header", "kind", "segments")

    def __init__(
        self,
        kind: IoKind,
        segments: Sequence[Segment],
        done: Callable[["IoRequest"], None],
        *,
        check_header: bool = False,
    ) -> None:
        self.kind = kind
        self.segments = segments
        self.done = done
        self.check_header = check_header
        """Read both header copies after the write into `header`, where a former owner detects that it was fenced."""
        self.header: bytes | None = None
        self.error: OSError | None = None


class Device(Protocol):
    """A device under a log. A write that completed without error is as durable as `description` says."""

    @property
    def name(self) -> str:
        """Path, for messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Usable size."""
        ...

    @property
    def description(self) -> str:
        """Kind of device, flags and the guarantee in force, for messages."""
        ...

    @property
    def shared(self) -> bool:
        """True if another host might have the device attached."""
        ...

    async def unwritten(self) -> Sequence[tuple[int, int]]:
        """Return the ranges of positions, start and end, in order, that were never written: they read as zeros.

        They exist in files only. A write there is durable only after a flush, even on a device that needs none.
        """
        ...

    def submit(self, request: IoRequest) -> None:
        """Start a request; its `done` runs on a later turn of the loop. Requests may complete in any order."""
        ...

    async def close(self) -> None:
        """Release the device. No request may be in flight unless the log failed."""
        ...


class Engine(Protocol):
    """Mechanism that performs the requests of a device."""

    def submit(self, request: IoRequest) -> None:
        """Start a request: see `Device.submit`."""
        ...

    async def close(self) -> bool:
        """Complete what is in flight; return whether all of it is complete. No `done` is called afterwards.

        A request that hangs on the device is abandoned after a few seconds, and its memory stays referenced.
        """
        ...


async def perform(device: Device, kind: IoKind, segments: Sequence[Segment] = ()) -> None:
    """Submit one request and wait for it. Raises WalFailed."""
    durable = Durable()
    error: list[OSError] = []

    def done(request: IoRequest) -> None:
        if request.error is not None:
            error.append(request.error)
        durable.complete()

    device.submit(IoRequest(kind, segments, done))
    await durable
    if error:
        where = f" at position {segments[0][0]}" if segments else ""
        raise WalFailed(f"{device.name}: {kind.name.lower()}{where} failed: {error[0]}") from error[0]
