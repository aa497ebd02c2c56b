"""The transport of a connection with TLS, over a fake of the loop's: pieces, pauses and closing."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.node.net.tls_connection import PIECE_BYTES, TlsTransport

HIGH = 4 * PIECE_BYTES


class FakeTls(asyncio.Transport):
    """Takes pieces until it has `room`, then pauses as the loop's transport does."""

    def __init__(self, room: int = 1 << 60) -> None:
        super().__init__()
        self.room = room
        self.owner: TlsTransport | None = None
        self.pieces: list[bytes] = []
        self.unsent_bytes = 0
        self.reading = True
        self.ended = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return f"the {name}" if not self.ended else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == PIECE_BYTES

    def write(self, data: Any) -> None:
        assert not self.ended
        assert 0 < len(data) <= PIECE_BYTES
        self.pieces.append(bytes(data))
        self.room -= len(data)
        if self.room <= 0:
            self.unsent_bytes += len(data)
            assert self.owner is not None
            self.owner.inner_paused()

    def send(self, room: int = 1 << 60) -> None:
        """Let the network take what is encrypted, and more."""
        self.room, self.unsent_bytes = room, 0
        assert self.owner is not None
        self.owner.inner_resumed()

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return bool(self.ended)

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Harness:
    def __init__(self, room: int = 1 << 60) -> None:
        self.inner = FakeTls(room)
        self.calls: list[str] = []
        self.transport = TlsTransport(
            self.inner, pause=lambda: self.calls.append("pause"), resume=lambda: self.calls.append("resume")
        )
        self.inner.owner = self.transport
        self.transport.set_write_buffer_limits(high=HIGH)

    @property
    def sent(self) -> bytes:
        return b"".join(self.inner.pieces)


@given(
    parts=st.lists(st.sampled_from([0, 1, 70, 20_000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])),
    room=st.integers(1, 3 * PIECE_BYTES),
)
def test_bytes_are_sent_in_order_in_full_pieces(parts: Iterable[int], room: int) -> None:
    harness = Harness(room)
    data = [bytes([at % 251]) * size for at, size in enumerate(parts)]
    harness.transport.writelines([memoryview(part) for part in data])
    while harness.transport.get_write_buffer_size():
        harness.inner.send(room)
    whole = b"".join(data)
    assert harness.sent == whole
    assert len(harness.inner.pieces) == -(-len(whole) // PIECE_BYTES)


def test_no_more_is_encrypted_than_the_network_takes() -> None:
    harness = Harness(room=1)
    harness.transport.write(memoryview(bytes(10 * PIECE_BYTES)))
    assert len(harness.inner.pieces) == 1
    assert harness.transport.get_write_buffer_size() == 10 * PIECE_BYTES
    harness.inner.send(room=PIECE_BYTES + 1)
    assert len(harness.inner.pieces) == 3


def test_the_protocol_is_paused_and_resumed_once_at_its_limits() -> None:
    harness = Harness(room=1)
    harness.transport.write(bytes(HIGH))
    assert harness.calls == []
    harness.transport.write(bytes(2 * PIECE_BYTES))
    harness.transport.write(bytes(1))
    assert harness.calls == ["pause"]
    harness.inner.send(room=2 * PIECE_BYTES)
    assert harness.calls == ["pause"]
    harness.inner.send()
    assert harness.calls == ["pause", "resume"]


def test_it_closes_when_all_is_sent_and_reads_nothing_more() -> None:
    harness = Harness(room=1)
    harness.transport.write(bytes(3 * PIECE_BYTES))
    harness.transport.close()
    assert (harness.transport.is_closing(), harness.inner.ended, harness.transport.is_reading()) == (True, "", False)
    harness.transport.close()
    harness.inner.send()
    assert (harness.inner.ended, len(harness.sent)) == ("closed", 3 * PIECE_BYTES)


def test_it_closes_at_once_when_nothing_is_left() -> None:
    harness = Harness()
    harness.transport.write(b"x")
    harness.transport.close()
    assert (harness.sent, harness.inner.ended) == (b"x", "closed")


@pytest.mark.parametrize("how", ["abort", "discard"])
def test_what_is_left_of_a_lost_connection_is_dropped(how: str) -> None:
    harness = Harness(room=1)
    harness.transport.write(bytes(3 * PIECE_BYTES))
    getattr(harness.transport, how)()
    assert harness.inner.ended == ("aborted" if how == "abort" else "")
    harness.inner.send()
    assert len(harness.inner.pieces) == 1


def test_nothing_is_written_to_a_transport_that_closes_by_itself() -> None:
    harness = Harness()
    harness.inner.ended = "closed"
    harness.transport.write(b"x")
    assert harness.transport.is_closing()
    assert not harness.inner.pieces


def test_the_socket_is_known_to_the_end() -> None:
    harness = Harness()
    assert harness.transport.get_extra_info("peername") == "the peername"
    harness.inner.ended = "closed"
    assert harness.transport.get_extra_info("socket") == "the socket"


def test_reading_is_paused_and_resumed() -> None:
    harness = Harness()
    harness.transport.pause_reading()
    assert not harness.transport.is_reading()
    harness.transport.resume_reading()
    assert harness.transport.is_reading()
