"""The engine on io_uring: continued and repeated operations, errors, limits, and requests that never return."""

import asyncio
import ctypes
import errno
import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import unpack
from typing import Any, Final, NamedTuple, cast

import pytest

import anabranch.wal.device_uring
from anabranch.wal.block import aligned_buffer, aligned_memory
from anabranch.wal.device import FileDevice, OpenedDevice, open_device
from anabranch.wal.device_engine import ChosenEngine
from anabranch.wal.device_ring import FsyncFlag, Opcode, Queues, Ring, Submission, SubmissionFlag, address_of
from anabranch.wal.device_uring import Operation, UringEngine, operations_of
from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.interface import Durable, WalFailed
from anabranch.wal.log import DeltaWal
from anabranch.wal.requests import IoKind, IoRequest, Segment
from anabranch.wal.settings import WalSettings
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("native")

MIB = 1 << 20
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True, engine="io_uring")


# --- the operations of a request, with results that a kernel seldom gives ---------------------------------------------


def pages(content: bytes) -> memoryview:
    buffer = aligned_buffer(len(content) * PAGE_BYTES)
    for number, byte in enumerate(content):
        buffer[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] = bytes([byte]) * PAGE_BYTES
    return buffer


def request_of(kind: IoKind, segments: list[Segment], *, check_header: bool = False) -> IoRequest:
    return IoRequest(kind, segments, lambda _: None, check_header=check_header)


class FakeKernel:
    """Performs operations on `disk`, at the addresses that the kernel would get; `results` says how many bytes."""

    def __init__(self, *results: int) -> None:
        self.disk = bytearray(b"d" * 10 * PAGE_BYTES)
        self.results = list(results)
        self.seen: list[tuple[Opcode, int, int, SubmissionFlag]] = []
        """Operation, position, bytes, flags."""

    def perform(self, request: IoRequest) -> None:
        operations = operations_of(request)
        with suppress(StopIteration):
            operation = next(operations)
            while True:
                operation = operations.send(self._result(operation))

    def _result(self, operation: Operation) -> int:
        opcode, position, address, count, flags, _ = operation.submission
        vector = unpack(f"{2 * count}Q", ctypes.string_at(address, 16 * count))
        parts = [(vector[at], vector[at + 1]) for at in range(0, 2 * count, 2)]
        length = sum(size for _, size in parts)
        self.seen.append((opcode, position, length, flags))
        result = self.results.pop(0) if self.results else length
        left = result
        for start, part_bytes in parts:
            size = max(0, min(part_bytes, left))
            if opcode is Opcode.WRITEV:
                self.disk[position : position + size] = ctypes.string_at(start, size)
            else:
                ctypes.memmove(start, bytes(self.disk[position : position + size]), size)
            position += size
            left -= size
        return result


def test_neighbouring_segments_share_an_operation() -> None:
    kernel = FakeKernel()
    kernel.perform(
        request_of(
            IoKind.WRITE, [(PAGE_BYTES, pages(b"a")), (2 * PAGE_BYTES, pages(b"bc")), (6 * PAGE_BYTES, pages(b"e"))]
        )
    )
    assert bytes(kernel.disk[::PAGE_BYTES]) == b"dabcddeddd"
    assert [(position, length) for _, position, length, _ in kernel.seen] == [
        (PAGE_BYTES, 3 * PAGE_BYTES),
        (6 * PAGE_BYTES, PAGE_BYTES),
    ]


