"""The engine on io_uring: the event loop hands requests to the kernel itself, and the ring's descriptor wakes it.

No thread and no lock is between the loop and the device. Invariants:

- A request that needs several operations (a short write, the header after a write) submits one at a time, the next when
  the one before is complete. So the header is read after the write it checks.
- The memory of an operation is referenced until its completion was taken: the kernel may write to it until then. An
  engine whose requests never return is therefore kept for the life of the process.
- After `close` nothing is submitted and no `done` is called.
"""

import errno
import os
from array import array
from asyncio import AbstractEventLoop, Future, TimerHandle, get_running_loop, timeout
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Final

from anabranch.wal.block import aligned_buffer
from anabranch.wal.device_raw import adjacent_runs
from anabranch.wal.device_ring import FsyncFlag, Opcode, Ring, Submission, SubmissionFlag, address_of
from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.requests import IoKind, IoRequest

RING_ENTRIES: Final = 128
"""Operations in flight. The log has at most 64 writes, a header write and a few reads: a header write never waits."""
_CLOSE_S: Final = 1.0
_BUSY_S: Final = 0.001
"""Delay before the kernel, which had no memory for a request, is asked again."""
_BUSY: Final = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINTR})
_ATTEMPTS_MAX: Final = 16

_OPEN: Final[set["UringEngine"]] = set()
"""Engines that have begun to submit and are not closed: they own memory that the kernel uses."""


class Operation:
    """One system call's worth of a request: read or write adjacent memory, or flush."""

    __slots__ = ("memory", "submission", "vector")

    def __init__(
        self,
        opcode: Opcode,
        position: int = 0,
        memory: Sequence[memoryview] = (),
        flags: SubmissionFlag = SubmissionFlag.NONE,
    ) -> None:
        self.memory = memory
        self.vector = array("Q", [word for part in memory for word in (address_of(part), len(part))])
        """Array of `struct iovec`."""
        address, _ = self.vector.buffer_info()
        fsync = FsyncFlag.DATASYNC if opcode is Opcode.FSYNC else FsyncFlag.NONE
        self.submission = Submission(opcode, position, address, len(memory), flags, fsync)


Operations = Generator[Operation, int, None]
"""The operations of a request, one after the other. Each result is sent in: an errno, negated, or a number of bytes."""


def operations_of(request: IoRequest) -> Operations:
    """Yield the operations that perform `request`. Raises OSError."""
    if request.kind is IoKind.WRITE:
        for position, run in adjacent_runs(request.segments):
            yield from _transfer(Opcode.WRITEV, "wrote", position, run)
        if request.check_header:
            page = aligned_buffer(RING_POSITION)
            yield from _transfer(Opcode.READV, "read", 0, [page])
            request.header = bytes(page)
    elif request.kind is IoKind.READ:
        for position, data in request.segments:
            yield from _transfer(Opcode.READV, "read", position, [data])
    else:
        yield from _complete(Opcode.FSYNC)


def _transfer(opcode: Opcode, verb: str, position: int, memory: Sequence[memoryview]) -> Operations:
    """Read or write all of `memory`. A short result continues from the page it ended in, as O_DIRECT requires."""
    length, done = sum(map(len, memory)), 0
    while True:
        count = yield from _complete(opcode, position + done, _without(memory, done) if done else memory)
        if done + count == length:
            return
        advanced = (done + count) // PAGE_BYTES * PAGE_BYTES
        if advanced <= done:
            raise OSError(errno.EIO, f"{verb} {count} of {length - done} bytes at position {position + done}")
        done = advanced


def _without(memory: Sequence[memoryview], size_bytes: int) -> list[memoryview]:
    """Return `memory` without its first `size_bytes`."""
    rest = []
    for part in memory:
        if size_bytes < len(part):
            rest.append(part[size_bytes:])
        size_bytes = max(0, size_bytes - len(part))
    return rest


def _complete(opcode: Opcode, position: int = 0, memory: Sequence[memoryview] = ()) -> Generator[Operation, int, int]:
    """Perform one operation and return its number of bytes. Raises OSError.

    One that was interrupted, or that could not wait where it was submitted, had no effect: a kernel worker repeats it.
    """
    flags, result = SubmissionFlag.NONE, 0
    for _ in range(_ATTEMPTS_MAX):
        result = yield Operation(opcode, position, memory, flags)
        if result >= 0:
            return result
        if -result not in {errno.EINTR, errno.EAGAIN}:
            break
        flags = SubmissionFlag.ASYNC
    raise OSError(-result, os.strerror(-result))


