"""One client connection: passes received frames to the dispatcher, and sends responses in the order of their requests.

Invariants:

- A frame that does not arrive in one read gets a buffer of its size, and the kernel fills the rest of it directly. From
  then on a record batch is a memoryview of that buffer.
- Responses are sent in the order of requests. Those of pipelined APIs (Produce) start next to each other: each is
  appended at once and answered when durable. Any other starts only when all before it are answered, and blocks those
  after it.
- Requests of another node start at once, and their responses are sent in any order: it matches them by their ids.
- Reading is paused while too much is in flight on the connection, or while the client does not read its responses.
- The rest of a frame is read only when the node's budget (`broker.node.net.budget`) has reserved all of it. A large
  frame is reserved only when no request before it can wait as long as its client chooses: it would hold memory for
  that time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Protocol, cast

from anabranch.addresses import normal_host
from anabranch.broker.node.net.budget import FrameBudget
from anabranch.broker.node.net.exchange import Exchange, Peer, RefusedBatch
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.broker.node.net.slabs import SlabPool
from anabranch.broker.node.net.stalls import Transfer
from anabranch.broker.node.settings.memory import FRAME_SIZE_BYTES
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.header import parse_request_header
from anabranch.s3stream.catalog.values import DEFAULT_LISTENER
from anabranch.wal.interface import Buffer

SCRATCH_BYTES = 64 << 10
"""Size of the buffer for reads between frames, shared by all connections of a loop."""
SMALL_FRAME_BYTES = 4 << 10
"""Frames up to this size are bytearrays: cheaper than a slice of a slab, and they do not keep a slab alive."""
_SIZE = Struct(">i")
FRAME_BYTES_MIN = 8
"""API key, version and correlation id: the minimum of a request."""
LARGE_FRAME_BYTES = SCRATCH_BYTES + 1
"""Frames of this size, length prefix included, never arrive in one read."""
WRITE_HIGH_BYTES = 4 << 20
UNKNOWN_SOFTWARE = "unknown"
_OTHER_PROTOCOLS: Mapping[bytes, str] = {
    b"\x16\x03": "a TLS handshake",
    b"SSH-": "an SSH client",
    b"PRI ": "an HTTP/2 request",
    **dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PATC"), "an HTTP request"),
}
"""Protocols of clients that connect to the wrong port, by the first bytes that they send."""


def other_protocol(head: bytes) -> str:
    """Return the protocol of a client that connects to the wrong port, by its first bytes; empty if it is unknown."""
    return _OTHER_PROTOCOLS.get(head[:4]) or _OTHER_PROTOCOLS.get(head[:2]) or ""


class ConnectionManager(Protocol):
    """The server that a connection belongs to."""

    scratch: memoryview
    slabs: SlabPool
    budget: FrameBudget
    bytes_in: int
    tick: int
    request_bytes_max: int
    requests_in_flight_max: int
    connection_bytes_max: int
    frame_timeout_s: float
    pipelined: frozenset[int]
    """Keys of the APIs whose requests start next to each other."""

    @property
    def clock(self) -> Callable[[], float]:
        """Clock in seconds, to measure the duration of requests."""
        ...

    @property
    def new_exchange(self) -> Callable[["Connection", int, int, int, str | None], Exchange]:
        """Create a request in progress."""
        ...

    def dispatch(self, exchange: Exchange, frame: Buffer) -> None:
        """Handle a request; its handler calls `exchange.complete`, now or later."""
        ...

    def connected(self, connection: "Connection") -> bool:
        """Register the connection; return False if a limit refuses it."""
        ...

    def hold_off_s(self, host: str) -> float:
        """Count a new connection against its address's quota; return for how long it is held, or 0 if it is served."""
        ...

    def disconnected(self, connection: "Connection", error: Exception | None) -> None:
        """Unregister the connection."""
        ...

    def refused(self, connection: "Connection", reason: str) -> None:
        """Note that the connection is closed because of invalid input."""
        ...

    def answered(self, exchange: Exchange) -> None:
        """Note that a request is answered."""
        ...

    def reserve(self, connection: "Connection", size: int) -> bool:
        """Reserve memory for a frame. If False, `connection.granted` is called when there is room."""
        ...

    def reading_changed(self, connection: "Connection", *, paused: bool) -> None:
        """Note that reading of the connection's socket is paused or resumed."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Protocol of one socket. All methods run on the loop's thread."""

    counted_before = False
    """True if the quota of the client's address was applied before: at the beginning of a TLS handshake."""

    __slots__ = (
        "__weakref__",
        "_awaits_grant",
        "_budget",
        "_bytes_held",
        "_dispatch",
        "_exclusive",
        "_filled",
        "_flush_scheduled",
        "_frame",
        "_large_bytes_held",
        "_loop",
        "_manager",
        "_outgoing",
        "_outstanding",
        "_paused_reading",
        "_pipelined",
        "_prefix",
        "_pumping",
        "_queue",
        "_request_bytes_max",
        "_requests_in_flight_max",
        "_transport",
        "_unmute",
        "_unread_since",
        "_waiting_frame_bytes",
        "_waiting_frame_start",
        "_writing_paused",
        "active_tick",
        "clock",
        "closed",
        "draining",
        "has_delegation_token",
        "has_scram_credential",
        "host",
        "listener",
        "number",
        "peer",
        "port",
        "principal",
        "refused_batches",
        "software_name",
        "software_version",
    )

    def __init__(self, manager: ConnectionManager, number: int, listener: str = DEFAULT_LISTENER) -> None:
        self._manager = manager
        self._budget = manager.budget
        self._pipelined = manager.pipelined
        self._request_bytes_max = manager.request_bytes_max
        self._requests_in_flight_max = manager.requests_in_flight_max
        self._dispatch: Callable[[Exchange, Buffer], None] | None = None
        """Takes the requests instead of the server; None: the server does."""
        self.clock = manager.clock
        self.number = number
        self.listener = listener
        self.host = ""
        self.port = 0
        self.principal = ANONYMOUS
        """Principal of the client, in Kafka's notation: `User:` and its name."""
        self.has_delegation_token = self.has_scram_credential = False
        """True if the client has authenticated itself with a delegation token."""
        self.software_name = self.software_version = UNKNOWN_SOFTWARE
        """Name and version of the client's software, as it sends them (KIP-511)."""
        self.peer: Peer | None = None
        """The node at the other end, once it is authenticated; None for a client."""
        self.refused_batches: dict[tuple[str | bytes, int], RefusedBatch] = {}
        """By partition, the last batch that was refused and is to be sent again (`broker.api.handlers.produce`)."""
        self.closed = False
        self.draining = False
        self.active_tick = manager.tick
        self._transport: asyncio.Transport | None = None
        self._prefix = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._waiting_frame_bytes = 0
        """Size of the frame that waits for its reservation, without the length prefix; 0 if none does."""
        self._waiting_frame_start = b""
        """First bytes of that frame."""
        self._queue: deque[Buffer] = deque()
        self._bytes_held = 0
        self._awaits_grant = False
        """True if the budget will call `granted` for that frame."""
        self._large_bytes_held = 0
        """Part of `_bytes_held` for large frames."""
        self._outstanding: deque[Exchange] = deque()
        self._outgoing: list[Buffer] = []
        self._flush_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._exclusive: Exchange | None = None
        self._pumping = False
        self._paused_reading = self._writing_paused = False
        self._unread_since: object = None
        """Identity of the current period without reading by the client."""
        self._unmute: asyncio.TimerHandle | None = None
        """End of the time for which the client is throttled."""

    # transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the socket, unless a limit refuses it."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host, self.port = normal_host(str(peer[0])), int(peer[1]) if len(peer) > 1 else 0
        if not self._manager.connected(self):
            self.closed = True
            self._transport.abort()
            return
        if not self.counted_before and (delay_s := self._manager.hold_off_s(self.host)):
            self._hold_off(delay_s)
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def _hold_off(self, seconds: float) -> None:
        """Close after that time, without reading anything: the client's address creates too many connections."""
        transport = self._transport
        assert transport is not None, "the connection was made"
        self.closed = True
        self._loop.call_soon(transport.pause_reading)  # uvloop begins to read after `connection_made`
        self._loop.call_later(seconds, transport.abort)
        self._manager.reading_changed(self, paused=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop unanswered requests. Those in progress continue, and their responses are discarded."""
        self.closed = True
        self._transport = None
        self._end_mute()
        self._withdraw_request()
        budget = self._budget
        large, small = self._large_bytes_held, self._bytes_held - self._large_bytes_held
        self._bytes_held = self._large_bytes_held = 0
        self._queue.clear()
        self._frame = None
        budget.release_small(small)
        budget.release_large(large)
        outstanding, self._outstanding = self._outstanding, deque()
        for exchange in outstanding:
            if exchange.on_close is not None and not exchange.done:
                exchange.on_close()
        self._manager.disconnected(self, exc)

    def pause_writing(self) -> None:
        """Start no more requests, because the client does not read."""
        self._writing_paused = True
        self._unread_since = object()
        self._update_reading()

    def resume_writing(self) -> None:
        """Continue, because the client reads again."""
        self._writing_paused = False
        self.pump()

    @property
    def idle(self) -> bool:
        """True if no request or frame is in progress, and the client is not throttled."""
        return not (self._outstanding or self._queue or self._waiting_frame_bytes or self._unmute)

    @property
    def is_muted(self) -> bool:
        """True while the client is throttled."""
        return self._unmute is not None

    @property
    def descriptor(self) -> int:
        """File descriptor of the socket; -1 if it is closed."""
        return -1 if self._transport is None else int(self._transport.get_extra_info("socket").fileno())

    @property
    def holds_large(self) -> bool:
        """True if memory is reserved for a large frame."""
        return self._large_bytes_held > 0

    @property
    def transfer(self) -> Transfer | None:
        """Transfer that the client must complete before the memory held here can be released; None if there is none."""
        frame, transport = self._frame, self._transport
        if frame is not None and not self.closed:
            return Transfer(frame, len(frame), self._filled)
        if transport is None or not self._bytes_held or not (self.closed or self._writing_paused):
            return None
        left = transport.get_write_buffer_size()
        return Transfer(self._unread_since, left, -left)

    def close(self) -> None:
        """Close after all responses have been written, or as soon as the client does not read them."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._flush()
            self.closed = True
            self._withdraw_request()
            transport.close()
            self._wait_for_reader(transport.get_write_buffer_size())

    def _wait_for_reader(self, left: int) -> None:
        if left:
            self._loop.call_later(self._manager.frame_timeout_s, self._abort_unless_read, left)

    def _abort_unless_read(self, left_before: int) -> None:
        transport = self._transport
        if transport is None:
            return
        left = transport.get_write_buffer_size()
        if left < left_before:
            self._wait_for_reader(left)
        else:
            transport.abort()

    def abort(self) -> None:
        """Close at once; unwritten responses are dropped."""
        if self._transport is not None:
            self.closed = True
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Close because of invalid input. It is logged once; other connections are not affected."""
        if not self.closed:
            self._manager.refused(self, reason)
            self.close()

    def drain(self) -> None:
        """Refuse new requests, and close as soon as those in progress are answered."""
        self.draining = True
        self._withdraw_request()
        self._queue.clear()
        self._update_reading()
        for exchange in list(self._outstanding):
            if exchange.on_drain is not None and not exchange.done:
                exchange.on_drain()
        if not self._outstanding:
            self.close()

    # bytes in

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        """Return the memory for the next bytes: the rest of the current frame, else the shared scratch buffer."""
        if self._frame is not None:
            return self._frame[self._filled :]
        prefix = self._prefix
        scratch = self._manager.scratch
        if self._budget.crowded:
            scratch = scratch[:FRAME_SIZE_BYTES]  # the size only: memory for the frame must be reserved first
        if not prefix:
            return scratch
        scratch[: len(prefix)] = prefix
        return scratch[len(prefix) :]

    def buffer_updated(self, nbytes: int) -> None:
        """Split the received bytes into frames."""
        manager = self._manager
        self.active_tick = manager.tick
        manager.bytes_in += nbytes
        frame = self._frame
        if frame is None:
            self._split_frames(len(self._prefix) + nbytes)
        else:
            self._filled += nbytes
            if self._filled < len(frame):
                return
            self._frame = None
            self._receive(frame)
        if self._outstanding or self._bytes_held or self._waiting_frame_bytes or self._paused_reading:
            self._update_reading()

    def _split_frames(self, end: int) -> None:
        """Process the frames in the first `end` bytes of the scratch buffer."""
        manager = self._manager
        self._prefix = b""
        scratch = manager.scratch
        start = 0
        while end - start >= FRAME_SIZE_BYTES:
            (size,) = _SIZE.unpack_from(scratch, start)
            start += FRAME_SIZE_BYTES
            if not FRAME_BYTES_MIN <= size <= self._request_bytes_max:
                self._refuse_size(size)
                return
            stop = start + size
            if stop > end:
                self._waiting_frame_bytes = size
                if not self._reserve_frame(scratch[start:end]):
                    self._waiting_frame_start = bytes(scratch[start:end])
                return
            self._bytes_held += FRAME_SIZE_BYTES + size
            self._budget.take(FRAME_SIZE_BYTES + size)
            if size <= SMALL_FRAME_BYTES:
                self._receive(bytearray(scratch[start:stop]))
            else:
                copy = manager.slabs.allocate(size)
                copy[:] = scratch[start:stop]
                self._receive(copy)
            if self.closed:
                return
            start = stop
        if start < end:
            self._prefix = bytes(scratch[start:end])

    def _refuse_size(self, size: int) -> None:
        other = other_protocol(_SIZE.pack(size))
        if other:
            self.refuse(f"{other}, but this port expects Kafka's protocol without TLS")
        else:
            self.refuse(f"frame of {size} bytes, allowed are {FRAME_BYTES_MIN} to {self._request_bytes_max}")

    def _reserve_frame(self, head: Buffer) -> bool:
        """Reserve the waiting frame, which begins with `head`, and begin it; return False if it must wait.

        A large one is not reserved while the request before it can wait as long as the client chooses.
        """
        size = self._waiting_frame_bytes + FRAME_SIZE_BYTES
        if self.draining or (size >= LARGE_FRAME_BYTES and (self._unmute or self._next_may_wait_long)):
            return False
        if self._manager.reserve(self, size):
            self._begin_frame(head)
            return True
        self._awaits_grant = True
        return False

    @property
    def _next_may_wait_long(self) -> bool:
        """True if a request may wait as long as its client chooses: behind Fetch, JoinGroup or unread responses."""
        exclusive = self._exclusive
        return (
            self._writing_paused
            or (exclusive is not None and exclusive.api_key not in self._pipelined)
            or any((frame[0] << 8 | frame[1]) not in self._pipelined for frame in self._queue)  # the API key
        )

    def _withdraw_request(self) -> None:
        """Cancel the reservation of a frame that will not be read further."""
        self._budget.withdraw(self)
        self._awaits_grant = False
        self._waiting_frame_bytes = 0
        self._waiting_frame_start = b""

    def granted(self) -> None:
        """Read the frame that waited, for which memory is now reserved."""
        self._awaits_grant = False
        self._begin_frame(self._waiting_frame_start)
        self._update_reading()

    def _begin_frame(self, head: Buffer) -> None:
        size = self._waiting_frame_bytes
        self._waiting_frame_bytes = 0
        self._waiting_frame_start = b""
        self._bytes_held += size + FRAME_SIZE_BYTES
        if size + FRAME_SIZE_BYTES >= LARGE_FRAME_BYTES:
            self._large_bytes_held += size + FRAME_SIZE_BYTES
        try:
            frame = self._manager.slabs.allocate(size) if size > SMALL_FRAME_BYTES else memoryview(bytearray(size))
        except (MemoryError, OSError) as error:
            self.refuse(f"no memory for a frame of {size} bytes: {error}")
            return
        frame[: len(head)] = head
        self._frame = frame
        self._filled = len(head)

    def _receive(self, frame: Buffer) -> None:
        if self.draining or self.closed:
            return
        if (
            self._queue
            or self._exclusive is not None
            or self._writing_paused
            or self._unmute is not None
            or not self._may_start(frame)
        ):
            self._queue.append(frame)
        else:
            self._start(frame)

    def _may_start(self, frame: Buffer) -> bool:
        """Return whether a frame may start: pipelined ones next to each other, others if none is in progress.

        Requests of another node always may.
        """
        return (
            not self._outstanding or (frame[0] << 8 | frame[1]) in self._pipelined or self.peer is not None
        )  # its key

    # requests

    def pump(self) -> None:
        """Start the requests that may start, and resume reading if there is room."""
        queue = self._queue
        self._pumping = True
        while queue and self._exclusive is None and not (self._writing_paused or self._unmute or self.closed):
            if not self._may_start(queue[0]):
                break
            self._start(queue.popleft())
        self._pumping = False
        if self._waiting_frame_bytes and not (self._awaits_grant or self.closed):
            self._reserve_frame(self._waiting_frame_start)
        self._update_reading()

    def _start(self, frame: Buffer) -> None:
        try:
            header = parse_request_header(frame)
        except ProtocolError as error:
            self.refuse(f"malformed request header: {error}")
            return
        exchange = self._manager.new_exchange(
            self, header.api_key, header.api_version, header.correlation_id, header.client_id
        )
        exchange.header_end = header.body_offset
        exchange.frame_bytes = len(frame) + FRAME_SIZE_BYTES
        if header.api_key not in self._pipelined and self.peer is None:
            self._exclusive = exchange
        self._outstanding.append(exchange)
        (self._dispatch or self._manager.dispatch)(exchange, frame)

    def hold(self, exchange: Exchange) -> None:
        """Start no request until this one is answered: it could not append at once, and the order must be kept."""
        if self.peer is None:
            self._exclusive = exchange

    def trust(self, peer: Peer, *, request_bytes_max: int) -> None:
        """Serve another node from now on: requests of up to that size, each answered as soon as it is done."""
        self.peer = peer
        self._request_bytes_max = request_bytes_max

    def intercept(
        self, dispatch: Callable[[Exchange, Buffer], None], *, request_bytes_max: int, requests_in_flight_max: int
    ) -> None:
        """Pass requests, within these limits, to `dispatch` instead of the server, until `admit`."""
        self._dispatch = dispatch
        self._request_bytes_max = request_bytes_max
        self._requests_in_flight_max = requests_in_flight_max

    def admit(
        self,
        principal: str,
        dispatch: Callable[[Exchange, Buffer], None] | None = None,
        *,
        has_delegation_token: bool = False,
        has_scram_credential: bool = False,
    ) -> None:
        """Serve an authenticated client, within the limits of the server. `dispatch` gets its requests, if given."""
        manager = self._manager
        self.principal = principal
        self.has_delegation_token = has_delegation_token
        self.has_scram_credential = has_scram_credential
        self._dispatch = dispatch
        self._request_bytes_max = manager.request_bytes_max
        self._requests_in_flight_max = manager.requests_in_flight_max

    def mute(self, seconds: float) -> None:
        """Read nothing and start no request for that time: the client is throttled (KIP-219)."""
        if self.closed:
            return
        unmute = self._loop.call_later(seconds, self._unmuted)
        if self._unmute is not None and self._unmute.when() > unmute.when():
            unmute, self._unmute = self._unmute, unmute
        self._end_mute()
        self._unmute = unmute
        self._update_reading()

    def _end_mute(self) -> None:
        if self._unmute is not None:
            self._unmute.cancel()
            self._unmute = None

    def _unmuted(self) -> None:
        self._unmute = None
        self.pump()

    def release(self, exchange: Exchange) -> None:
        """Release the memory of a frame that is no longer needed, before its request is answered."""
        size, exchange.frame_bytes = exchange.frame_bytes, 0
        if size >= LARGE_FRAME_BYTES:
            self._give_large(size)
        else:
            self._bytes_held -= size
            self._budget.release_small(size)

    def completed(self, exchange: Exchange) -> None:
        """Send the responses that are next in order, and start the requests that waited for them."""
        outstanding = self._outstanding
        if self.closed or (outstanding[0] is not exchange and not self._bring_forward(exchange)):
            return
        freed = freed_large = 0
        while outstanding and outstanding[0].done:
            first = outstanding.popleft()
            size = first.frame_bytes
            if size >= LARGE_FRAME_BYTES:
                freed_large += size
            else:
                freed += size
            self._manager.answered(first)
            if first is self._exclusive:
                self._exclusive = None
            if first.parts is not None:
                self._outgoing += first.parts
        self._bytes_held -= freed
        self._budget.release_small(freed)
        if freed_large:
            self._give_large(freed_large)
        if exchange.api_key not in self._pipelined:
            self._flush()
        elif not self._flush_scheduled:
            # A block of the log completes many requests in a row: their responses are sent in one write.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        if self.draining and not outstanding:
            self.close()
        elif not self._pumping and (self._queue or self._paused_reading or self._waiting_frame_bytes):
            self.pump()

    def _bring_forward(self, exchange: Exchange) -> bool:
        """Make a response the next one, and return True, if the other end accepts any order."""
        if self.peer is None:
            return False
        self._outstanding.remove(exchange)
        self._outstanding.appendleft(exchange)
        return True

    def _give_large(self, size: int) -> None:
        self._bytes_held -= size
        self._large_bytes_held -= size
        self._budget.release_large(size)

    def _flush(self) -> None:
        self._flush_scheduled = False
        outgoing = self._outgoing
        if outgoing and self._transport is not None:
            self._outgoing = []
            self._transport.writelines(outgoing)

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        manager = self._manager
        full = (
            self.draining
            or self._writing_paused
            or self._unmute is not None
            or len(self._queue) + len(self._outstanding) >= self._requests_in_flight_max
            or self._bytes_held >= manager.connection_bytes_max
            or self._waiting_frame_bytes
            or (self._queue and self._bytes_held > SCRATCH_BYTES and self._next_may_wait_long)
        )
        # A frame that has begun is always read to its end: its memory is taken, and only the client can complete it.
        pause = self._frame is None and bool(full)
        if pause != self._paused_reading:
            self._paused_reading = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()
            manager.reading_changed(self, paused=pause)
