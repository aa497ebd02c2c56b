"""A connection on a fake transport and a fake server: framing, order, and pauses of reading."""

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.node.net.budget import FrameBudget
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import Exchange, Peer
from anabranch.broker.node.net.framer import LARGE_FRAME_BYTES, SCRATCH_BYTES
from anabranch.broker.node.net.slabs import SlabPool
from anabranch.broker.node.net.stalls import Transfer
from anabranch.broker.node.net.traffic import ClientTraffic
from anabranch.protocol.messages.api_versions import ApiVersionsResponse
from anabranch.protocol.messages.produce import ProduceResponse
from anabranch.wal.interface import Buffer
from tests.support.raw_client import request_frame
from tests.support.waiting import until

PRODUCE, OTHER = 0, 18
ANSWERS = {PRODUCE: ProduceResponse(), OTHER: ApiVersionsResponse()}
PIECES_MAX = 500
"""Cuts of a stream before the rest of it comes at once."""


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.writes: list[list[bytes]] = []
        self.closed = False
        self.aborted = False
        self.unsent_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.writes.append([bytes(part) for part in list_of_data])

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class FakeManager:
    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.slabs = SlabPool(pooled_bytes_max=4 << 20)
        self.tick = 0
        self.request_bytes_max = 1 << 20
        self.requests_in_flight_max = 10
        self.connection_bytes_max = 1 << 20
        self.frame_timeout_s = 0.0
        self.pipelined = frozenset({PRODUCE})
        self.budget = FrameBudget(16 << 20, small_bytes_max=LARGE_FRAME_BYTES - 1)
        self.bytes_in = 0
        self.traffic = ClientTraffic()
        self.take: Callable[[Connection, Buffer], bool] | None = None
        self.clock = lambda: 0.0
        self.delay_s = 0.0
        self.new_exchange: Callable[[Connection, int, int, int, str | None], Exchange] = Exchange
        self.started: list[tuple[Exchange, bytes]] = []
        self.reasons: list[str] = []
        self.paused = False
        self.on_start: Callable[[Exchange], None] = lambda _: None

    def dispatch(self, exchange: Exchange, frame: Buffer) -> None:
        self.started.append((exchange, bytes(frame)))
        self.on_start(exchange)

    def connected(self, connection: Connection) -> bool:
        return True

    def hold_off_s(self, host: str) -> float:
        return self.delay_s

    def disconnected(self, connection: Connection, error: Exception | None) -> None:
        pass

    def refused(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)

    def answered(self, exchange: Exchange) -> None:
        pass

    def reserve(self, connection: Connection, size: int) -> bool:
        return self.budget.reserve(connection, size)

    def reading_changed(self, connection: Connection, *, paused: bool) -> None:
        self.paused = paused

    @property
    def held(self) -> int:
        return self.budget.bytes_held


class Harness:
    def __init__(self) -> None:
        self.manager = FakeManager()
        self.transport = FakeTransport()
        self.connection = Connection(self.manager, 1)
        self.connection.connection_made(self.transport)

    def feed(self, data: Buffer, *, at_once: int = 1 << 30) -> None:
        while data:
            assert self.transport.reading, "the loop reads only while it may"
            into = self.connection.get_buffer(-1)
            count = min(len(into), len(data), at_once)
            into[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def send(self, *keys: int, size: int = 0) -> None:
        for key in keys:
            number = len(self.manager.started) + 100
            self.feed(request_frame(key, 9 if key == PRODUCE else 0, bytes(size), correlation_id=number))

    def answer(self, at: int) -> None:
        exchange = self.manager.started[at][0]
        exchange.complete(ANSWERS[exchange.api_key])

    def closed(self) -> bool:
        return self.transport.closed

    def aborted(self) -> bool:
        return self.transport.aborted

    def reading(self) -> bool:
        return self.transport.reading

    def transfer(self) -> Transfer | None:
        return self.connection.transfer

    @property
    def answered(self) -> list[int]:
        frames = b"".join(part for write in self.transport.writes for part in write)
        found = []
        while frames:
            size, correlation_id = struct.unpack_from(">ii", frames)
            found.append(correlation_id)
            frames = frames[4 + size :]
        return found


@pytest.fixture
async def harness() -> Harness:
    return Harness()


@given(
    sizes=st.lists(st.sampled_from([0, 1, 50, 4000, 5000, 65_000, 66_000, 200_000]), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 70_000), min_size=1, max_size=20),
)
def test_frames_arrive_whole_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    async def check() -> None:
        harness = Harness()
        harness.manager.connection_bytes_max = 1 << 30
        frames = [request_frame(PRODUCE, 9, bytes([at]) * size) for at, size in enumerate(sizes)]
        data, at = memoryview(b"".join(frames)), 0
        while data:
            count = cuts[at % len(cuts)] if at < PIECES_MAX else len(data)
            harness.feed(data[:count], at_once=count)
            data, at = data[count:], at + 1
        assert [frame for _, frame in harness.manager.started] == [frame[4:] for frame in frames]
        for at in range(len(frames)):
            harness.answer(at)
        assert harness.manager.held == 0

    asyncio.run(check())