def test_a_short_write_continues_from_a_whole_page() -> None:
    kernel = FakeKernel(PAGE_BYTES + 512, 2 * PAGE_BYTES + 1)
    kernel.perform(request_of(IoKind.WRITE, [(PAGE_BYTES, pages(b"ab")), (3 * PAGE_BYTES, pages(b"cef"))]))
    assert bytes(kernel.disk[::PAGE_BYTES]) == b"dabcefdddd"
    assert [(position // PAGE_BYTES, length // PAGE_BYTES) for _, position, length, _ in kernel.seen] == [
        (1, 5),
        (2, 4),
        (4, 2),
    ]


def test_a_short_read_continues_from_a_whole_page() -> None:
    kernel = FakeKernel(PAGE_BYTES, 100 + PAGE_BYTES)
    kernel.disk[: 4 * PAGE_BYTES] = bytes(pages(b"abce"))
    back = aligned_buffer(4 * PAGE_BYTES)
    kernel.perform(request_of(IoKind.READ, [(0, back)]))
    assert bytes(back) == bytes(pages(b"abce"))
    assert [position // PAGE_BYTES for _, position, _, _ in kernel.seen] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "result", "text"),
    [
        (IoKind.WRITE, 100, r"\[Errno 5\] wrote 100 of 8192 bytes at position 4096"),
        (IoKind.READ, 0, r"\[Errno 5\] read 0 of 8192 bytes at position 4096"),
        (IoKind.WRITE, -errno.ENOSPC, r"\[Errno 28\] No space left on device"),
        (IoKind.WRITE, -errno.ECANCELED, r"\[Errno 125\] Operation canceled"),
        (IoKind.FLUSH, -errno.EIO, r"\[Errno 5\] Input/output error"),
    ],
)
def test_errors_have_the_texts_of_the_threads(kind: IoKind, result: int, text: str) -> None:
    kernel = FakeKernel(result)
    with pytest.raises(OSError, match=text):
        kernel.perform(request_of(kind, [(PAGE_BYTES, pages(b"ab"))], check_header=True))
    assert len(kernel.seen) == 1, "nothing follows"


def test_an_interrupted_operation_is_repeated_where_it_may_wait() -> None:
    kernel = FakeKernel(-errno.EINTR, -errno.EAGAIN, PAGE_BYTES)
    kernel.perform(request_of(IoKind.WRITE, [(PAGE_BYTES, pages(b"ab"))]))
    assert bytes(kernel.disk[::PAGE_BYTES]) == b"dabddddddd"
    assert [(position // PAGE_BYTES, flags) for _, position, _, flags in kernel.seen] == [
        (1, SubmissionFlag.NONE),
        (1, SubmissionFlag.ASYNC),
        (1, SubmissionFlag.ASYNC),
        (2, SubmissionFlag.NONE),
    ]
    kernel = FakeKernel(*[-errno.EAGAIN] * 100)
    with pytest.raises(BlockingIOError):
        kernel.perform(request_of(IoKind.WRITE, [(PAGE_BYTES, pages(b"ab"))]))
    assert len(kernel.seen) < 100


def test_the_header_is_read_when_the_whole_write_is_complete() -> None:
    kernel = FakeKernel(PAGE_BYTES)
    request = request_of(IoKind.WRITE, [(3 * PAGE_BYTES, pages(b"ab"))], check_header=True)
    kernel.perform(request)
    assert [(opcode, position // PAGE_BYTES, length // PAGE_BYTES) for opcode, position, length, _ in kernel.seen] == [
        (Opcode.WRITEV, 3, 2),
        (Opcode.WRITEV, 4, 1),
        (Opcode.READV, 0, RING_POSITION // PAGE_BYTES),
    ]
    assert request.header == b"d" * RING_POSITION


def test_a_flush_is_of_data_only() -> None:
    operation = next(operations_of(request_of(IoKind.FLUSH, [])))
    assert operation.submission.opcode is Opcode.FSYNC
    assert operation.submission.fsync is FsyncFlag.DATASYNC


# --- on the kernel ---------------------------------------------------------------------------------------------------


class Pipes(NamedTuple):
    """Two pipes, as reading and writing descriptor: a read of the empty one and a write to the full one hang."""

    empty: tuple[int, int]
    full: tuple[int, int]


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes(os.pipe(), os.pipe())
    os.set_blocking(made.full[1], False)
    with suppress(BlockingIOError):
        while os.write(made.full[1], bytes(1 << 16)):
            pass
    os.set_blocking(made.full[1], True)
    yield made
    for fd in (*made.empty, *made.full):
        os.close(fd)


async def perform_all(engine: UringEngine, requests: list[IoRequest]) -> None:
    """Submit all, and wait until each is done."""
    done = Durable()
    left = len(requests)

    def count(_: IoRequest) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.complete()

    for request in requests:
        request.done = count
        engine.submit(request)
    assert left == len(requests), "done is called on a later turn"
    await done


class FaultyQueues:
    """Queues of a ring whose kernel refuses, or works on another descriptor."""

    def __init__(self, queues: Queues) -> None:
        self.queues: Final = queues
        self.refusals: list[int] = []
        """Errors of the next calls of `submit`."""
        self.instead: int | None = None
        """Descriptor that operations go to."""
        self.results: list[int] = []
        """Results of the next operations, instead of the real ones."""
        self.pushes: list[Submission] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queues, name)

    def push(self, submission: Submission, fd: int, user_data: int) -> None:
        self.pushes.append(submission)
        self.queues.push(submission, fd if self.instead is None else self.instead, user_data)

    def write(self, fd: int, position: int, memory: memoryview, user_data: int) -> None:
        self.pushes.append(Submission(Opcode.WRITE, position, address_of(memory), len(memory)))
        self.queues.write(fd if self.instead is None else self.instead, position, memory, user_data)

    def submit(self) -> None:
        if self.queues.pushed and self.refusals:
            code = self.refusals.pop(0)
            raise OSError(code, os.strerror(code))
        self.queues.submit()

    def take(self) -> tuple[int, int]:
        user_data, result = self.queues.take()
        return user_data, self.results.pop(0) if self.results else result


class FaultyRing(Ring):
    """A ring with such queues."""

    def __init__(self) -> None:
        super().__init__(8)
        self.faults: Final = FaultyQueues(self.queues)
        self.queues = cast("Queues", self.faults)


@pytest.fixture
def ring(io_uring: None) -> Iterator[FaultyRing]:
    yield (made := FaultyRing())
    with suppress(OSError, ValueError):
        made.close()


class OpenFile(NamedTuple):
    """A file of 4 MiB for a log, with an engine on it."""

    fd: int
    device: FileDevice
    engine: UringEngine


@pytest.fixture
async def file(ring: FaultyRing, tmp_path: Path) -> OpenFile:
    path = tmp_path / "wal"
    await open_device(path, SETTINGS).close()
    fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
    engine = UringEngine(fd, ring)
    opened = OpenedDevice(fd, path, 4 * MIB, block_device=False, direct=True, synced=True, why="a test")
    return OpenFile(fd, FileDevice(opened, ChosenEngine(engine, "io_uring")), engine)


@pytest.mark.usefixtures("io_uring")
async def test_requests_beyond_the_ring_wait_for_room(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes(pages(bytes([number]))) for number in range(100)))
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    engine = UringEngine(fd, Ring(4))
    buffers = [aligned_buffer(PAGE_BYTES) for _ in range(100)]
    requests = [request_of(IoKind.READ, [(number * PAGE_BYTES, buffer)]) for number, buffer in enumerate(buffers)]
    await perform_all(engine, requests)
    assert [buffer[0] for buffer in buffers] == list(range(100))
    assert not any(request.error for request in requests)
    assert await engine.close()
    os.close(fd)


async def test_a_request_without_segments_is_done_on_a_later_turn(file: OpenFile) -> None:
    await perform_all(file.engine, [request_of(IoKind.WRITE, []), request_of(IoKind.READ, [])])
    await file.device.close()


async def test_a_write_completes_whose_memory_was_given_back(file: OpenFile) -> None:
    memory = aligned_buffer(PAGE_BYTES)
    request = request_of(IoKind.WRITE, [(RING_POSITION, view := memory[:])])
    performed = asyncio.ensure_future(perform_all(file.engine, [request]))
    await asyncio.sleep(0)
    view.release()
    await performed
    assert request.error is None
    await file.device.close()


async def test_an_error_in_a_callback_does_not_hold_up_other_requests(file: OpenFile) -> None:
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))

    def fail(_: IoRequest) -> None:
        raise AssertionError("a bug")

    engine = file.engine
    for _ in range(3):
        engine.submit(IoRequest(IoKind.READ, [(0, aligned_buffer(PAGE_BYTES))], fail))
    await perform_all(engine, [request_of(IoKind.READ, [(0, aligned_buffer(PAGE_BYTES))])])
    await until(lambda: len(failed) == 3)
    await file.device.close()


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EBUSY, errno.EINTR])
async def test_a_kernel_without_memory_is_asked_again(file: OpenFile, ring: FaultyRing, code: int) -> None:
    engine = file.engine
    ring.faults.refusals = [code] * 6
    requests = [request_of(IoKind.WRITE, [((2 + number) * PAGE_BYTES, pages(bytes([number])))]) for number in range(3)]
    await perform_all(engine, requests)
    assert not any(request.error for request in requests)
    back = aligned_buffer(3 * PAGE_BYTES)
    await perform_all(engine, [request_of(IoKind.READ, [(2 * PAGE_BYTES, back)])])
    assert bytes(back[::PAGE_BYTES]) == bytes([0, 1, 2])
    await file.device.close()


