"""One client connection: passes received frames to the dispatcher, and sends the responses.

Bytes become frames in `framer`; `request_order` decides which request starts, and whose response is next. Invariants:

- Reading is paused while too much is in flight on the connection, or while the client does not read its responses.
- The rest of a frame is read only when the node's budget (`broker.node.net.budget`) has reserved all of it. A large
  frame is reserved only when no request before it can wait as long as its client chooses: it would hold memory for
  that time.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from anabranch.addresses import normal_host
from anabranch.broker.node.net.budget import FrameBudget
from anabranch.broker.node.net.exchange import Exchange, Peer, RefusedBatch
from anabranch.broker.node.net.framer import LARGE_FRAME_BYTES, SCRATCH_BYTES, Framer, InvalidFrame
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.broker.node.net.request_order import RequestOrder
from anabranch.broker.node.net.slabs import SlabPool
from anabranch.broker.node.net.stalls import Transfer
from anabranch.broker.node.net.traffic import UNKNOWN_RACK, ClientTraffic
from anabranch.broker.node.settings.memory import FRAME_SIZE_BYTES
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.header import parse_request_header
from anabranch.s3stream.catalog.values import DEFAULT_LISTENER
from anabranch.wal.interface import Buffer

WRITE_HIGH_BYTES = 4 << 20
UNKNOWN_SOFTWARE = "unknown"


class ConnectionManager(Protocol):
    """The server that a connection belongs to."""

    scratch: memoryview
    slabs: SlabPool
    budget: FrameBudget
    bytes_in: int
    traffic: ClientTraffic
    tick: int
    request_bytes_max: int
    requests_in_flight_max: int
    connection_bytes_max: int
    frame_timeout_s: float
    take: Callable[["Connection", Buffer], bool] | None
    """Handles a frame that is like most, whole; returns False, having changed nothing, if it does not."""
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
        "_flush_scheduled",
        "_framer",
        "_large_bytes_held",
        "_loop",
        "_manager",
        "_order",
        "_outgoing",
        "_paused_reading",
        "_pipelined",
        "_pumping",
        "_requests_in_flight_max",
        "_transport",
        "_unmute",
        "_unread_since",
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
        "on_lost",
        "peer",
        "port",
        "principal",
        "refused_batches",
        "software_name",
        "software_version",
        "traffic",
    )

    def __init__(self, manager: ConnectionManager, number: int, listener: str = DEFAULT_LISTENER) -> None:
        self._manager = manager
        self._budget = manager.budget
        self._pipelined = manager.pipelined
        self._framer = Framer(manager.scratch, manager.slabs, manager.request_bytes_max)
        self._order = RequestOrder(manager.pipelined)
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
        self.traffic = manager.traffic.of(UNKNOWN_RACK)
        """Counts of the rack that the client is in."""
        self.peer: Peer | None = None
        """The node at the other end, once it is authenticated; None for a client."""
        self.refused_batches: dict[tuple[str | bytes, int], RefusedBatch] = {}
        """By partition, the last batch that was refused and is to be sent again (`broker.api.handlers.produce`)."""
        self.on_lost: Callable[[object], None] | None = None
        """Called with this connection once it is lost: for what lives as long as a client is connected."""
        self.closed = False
        self.draining = False
        self.active_tick = manager.tick
        self._transport: asyncio.Transport | None = None
        self._bytes_held = 0
        self._awaits_grant = False
        """True if the budget will call `granted` for the frame that waits."""
        self._large_bytes_held = 0
        """Part of `_bytes_held` for large frames."""
        self._outgoing: list[Buffer] = []
        self._flush_scheduled = False
        self._loop = asyncio.get_running_loop()
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
        self._framer.forget_frame()
        budget.release_small(small)
        budget.release_large(large)
        for exchange in self._order.drop_all():
            if exchange.on_close is not None and not exchange.done:
                exchange.on_close()
        if self.on_lost is not None:
            self.on_lost(self)
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
        order = self._order
        return not (order.in_progress or order.waiting or self._framer.waiting_bytes or self._unmute)

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
        frame, transport = self._framer.frame, self._transport
        if frame is not None and not self.closed:
            return Transfer(frame, len(frame), self._framer.filled)
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
        self._order.drop_waiting()
        self._update_reading()
        for exchange in list(self._order.in_progress):
            if exchange.on_drain is not None and not exchange.done:
                exchange.on_drain()
        if not self._order.in_progress:
            self.close()

    # bytes in

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        """Return the memory for the next bytes: of a crowded node for a size, as a frame must be reserved first."""
        return self._framer.buffer(FRAME_SIZE_BYTES if self._budget.crowded else SCRATCH_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        """Process the frames that the received bytes complete."""
        manager, framer = self._manager, self._framer
        self.active_tick = manager.tick
        manager.bytes_in += nbytes
        if framer.frame is not None:
            filled = framer.fill(nbytes)
            if filled is None:
                return
            self._receive(filled)
        else:
            try:
                frame = framer.next_frame(nbytes)
                while frame is not None:
                    size = FRAME_SIZE_BYTES + len(frame)
                    self._bytes_held += size
                    self._budget.take(size)
                    self._receive(frame)
                    if self.closed or not framer.unread_bytes:
                        break
                    frame = framer.next_frame()
            except InvalidFrame as error:
                self.refuse(str(error))
            if framer.waiting_bytes:
                self._reserve_frame()
        if self._order.in_progress or self._bytes_held or framer.waiting_bytes or self._paused_reading:
            self._update_reading()

    def _reserve_frame(self) -> None:
        """Reserve the frame that waits, and begin it, or let it wait.

        A large one is not reserved while the request before it can wait as long as the client chooses.
        """
        size = self._framer.waiting_bytes + FRAME_SIZE_BYTES
        if not (self.draining or (size >= LARGE_FRAME_BYTES and (self._unmute or self._next_may_wait_long))):
            if self._manager.reserve(self, size):
                self._begin_frame()
                return
            self._awaits_grant = True
        self._framer.set_aside()

    @property
    def _next_may_wait_long(self) -> bool:
        """True if a request may wait as long as its client chooses: behind Fetch, JoinGroup or unread responses."""
        return self._writing_paused or self._order.next_may_wait_long

    def _withdraw_request(self) -> None:
        """Cancel the reservation of a frame that will not be read further."""
        self._budget.withdraw(self)
        self._awaits_grant = False
        self._framer.forget_waiting()

    def granted(self) -> None:
        """Read the frame that waited, for which memory is now reserved."""
        self._awaits_grant = False
        self._begin_frame()
        self._update_reading()

    def _begin_frame(self) -> None:
        size = self._framer.waiting_bytes
        self._bytes_held += size + FRAME_SIZE_BYTES
        if size + FRAME_SIZE_BYTES >= LARGE_FRAME_BYTES:
            self._large_bytes_held += size + FRAME_SIZE_BYTES
        try:
            self._framer.begin()
        except (MemoryError, OSError) as error:
            self.refuse(f"no memory for a frame of {size} bytes: {error}")

    def _receive(self, frame: Buffer) -> None:
        if self.draining or self.closed:
            return
        order = self._order
        if order.waiting or self._writing_paused or self._unmute is not None or not order.may_start(frame):
            order.add_waiting(frame)
        else:
            self._start(frame)

    # requests

    def pump(self) -> None:
        """Start the requests that may start, and resume reading if there is room."""
        order = self._order
        self._pumping = True
        while not (self._writing_paused or self._unmute or self.closed) and (frame := order.next_waiting()) is not None:
            self._start(frame)
        self._pumping = False
        if self._framer.waiting_bytes and not (self._awaits_grant or self.closed):
            self._reserve_frame()
        self._update_reading()

    def _start(self, frame: Buffer) -> None:
        take = self._manager.take
        if take is not None and self._dispatch is None and take(self, frame):
            return
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
        self._order.start(exchange)
        (self._dispatch or self._manager.dispatch)(exchange, frame)

    def hold(self, exchange: Exchange) -> None:
        """Start no request until this one is answered: it could not append at once, and the order must be kept."""
        self._order.hold(exchange)

    def trust(self, peer: Peer, *, request_bytes_max: int) -> None:
        """Serve another node from now on: requests of up to that size, each answered as soon as it is done."""
        self.peer = peer
        self._order.allow_any_order()
        self._framer.frame_bytes_max = request_bytes_max

    def intercept(
        self, dispatch: Callable[[Exchange, Buffer], None], *, request_bytes_max: int, requests_in_flight_max: int
    ) -> None:
        """Pass requests, within these limits, to `dispatch` instead of the server, until `admit`."""
        self._dispatch = dispatch
        self._framer.frame_bytes_max = request_bytes_max
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
        self._framer.frame_bytes_max = manager.request_bytes_max
        self._requests_in_flight_max = manager.requests_in_flight_max

    def enter_rack(self, rack: str) -> None:
        """Count the client's traffic as that of a rack from now on."""
        self.traffic = self._manager.traffic.of(rack)

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
        if self.closed or not (answered := self._order.complete(exchange)):
            return
        freed = freed_large = 0
        for first in answered:
            size = first.frame_bytes
            if size >= LARGE_FRAME_BYTES:
                freed_large += size
            else:
                freed += size
            self._manager.answered(first)
            if first.parts is not None:
                self._outgoing += first.parts
        self._bytes_held -= freed
        self._budget.release_small(freed)
        if freed_large:
            self._give_large(freed_large)
        if exchange.api_key not in self._pipelined or not self._order.in_progress:
            self._flush()
        elif not self._flush_scheduled:
            # A block of the log completes many requests in a row: their responses are sent in one write.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        if self.draining and not self._order.in_progress:
            self.close()
        elif not self._pumping and (self._order.waiting or self._paused_reading or self._framer.waiting_bytes):
            self.pump()

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
        manager, framer, order = self._manager, self._framer, self._order
        full = (
            self.draining
            or self._writing_paused
            or self._unmute is not None
            or len(order.waiting) + len(order.in_progress) >= self._requests_in_flight_max
            or self._bytes_held >= manager.connection_bytes_max
            or framer.waiting_bytes
            or (order.waiting and self._bytes_held > SCRATCH_BYTES and self._next_may_wait_long)
        )
        # A frame that has begun is always read to its end: its memory is taken, and only the client can complete it.
        pause = framer.frame is None and bool(full)
        if pause != self._paused_reading:
            self._paused_reading = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()
            manager.reading_changed(self, paused=pause)
