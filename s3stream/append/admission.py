"""Admission: whether the engine, and each of its streams, takes appends, and why not.

This module is the only owner of that question. (`Stream.append` also raises StorageFull if the current block or the
WAL has no room.) The engine as a whole is in one state at a time:

    state    appends                        uploads  next state
    OPEN     taken                          run      FULL, CLOSING, FAILED
    FULL     tried, but clients must wait   run      OPEN, CLOSING, FAILED
    CLOSING  refused                        run      FAILED, CLOSED
    FAILED   refused                        stopped  CLOSED
    CLOSED   refused                        stopped  (none)

FULL means that the WAL had no room for an append; it ends as soon as something was written out or uploaded. The two
levels that rise before that point, uncommitted bytes of the log cache and used bytes of the WAL, are compared with
their limits on each query. In the last three states `error` holds the reason.

In addition, appends are refused while the WAL has stalled, in whatever state (`LogWatch`), and a single stream may
refuse them: see `StreamAdmission`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

from anabranch.s3stream.append.log_cache import LogCache
from anabranch.s3stream.errors import LogStalled, StorageError, StorageStopped, StreamFenced
from anabranch.wal.interface import WriteAheadLog


class AdmissionState(Enum):
    """State of the engine's admission, as described in the module's table."""

    OPEN = auto()
    FULL = auto()
    CLOSING = auto()
    FAILED = auto()
    CLOSED = auto()


NEXT_STATES: Final[Mapping[AdmissionState, frozenset[AdmissionState]]] = {
    AdmissionState.OPEN: frozenset({AdmissionState.FULL, AdmissionState.CLOSING, AdmissionState.FAILED}),
    AdmissionState.FULL: frozenset({AdmissionState.OPEN, AdmissionState.CLOSING, AdmissionState.FAILED}),
    AdmissionState.CLOSING: frozenset({AdmissionState.FAILED, AdmissionState.CLOSED}),
    AdmissionState.FAILED: frozenset({AdmissionState.CLOSED}),
    AdmissionState.CLOSED: frozenset(),
}
UPLOADING: Final = frozenset({AdmissionState.OPEN, AdmissionState.FULL, AdmissionState.CLOSING})
"""States in which blocks are sealed and uploaded."""


class Admission:
    """The engine's admission state, and the callers that wait for room."""

    __slots__ = (
        "_cache",
        "_cache_bytes_max",
        "_stall",
        "_stopped",
        "_waiters",
        "_wal",
        "_wal_bytes_max",
        "error",
        "is_stalled",
        "needs_upload",
        "state",
    )

    def __init__(self, wal: WriteAheadLog, cache: LogCache, *, cache_bytes_max: int, wal_bytes_max: int) -> None:
        """Clients must wait while uncommitted bytes of `cache`, or used bytes of `wal`, exceed their limit."""
        self._wal = wal
        self._cache = cache
        self._cache_bytes_max = cache_bytes_max
        self._wal_bytes_max = wal_bytes_max
        self._waiters: dict[asyncio.Future[None], None] = {}
        """In the order of their arrival, which is the order in which they are woken."""
        self._stopped = asyncio.Event()
        self.state = AdmissionState.OPEN
        """Changed by the methods of this class only."""
        self.error: StorageStopped | None = None
        """Reason for which all appends are refused; None in OPEN and FULL."""
        self.needs_upload = False
        """True in FULL if only an upload makes the room that an append lacked."""
        self.is_stalled = False
        """True while appends are refused because the WAL does not acknowledge what it has taken."""
        self._stall = ""

    # transitions

    def wal_full(self, *, needs_upload: bool = True) -> None:
        """Enter FULL: the WAL had no room for an append. It is written out soon unless it needs an upload."""
        if self.state is AdmissionState.OPEN:
            self._enter(AdmissionState.FULL)
        self.needs_upload |= needs_upload and self.state is AdmissionState.FULL

    def made_room(self) -> None:
        """Leave FULL and wake the waiters: something was written out or uploaded."""
        self.needs_upload = False
        if self.state is AdmissionState.FULL:
            self._enter(AdmissionState.OPEN)
        self._wake()

    def begin_stall(self, reason: str) -> None:
        """Refuse appends with LogStalled, also those of callers that wait for room."""
        self.is_stalled, self._stall = True, reason
        self._wake()

    def end_stall(self) -> None:
        """Take appends again as the state allows."""
        self.is_stalled = False
        self._wake()

    def stalled(self) -> LogStalled:
        """Return the error of an append while the WAL has stalled."""
        return LogStalled(f"{self._stall}: appends are refused until it has caught up")

    def begin_close(self) -> None:
        """Enter CLOSING: refuse appends, continue uploads. Without effect once appends are refused."""
        if self.error is None:
            self._refuse(AdmissionState.CLOSING, StorageStopped("the engine is closing"))

    def fail(self, error: StorageStopped) -> bool:
        """Enter FAILED: refuse appends, stop uploads. Returns False if the engine had failed or closed before."""
        if AdmissionState.FAILED not in NEXT_STATES[self.state]:
            return False
        self._refuse(AdmissionState.FAILED, error)
        return True

    def end_close(self) -> None:
        """Enter CLOSED; the reason of the state before stays."""
        if self.state is not AdmissionState.CLOSED:
            self._enter(AdmissionState.CLOSED)

    def _refuse(self, state: AdmissionState, error: StorageStopped) -> None:
        self._enter(state)
        self.error = error
        self._stopped.set()
        self._wake()

    def _enter(self, state: AdmissionState) -> None:
        assert state in NEXT_STATES[self.state], f"admission never goes from {self.state.name} to {state.name}"
        self.state = state

    # questions

    @property
    def uploads(self) -> bool:
        """True while blocks are sealed and uploaded."""
        return self.state in UPLOADING

    @property
    def is_writable(self) -> bool:
        """True while clients may send more appends."""
        return next(self.obstacles(), None) is None

    def obstacles(self) -> Iterator[str]:
        """Reasons for clients to send no more appends; empty while they may."""
        if self.error is not None:
            yield str(self.error)
        if self.is_stalled:
            yield str(self.stalled())
        if self.state is AdmissionState.FULL:
            yield "the log had no room for an append, and nothing was written out or uploaded since"
        if (uncommitted_bytes := self._cache.uncommitted_bytes) > self._cache_bytes_max:
            yield (
                f"the log cache is full: {uncommitted_bytes} bytes are not in objects yet, and "
                f"{self._cache_bytes_max} is the limit"
            )
        if (used_bytes := self._wal.used_bytes) > self._wal_bytes_max:
            yield (
                f"the log is full: {used_bytes} of its {self._wal.capacity_bytes} bytes hold what is not in objects yet"
            )

    @property
    def cache_room_bytes(self) -> int:
        """Bytes that the log cache takes until clients must wait. Negative if they must."""
        return self._cache_bytes_max - self._cache.uncommitted_bytes

    @property
    def wal_room_bytes(self) -> int:
        """Bytes that the WAL takes until clients must wait. Negative if they must."""
        return self._wal_bytes_max - self._wal.used_bytes

    # waiting

    @property
    def waiting(self) -> int:
        """Number of callers inside `wait_change`."""
        return len(self._waiters)

    async def wait_change(self) -> None:
        """Return after the next change that may have made room. Raises StorageStopped while appends are refused."""
        if self.error is not None:
            raise StorageStopped(str(self.error))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            # During an outage clients give up and return for as long as it lasts: their waiters must not pile up.
            self._waiters.pop(waiter, None)

    async def wait_stopped(self) -> StorageStopped:
        """Return the reason once appends are refused."""
        await self._stopped.wait()
        assert self.error is not None, "the event is set together with the reason"
        return self.error

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class StreamAdmission:
    """Admission of one stream: the error with which its appends are refused, or None.

        refused with                          until
        Discontinuity (recovery)              `accept(Discontinuity)`: its records in the WAL were given up
        an error class of the owner's         the owner's `accept` of that class
        StorageStopped (the stream is closed) never; open it again
        StreamFenced                          never; open it again

    The first refusal stays until it is accepted, except that a fence replaces any other.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: StorageError | None = None
        """Only `refuse` and `accept` change it. An attribute because each request reads it for each partition."""

    def refuse(self, error: StorageError) -> None:
        """Refuse appends with `error`; keep an earlier refusal unless this is a fence."""
        if self.error is None or isinstance(error, StreamFenced):
            self.error = error

    def accept(self, kind: type[StorageError]) -> None:
        """Accept appends again if they are refused with an error of `kind`; keep any other refusal."""
        if isinstance(self.error, kind):
            self.error = None
