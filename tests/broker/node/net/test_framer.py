"""The framer without a connection: frames from bytes in arbitrary pieces, and the limits of a frame."""

import struct
from contextlib import suppress
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.node.net.framer import SCRATCH_BYTES, SMALL_FRAME_BYTES, Framer, InvalidFrame
from anabranch.broker.node.net.slabs import SlabPool

FRAME_BYTES_MAX = 1 << 20
SLABS = SlabPool(pooled_bytes_max=8 << 20)


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class Receiver:
    """A framer, used as a connection uses it. Other connections overwrite the scratch memory after each read."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.framer = Framer(self.scratch, SLABS, FRAME_BYTES_MAX)
        self.frames: list[bytes] = []

    def read(self, data: bytes, *, size_only: bool = False, waits: bool = False) -> int:
        """Receive as much of the data as there is room for; return its size. With `waits`, a frame begins later."""
        framer = self.framer
        into = framer.buffer(4 if size_only else SCRATCH_BYTES)
        count = min(len(into), len(data))
        into[:count] = data[:count]
        if framer.frame is not None:
            filled = framer.fill(count)
            if filled is not None:
                self.frames.append(bytes(filled))
        else:
            frame = framer.next_frame(count)
            while frame is not None:
                self.frames.append(bytes(frame))
                frame = framer.next_frame() if framer.unread_bytes else None
            if framer.waiting_bytes and waits:
                framer.set_aside()
                self.scribble()
            if framer.waiting_bytes:
                framer.begin()
        self.scribble()
        return count

    def scribble(self) -> None:
        self.scratch[:] = b"\xff" * SCRATCH_BYTES


@given(
    sizes=st.lists(
        st.sampled_from([8, 9, 50, SMALL_FRAME_BYTES, SMALL_FRAME_BYTES + 1, 65_532, 65_533, 200_000]), max_size=8
    ),
    reads=st.lists(st.tuples(st.integers(1, 70_000), st.booleans(), st.booleans()), max_size=40),
)
def test_frames_are_whole_however_their_bytes_arrive(sizes: list[int], reads: list[tuple[int, bool, bool]]) -> None:
    receiver = Receiver()
    contents = [bytes([at]) * size for at, size in enumerate(sizes)]
    data, position = b"".join(map(framed, contents)), 0
    for count, size_only, waits in chain(reads, repeat((70_000, False, False))):
        if position == len(data):
            break
        position += receiver.read(data[position : position + count], size_only=size_only, waits=waits)
    assert receiver.frames == contents
    framer = receiver.framer
    assert (framer.frame, framer.waiting_bytes) == (None, 0), "nothing is left over"


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_within_the_limits_or_refused(data: bytes) -> None:
    receiver = Receiver()
    with suppress(InvalidFrame):
        while data:
            data = data[receiver.read(data) :]
    assert all(len(frame) >= 8 for frame in receiver.frames)


@pytest.mark.parametrize("size", [-1, 0, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_frame_out_of_the_limits_is_refused_after_those_before_it(size: int) -> None:
    receiver = Receiver()
    with pytest.raises(InvalidFrame, match=f"^frame of {size} bytes, allowed are 8 to {FRAME_BYTES_MAX}$"):
        receiver.read(framed(b"a frame before") + struct.pack(">i", size))
    assert receiver.frames == [b"a frame before"]


@pytest.mark.parametrize(
    ("head", "what"),
    [(b"GET /", "an HTTP request"), (b"\x16\x03\x01\0\xff", "a TLS handshake"), (b"SSH-2.0", "an SSH client")],
)
def test_a_client_of_another_protocol_is_named(head: bytes, what: str) -> None:
    with pytest.raises(InvalidFrame, match=f"^{what}, but this port expects Kafka's protocol without TLS$"):
        Receiver().read(head)


def test_the_limit_may_change_between_two_frames_of_one_read() -> None:
    framer = Receiver().framer
    data = framed(bytes(8)) + framed(bytes(100))
    framer.buffer(SCRATCH_BYTES)[: len(data)] = data
    assert framer.next_frame(len(data)) == bytes(8)
    framer.frame_bytes_max = 99
    with pytest.raises(InvalidFrame):
        framer.next_frame()


def test_the_rest_of_a_frame_is_received_into_its_own_memory() -> None:
    framer = Receiver().framer
    data = framed(bytes(range(200)) * 1000)
    framer.buffer(SCRATCH_BYTES)[:100] = data[:100]
    assert framer.next_frame(100) is None
    assert (framer.waiting_bytes, framer.frame) == (200_000, None), "memory must be reserved first"
    framer.begin()
    rest = framer.buffer(4)
    assert len(rest) == len(data) - 100
    assert framer.fill(0) is None
    rest[:] = data[100:]
    frame = framer.fill(len(rest))
    assert frame is not None
    assert bytes(frame) == data[4:]


def test_a_frame_that_is_given_up_leaves_nothing() -> None:
    for begins in (False, True):
        receiver = Receiver()
        framer = receiver.framer
        framer.buffer(SCRATCH_BYTES)[:4] = struct.pack(">i", 1000)
        assert framer.next_frame(4) is None
        if begins:
            framer.begin()
        framer.forget_waiting()
        framer.forget_frame()
        receiver.read(framed(b"another frame"))
        assert receiver.frames == [b"another frame"]