class _Flight:
    """A request whose operation is at the kernel, or waits for room. It references the memory that the kernel uses."""

    __slots__ = ("length", "operation", "operations", "request")

    def __init__(
        self,
        request: IoRequest,
        *,
        length: int = 0,
        operations: Operations | None = None,
        operation: Operation | None = None,
    ) -> None:
        self.request = request
        self.length = length
        """Result of a plain write that is complete. Its memory may be released by then: a request can be abandoned."""
        self.operations = operations
        """None for a plain write that was not short: all of one segment."""
        self.operation = operation


class UringEngine:
    """Performs requests on `fd`, a file or device opened with O_DIRECT: others would block the loop in `submit`."""

    def __init__(self, fd: int, ring: Ring) -> None:
        self._fd: Final = fd
        self._ring: Final = ring
        self._queues: Final = ring.queues
        self._loop: AbstractEventLoop | None = None
        self._in_flight: dict[int, _Flight] = {}
        """Operations pushed to the ring and not complete, by their user data."""
        self._waiting: deque[_Flight] = deque()
        """Operations beyond the ring's size."""
        self._user_data = 0
        self._busy_timer: TimerHandle | None = None
        self._closed = False
        self._drained: Future[None] | None = None
        """Set by `close`: done when nothing is in flight."""

    def submit(self, request: IoRequest) -> None:
        """Hand a request to the kernel. After `close` it is ignored."""
        if self._closed:
            return
        if self._loop is None:
            self._start()
        segments = request.segments
        if len(segments) == 1 and request.kind is IoKind.WRITE and not request.check_header:
            # Nearly all writes of a log: one operation, without the generators that cover the other cases.
            self._push(_Flight(request, length=len(segments[0][1])))
            return
        operations = operations_of(request)
        operation = next(operations, None)
        if operation is None:  # nothing to read or write
            assert self._loop is not None, "the engine has started"
            self._loop.call_soon(request.done, request)
        else:
            self._push(_Flight(request, operations=operations, operation=operation))

    def _start(self) -> None:
        self._loop = get_running_loop()
        # Readable while there are completions, so that none can be missed. An eventfd would cost a read per wake-up.
        self._loop.add_reader(self._ring.fd, self._on_ready)
        _OPEN.add(self)

    def _push(self, flight: _Flight) -> None:
        if len(self._in_flight) == self._ring.entries:
            self._waiting.append(flight)
            return
        self._user_data += 1
        self._in_flight[self._user_data] = flight
        if flight.operation is None:
            position, memory = flight.request.segments[0]
            self._queues.write(self._fd, position, memory, self._user_data)
        else:
            self._queues.push(flight.operation.submission, self._fd, self._user_data)
        # At once: to collect the requests of a turn would delay the first by the turn, to save 1 us for each other.
        self._enter()

    def _enter(self) -> None:
        """Submit the pushed operations."""
        if self._busy_timer is not None:
            self._cancel_busy_timer()
        try:
            self._queues.submit()
        except OSError as error:
            assert self._loop is not None, "the engine has started"
            if error.errno in _BUSY:
                self._busy_timer = self._loop.call_later(_BUSY_S, self._enter)
                return
            for user_data in self._queues.withdraw():
                self._loop.call_soon(self._advance, user_data, -(error.errno or errno.EIO))

    def _cancel_busy_timer(self) -> None:
        if self._busy_timer is not None:
            self._busy_timer.cancel()
            self._busy_timer = None

    # --- completions -------------------------------------------------------------------------------------------------

    def _on_ready(self) -> None:
        queues = self._queues
        for _ in range(queues.ready()):
            self._advance(*queues.take())

    def _advance(self, user_data: int, result: int) -> None:
        """Continue a request with the result of its operation."""
        flight = self._in_flight.pop(user_data)
        operations = flight.operations
        if operations is None:
            if result == flight.length:
                self._finish(flight.request)
                return
            # A short write, or an error. The first of the request's operations is the one that has this result.
            operations = flight.operations = operations_of(flight.request)
            next(operations)
        try:
            flight.operation = operations.send(result)
        except StopIteration:
            self._finish(flight.request)
        except OSError as error:
            flight.request.error = error
            self._finish(flight.request)
        else:
            self._push(flight)

    def _finish(self, request: IoRequest) -> None:
        if self._waiting:
            self._push(self._waiting.popleft())
        if not self._in_flight and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        request.done(request)

    async def close(self) -> bool:
        """Wait for the operations in flight; return whether all are complete. A request that hangs is abandoned."""
        self._closed = True
        loop = self._loop
        if loop is not None:
            try:
                await self._drain(loop)
            finally:
                loop.remove_reader(self._ring.fd)
                self._cancel_busy_timer()
            if self._in_flight:
                return False
            _OPEN.discard(self)
        self._ring.close()
        return True

    async def _drain(self, loop: AbstractEventLoop) -> None:
        """Wait until nothing is in flight, for a second at most."""
        if self._in_flight:
            self._drained = loop.create_future()
            with suppress(TimeoutError):
                async with timeout(_CLOSE_S):
                    await self._drained