async def test_a_kernel_that_refuses_fails_the_requests(file: OpenFile, ring: FaultyRing) -> None:
    engine = file.engine
    ring.faults.refusals = [errno.EPERM] * 2
    requests = [request_of(IoKind.WRITE, [(2 * PAGE_BYTES, pages(b"x"))], check_header=True) for _ in range(2)]
    await perform_all(engine, requests)
    assert [error and error.errno for error in (request.error for request in requests)] == [errno.EPERM] * 2
    back = aligned_buffer(PAGE_BYTES)
    await perform_all(engine, [request_of(IoKind.READ, [(2 * PAGE_BYTES, back)])])
    assert back[0] == 0, "what was refused is not written later"
    await file.device.close()


@pytest.mark.parametrize(
    ("result", "continued_from", "code"),
    [
        (4 * PAGE_BYTES, None, None),
        (PAGE_BYTES, 1, None),
        (2 * PAGE_BYTES + 512, 2, None),
        (0, None, errno.EIO),
        (512, None, errno.EIO),
        (-errno.EAGAIN, 0, None),
        (-errno.EINTR, 0, None),
        (-errno.ECANCELED, None, errno.ECANCELED),
        (-errno.EIO, None, errno.EIO),
    ],
)
async def test_a_plain_write_continues_as_any_other(
    file: OpenFile, ring: FaultyRing, result: int, continued_from: int | None, code: int | None
) -> None:
    data = pages(b"abcd")
    request = request_of(IoKind.WRITE, [(5 * PAGE_BYTES, data)])
    ring.faults.pushes.clear()
    ring.faults.results = [result]
    await perform_all(file.engine, [request])
    assert (request.error and request.error.errno) == code
    first, *rest = ring.faults.pushes
    assert (first.opcode, first.position, first.length) == (Opcode.WRITE, 5 * PAGE_BYTES, len(data))
    expected = [] if continued_from is None else [(Opcode.WRITEV, (5 + continued_from) * PAGE_BYTES)]
    assert [(submission.opcode, submission.position) for submission in rest] == expected
    assert {submission.flags for submission in rest} <= {SubmissionFlag.ASYNC if result < 0 else SubmissionFlag.NONE}
    back = aligned_buffer(6 * PAGE_BYTES)
    await perform_all(file.engine, [request_of(IoKind.READ, [(4 * PAGE_BYTES, back)])])
    assert bytes(back[::PAGE_BYTES]) == b"\0abcd\0"
    await file.device.close()