async def test_produces_start_at_once_and_are_answered_in_order(harness: Harness) -> None:
    harness.send(PRODUCE, PRODUCE, PRODUCE)
    assert len(harness.manager.started) == 3
    harness.answer(2)
    harness.answer(1)
    await asyncio.sleep(0)
    assert harness.answered == []
    harness.answer(0)
    await asyncio.sleep(0)
    assert harness.answered == [100, 101, 102]
    assert len(harness.transport.writes) == 1, "a run of answers is one write"


async def test_the_last_answer_does_not_wait_for_a_turn(harness: Harness) -> None:
    harness.send(PRODUCE, PRODUCE)
    harness.answer(0)
    assert harness.answered == []
    harness.answer(1)
    assert harness.answered == [100, 101]
    assert len(harness.transport.writes) == 1


async def test_an_answer_leaves_while_those_behind_wait(harness: Harness) -> None:
    harness.send(PRODUCE, PRODUCE, PRODUCE)
    for at in range(3):
        harness.answer(at)
        await asyncio.sleep(0)
        assert harness.answered == [100, 101, 102][: at + 1]


async def test_other_requests_wait_for_those_before_and_hold_those_behind(harness: Harness) -> None:
    harness.feed(
        b"".join(
            request_frame(key, 9 if key == PRODUCE else 0, b"", correlation_id=at)
            for at, key in enumerate((PRODUCE, OTHER, PRODUCE, OTHER))
        )
    )
    for at in range(4):
        assert len(harness.manager.started) == at + 1
        harness.answer(at)
    await asyncio.sleep(0)
    assert harness.answered == [0, 1, 2, 3]


async def test_a_produce_that_waits_holds_those_behind(harness: Harness) -> None:
    harness.manager.on_start = harness.connection.hold
    harness.send(PRODUCE)
    harness.manager.on_start = lambda _: None
    harness.feed(request_frame(PRODUCE, 9, b""))
    assert len(harness.manager.started) == 1
    harness.answer(0)
    assert len(harness.manager.started) == 2


async def test_requests_of_a_node_start_at_once_and_are_answered_as_they_are_done(harness: Harness) -> None:
    harness.connection.trust(Peer(2, 1), request_bytes_max=1 << 20)
    harness.manager.on_start = harness.connection.hold
    harness.send(OTHER, PRODUCE, OTHER, OTHER)
    assert len(harness.manager.started) == 4
    for at in (2, 0, 3, 1):
        harness.answer(at)
    await asyncio.sleep(0)
    assert harness.answered == [102, 100, 103, 101]
    assert harness.connection.idle
    assert harness.manager.held == 0


async def test_a_node_may_send_larger_requests_than_a_stranger(harness: Harness) -> None:
    harness.manager.connection_bytes_max = 4 << 20
    size = harness.manager.request_bytes_max + 1
    harness.connection.trust(Peer(2, 1), request_bytes_max=size + 100)
    harness.send(OTHER, size=size)
    assert len(harness.manager.started) == 1
    harness.feed((size + 101).to_bytes(4, "big"))
    assert harness.manager.reasons == [f"frame of {size + 101} bytes, allowed are 8 to {size + 100}"]


