"""The writer of log lines: the node never waits for it, also when the output is blocked."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from anabranch.broker.node.logging.writer import WAITING_BYTES_MAX, LineWriter

WAIT_S = 60


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def read_until(fd: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = os.read(fd, 1 << 16)
        assert piece
        data += piece
    return data


def test_lines_come_in_order(pipe: tuple[int, int]) -> None:
    writer = LineWriter(pipe[1])
    for number in range(1000):
        writer.line(f"line {number} ä \udcff")
    said = read_until(pipe[0], b"line 999 \xc3\xa4 \\udcff\n").decode().splitlines()
    assert said == [f"line {number} ä \\udcff" for number in range(1000)]
    assert writer.flush(WAIT_S)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_is_stuck_holds_up_nobody_and_learns_what_it_missed(
    pipe: tuple[int, int], *, blocking: bool
) -> None:
    os.set_blocking(pipe[1], blocking)
    writer = LineWriter(pipe[1])
    line = "x" * 1023
    count = 2 * WAITING_BYTES_MAX // 1024
    for _ in range(count):
        writer.line(line)
    assert not writer.flush(0)
    written = dropped = 0
    with os.fdopen(os.dup(pipe[0]), "rb") as said:
        while written + dropped < count:
            told = said.readline().decode().rstrip("\n")
            if told == line:
                written += 1
            else:
                dropped += int(told.removesuffix(" lines of the log were dropped: its reader was too slow"))
    assert dropped > 0
    assert writer.flush(WAIT_S)
    writer.line("again")
    assert read_until(pipe[0], b"\n") == b"again\n"


def test_a_reader_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        writer = LineWriter(writing)
        writer.line("hello")
        assert writer.flush(WAIT_S)
        writer.line("again")
        assert writer.flush(WAIT_S)
    finally:
        os.close(writing)


def test_a_finalizer_may_speak_while_a_line_is_taken(pipe: tuple[int, int]) -> None:
    """The finalizer runs in the thread that holds the lock."""
    writer = LineWriter(pipe[1])

    class Last:
        def __del__(self) -> None:
            writer.line("last")

    garbage: list[Last] = [Last()]

    class Data(bytes):
        """Bytes whose length, which the writer reads under its lock, runs the garbage collector."""

        def __add__(self, other: object) -> "Data":
            assert isinstance(other, bytes)
            return Data(bytes(self) + other)

        def __len__(self) -> int:
            if garbage:
                cycle: list[object] = [garbage.pop()]
                cycle.append(cycle)  # for the collector to find
                del cycle
                gc.collect()
            return super().__len__()

    class Text(str):
        __slots__ = ()

        def encode(self, *_: str) -> bytes:
            return Data(super().encode())

    speaker = threading.Thread(target=writer.line, args=(Text("first"),), daemon=True)
    speaker.start()
    speaker.join(WAIT_S)
    assert not speaker.is_alive()
    assert read_until(pipe[0], b"first\n") == b"last\nfirst\n"