async def test_close_waits_for_what_is_in_flight(file: OpenFile) -> None:
    engine = file.engine
    done: list[IoRequest] = []
    for number in range(300):
        engine.submit(IoRequest(IoKind.WRITE, [(2 * PAGE_BYTES, pages(b"x"))], done.append, check_header=number < 20))
    assert await engine.close()
    assert len(done) == 300
    assert not any(request.error for request in done)


async def test_nothing_is_submitted_after_close(file: OpenFile, tmp_path: Path) -> None:
    await perform_all(file.engine, [request_of(IoKind.READ, [(0, aligned_buffer(PAGE_BYTES))])])
    await file.device.close()
    done: list[IoRequest] = []
    with (tmp_path / "other").open("w+b") as other:  # it gets a descriptor that was the log's
        file.device.submit(IoRequest(IoKind.WRITE, [(0, pages(b"x"))], done.append))
        await asyncio.sleep(0)
        assert os.fstat(other.fileno()).st_size == 0
    assert done == []


class Hanging:
    """An engine on a pipe with a read that does not return, and that read's memory."""

    def __init__(self, reading: int, ring: FaultyRing) -> None:
        self.engine = UringEngine(reading, ring)
        memory = aligned_memory(PAGE_BYTES)
        self.memory = weakref.ref(memory)
        self.done: list[IoRequest] = []
        self.engine.submit(IoRequest(IoKind.READ, [(0, memoryview(memory))], self.done.append))

    def forget(self) -> None:
        """Drop the engine, as the log does."""
        del self.engine
        gc.collect()

    def returns(self, writing: int, ring: FaultyRing) -> bytes:
        """Let the read return at last; return what it put into its memory."""
        os.write(writing, b"late")
        while not ring.queues.ready():
            os.getppid()  # completions are posted on the way out of a system call
        memory = self.memory()
        assert memory is not None
        return memory[:4]