async def test_requests_without_an_answer_keep_their_place(harness: Harness) -> None:
    harness.send(PRODUCE, PRODUCE)
    harness.manager.started[0][0].complete(None)
    harness.answer(1)
    await asyncio.sleep(0)
    assert harness.answered == [101]


async def test_reading_stops_at_too_many_requests(harness: Harness) -> None:
    harness.send(*[PRODUCE] * 10)
    assert not harness.reading()
    harness.answer(0)
    assert harness.reading()


async def test_reading_stops_at_too_many_bytes(harness: Harness) -> None:
    harness.send(PRODUCE, size=700_000)
    assert harness.reading()
    harness.send(PRODUCE, size=400_000)
    assert not harness.reading()
    harness.answer(0)
    assert harness.reading()


async def test_a_frame_under_way_is_always_finished(harness: Harness) -> None:
    frame = request_frame(PRODUCE, 9, bytes(200_000))
    harness.send(PRODUCE, size=1_000_000)
    harness.feed(frame[:100_000])
    assert harness.manager.held > harness.manager.connection_bytes_max
    assert harness.reading(), "only its rest can free its memory"
    harness.feed(frame[100_000:])
    assert not harness.reading()


class Other:
    """Another connection that waits for memory."""

    def granted(self) -> None:
        """Have it."""


async def test_a_frame_that_finds_no_room_waits_for_it(harness: Harness) -> None:
    budget = harness.manager.budget
    other = Other()
    assert budget.reserve(other, 14 << 20)
    frame = request_frame(PRODUCE, 9, bytes(1_000_000))
    harness.feed(frame[:100])
    assert not harness.reading(), "the socket is left alone"
    assert harness.manager.paused
    assert harness.manager.held == 14 << 20
    budget.release_large(14 << 20)
    assert harness.reading()
    assert harness.manager.held == len(frame), "reserved in full"
    harness.feed(frame[100:])
    assert [sent for _, sent in harness.manager.started] == [frame[4:]]
    harness.answer(0)
    assert harness.manager.held == 0


async def test_a_crowded_node_reads_no_more_than_sizes(harness: Harness) -> None:
    budget = harness.manager.budget
    assert budget.reserve(Other(), 14 << 20)
    assert not budget.reserve(Other(), 14 << 20), "another connection waits"
    frame = request_frame(PRODUCE, 9, bytes(1_000))
    assert len(harness.connection.get_buffer(-1)) == 4
    harness.feed(frame[:2])
    assert len(harness.connection.get_buffer(-1)) == 2
    harness.feed(frame[2:])
    assert [sent for _, sent in harness.manager.started] == [frame[4:]], "small frames have a share of their own"


async def test_a_large_frame_waits_for_the_request_that_its_client_makes_wait(harness: Harness) -> None:
    harness.send(OTHER)
    frame = request_frame(PRODUCE, 9, bytes(200_000))
    held = harness.manager.held
    harness.feed(frame[:1000])
    assert not harness.reading()
    assert harness.manager.held == held, "it would take memory for as long as the request before it waits"
    harness.answer(0)
    assert harness.reading()
    harness.feed(frame[1000:])
    assert len(harness.manager.started) == 2


async def test_a_connection_lost_gives_back_what_it_had_reserved(harness: Harness) -> None:
    frame = request_frame(PRODUCE, 9, bytes(200_000))
    harness.send(PRODUCE, PRODUCE, size=300_000)
    harness.feed(frame[:1000])
    harness.connection.connection_lost(None)
    assert harness.manager.held == 0


async def test_a_connection_lost_gives_up_its_place_in_the_line(harness: Harness) -> None:
    budget = harness.manager.budget
    assert budget.reserve(Other(), 14 << 20)
    harness.feed(request_frame(PRODUCE, 9, bytes(500_000))[:1000])
    assert budget.waiting == 1
    harness.connection.connection_lost(None)
    assert budget.waiting == 0
    assert not budget.crowded
    budget.release_large(14 << 20)
    assert harness.manager.held == 0


@pytest.mark.parametrize("leave", [Connection.close, Connection.drain])
async def test_who_is_closed_leaves_the_line(harness: Harness, leave: Callable[[Connection], None]) -> None:
    budget = harness.manager.budget
    assert budget.reserve(Other(), 14 << 20)
    harness.send(PRODUCE)
    harness.feed(request_frame(PRODUCE, 9, bytes(500_000))[:1000])
    assert budget.waiting == 1
    leave(harness.connection)
    assert budget.waiting == 0
    budget.release_large(14 << 20)
    harness.answer(0)
    harness.connection.connection_lost(None)
    assert harness.manager.held == 0


async def test_a_peer_that_does_not_read_gets_nothing_more_started(harness: Harness) -> None:
    harness.send(OTHER)
    harness.feed(request_frame(OTHER, 0, b""))
    harness.connection.pause_writing()
    assert not harness.reading()
    harness.answer(0)
    assert len(harness.manager.started) == 1
    harness.connection.resume_writing()
    assert len(harness.manager.started) == 2
    assert harness.reading()


async def test_draining_answers_what_is_under_way_and_closes(harness: Harness) -> None:
    harness.send(PRODUCE, PRODUCE)
    harness.feed(request_frame(OTHER, 0, b""))
    harness.connection.drain()
    assert not harness.closed()
    harness.answer(0)
    harness.answer(1)
    assert harness.answered == [100, 101]
    assert harness.closed()
    assert len(harness.manager.started) == 2


async def test_a_lost_connection_tells_those_who_wait(harness: Harness) -> None:
    harness.send(OTHER)
    lost: list[bool] = []
    exchange = harness.manager.started[0][0]
    exchange.on_close = lambda: lost.append(True)
    harness.connection.connection_lost(None)
    assert lost == [True]
    assert harness.manager.held == 0
    exchange.complete(ANSWERS[OTHER])
    assert exchange.closed
    assert harness.transport.writes == []


async def test_a_closed_connection_does_not_wait_for_a_peer_that_does_not_read(harness: Harness) -> None:
    harness.send(PRODUCE, size=300_000)
    harness.transport.unsent_bytes = 1000
    harness.connection.close()
    assert harness.closed()
    assert not harness.aborted(), "the peer has time to read"
    await until(harness.aborted)


async def test_a_closed_connection_waits_for_a_peer_that_reads(harness: Harness) -> None:
    looks = list(range(1000, -1, -100))
    harness.transport.get_write_buffer_size = lambda: looks.pop(0)  # type: ignore[method-assign]
    harness.connection.close()
    await until(lambda: not looks)
    assert not harness.aborted()


async def test_what_is_held_for_a_peer_that_does_not_read_is_in_the_way_of_others(harness: Harness) -> None:
    connection, transport = harness.connection, harness.transport
    harness.send(PRODUCE, size=300_000)
    assert harness.transfer() is None, "the node has not answered yet"
    transport.unsent_bytes = 1000
    connection.pause_writing()
    before = harness.transfer()
    assert before is not None
    assert connection.holds_large
    transport.unsent_bytes = 900
    after = harness.transfer()
    assert after is not None
    assert after.what is before.what
    assert after.moved_bytes - before.moved_bytes == 100
    connection.resume_writing()
    assert harness.transfer() is None
    connection.pause_writing()
    again = harness.transfer()
    assert again is not None
    assert again.what is not before.what, "it has read in between"
    connection.resume_writing()
    connection.close()
    assert harness.transfer() is not None


async def test_a_peer_that_is_read_no_more_owes_nothing_of_its_frame(harness: Harness) -> None:
    harness.feed(request_frame(PRODUCE, 9, bytes(300_000))[:1000])
    arriving = harness.transfer()
    assert arriving is not None
    assert arriving.moved_bytes == 996
    harness.transport.unsent_bytes = 50
    harness.connection.close()
    leaving = harness.transfer()
    assert leaving is not None
    assert leaving.size_bytes == 50