@pytest.mark.slow
@pytest.mark.usefixtures("io_uring")
async def test_close_abandons_a_request_that_hangs_and_its_memory_stays(
    pipes: Pipes, ring: FaultyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anabranch.wal.device_uring, "_CLOSE_S", 0.05)
    hanging = Hanging(pipes.empty[0], ring)
    assert not await hanging.engine.close()
    hanging.forget()
    assert hanging.returns(pipes.empty[1], ring) == b"late"
    await asyncio.sleep(0)
    assert hanging.done == []


@pytest.mark.slow
@pytest.mark.usefixtures("io_uring")
def test_the_memory_of_a_request_outlives_its_loop(pipes: Pipes, ring: FaultyRing) -> None:
    async def main() -> Hanging:
        return Hanging(pipes.empty[0], ring)

    hanging = asyncio.run(main())
    hanging.forget()
    assert hanging.returns(pipes.empty[1], ring) == b"late"


@pytest.mark.slow
@pytest.mark.usefixtures("io_uring")
async def test_a_cancelled_close_abandons_what_hangs(pipes: Pipes, ring: FaultyRing) -> None:
    hanging = Hanging(pipes.empty[0], ring)
    closing = asyncio.ensure_future(hanging.engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    assert closing.cancelled()
    hanging.forget()
    assert hanging.returns(pipes.empty[1], ring) == b"late"
    await asyncio.sleep(0)
    assert hanging.done == []


async def test_a_log_whose_device_hangs_times_out_and_closes(
    file: OpenFile, ring: FaultyRing, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anabranch.wal.device_uring, "_CLOSE_S", 0.05)
    log = DeltaWal(file.device, replace(SETTINGS, write_timeout_ms=1_000), node_id=1, node_epoch=1, now_ms=lambda: 5)
    assert [record async for record in log.recover()] == []
    await log.append([b"kept"]).durable  # on a real disk
    ring.faults.instead = pipes.full[1]
    with pytest.raises(WalFailed, match="took longer than 1000 ms"):
        await log.append([b"hangs"]).durable
    await log.close()
    os.close(file.fd)  # it is open: the kernel may still write to it
    again = DeltaWal(open_device(Path(log.device.name), SETTINGS), SETTINGS, node_id=1, node_epoch=2, now_ms=lambda: 5)
    assert [bytes(record.body) async for record in again.recover()] == [b"kept"]
    await again.close()
