"""The listening server: accepts connections within limits, shares memory among them, closes idle ones, and drains them.

All limits on more than one connection are enforced here: the number of connections, in total and per address, and the
bytes of requests in memory. A connection at a limit waits without reading its socket, so its client slows down; others
are not affected. A connection that holds memory without progress while others wait for it is closed.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.node.logging.line_limit import LineLimit
from anabranch.broker.node.net.budget import FrameBudget
from anabranch.broker.node.net.closed_peers import find_closed_peers
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.net.framer import LARGE_FRAME_BYTES, SCRATCH_BYTES
from anabranch.broker.node.net.slabs import SlabPool
from anabranch.broker.node.net.stalls import STALL_CHECKS, TransferProgress, check_stalls
from anabranch.broker.node.net.traffic import ClientTraffic
from anabranch.broker.node.settings.client_areas import NetworkSettings
from anabranch.broker.node.settings.memory import MemorySizes
from anabranch.s3stream.catalog.values import DEFAULT_LISTENER
from anabranch.wal.interface import Buffer

if TYPE_CHECKING:
    from anabranch.broker.node.net.tls import Tls
    from anabranch.broker.node.net.tls_acceptor import TlsAcceptor

BACKLOG = 1024
LATENCY_BUCKETS = 26
IDLE_SWEEPS = 10
"""Sweeps per idle time: an idle connection is closed at most a tenth of the idle time late."""
PEER_CHECK_S = 1.0
"""Interval of checks of the sockets that are not read, for peers that have closed."""
PEER_CHECKS = 3
"""Consecutive checks before a connection is closed: a client that sends and closes is served if its turn is soon."""


def bind(host: str, port: int) -> socket.socket:
    """Reserve an address without listening yet, so that the port (0: any) is known early. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


class Gate(Protocol):
    """Authenticates the clients of a listener."""

    def meet(self, connection: Connection) -> None:
        """Take over the requests of a new connection, until its client is authenticated."""
        ...

    def forget(self, connection: Connection) -> None:
        """Drop what is kept for a connection that is closed."""
        ...


@dataclass(slots=True)
class NetworkStats:
    """Counters since the start."""

    accepted: int = 0
    refused_limit: int = 0
    throttled: int = 0
    """Connections held and closed because their addresses create too many (quotas)."""
    closed_idle: int = 0
    closed_bad_input: int = 0
    failed_handshakes: int = 0
    """Clients whose TLS handshake did not succeed."""
    authenticated: int = 0
    """Authentications by SASL that succeeded, including reauthentications."""
    failed_authentications: int = 0
    expired_sessions: int = 0
    """Connections closed because their clients had not authenticated themselves again in time."""
    closed_stalled: int = 0
    """Connections closed in mid-frame, or with unread responses, while others waited for memory."""


@dataclass(slots=True)
class Latency:
    """Durations of one API's requests, from the last byte received to the response, including the wait of a Fetch."""

    count: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * LATENCY_BUCKETS)
    """Bucket n counts requests under 2**n us, the last one all others."""

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.seconds += seconds
        self.buckets[min(int(seconds * 1e6).bit_length(), LATENCY_BUCKETS - 1)] += 1

    def quantile_us(self, quantile: float) -> int:
        """Upper bound in us of the latency at `quantile` (0 to 1)."""
        wanted, seen = self.count * quantile, 0
        for bucket, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return 1 << bucket
        return 0


@dataclass(slots=True)
class Server:
    """Listeners and their connections. `dispatch` must be set before it listens."""

    settings: NetworkSettings
    memory: MemorySizes
    pipelined: frozenset[int]
    """Keys of the APIs whose requests start next to each other."""
    log: FilteringBoundLogger = field(default_factory=lambda: structlog.get_logger("network"))
    stats: NetworkStats = field(default_factory=NetworkStats)
    latency: dict[int, Latency] = field(default_factory=dict)
    """Latency of requests by API key."""
    clock: Callable[[], float] = perf_counter
    tick: int = 0
    bytes_in: int = 0
    """Bytes received since the start."""
    traffic: ClientTraffic = field(default_factory=ClientTraffic)
    connections: set[Connection] = field(default_factory=set)
    new_exchange: Callable[[Connection, int, int, int, str | None], Exchange] = field(init=False)
    """Creates a request in progress."""
    connection_delay_s: Callable[[str], float] = field(init=False)
    """Counts a new connection from an address; returns for how long it is held instead of served, or 0."""
    take: Callable[[Connection, Buffer], bool] | None = None
    """Handles a frame that is like most, whole; returns False, having changed nothing, if `dispatch` must."""
    dispatch: Callable[[Exchange, Buffer], None] = field(init=False)
    """Handles one request; must not raise."""
    connections_max: int = field(init=False)
    """Limit in total. This and the next limits may change at run time; existing connections are kept."""
    connections_per_address_max: int = field(init=False)
    request_bytes_max: int = field(init=False)
    requests_in_flight_max: int = field(init=False)
    connection_bytes_max: int = field(init=False)
    frame_timeout_s: float = field(init=False)
    scratch: memoryview = field(init=False)
    slabs: SlabPool = field(init=False)
    budget: FrameBudget = field(init=False)
    _per_host: Counter[str] = field(default_factory=Counter)
    _transfers: Mapping[Connection, TransferProgress] = field(default_factory=dict)
    _stall_check: asyncio.TimerHandle | None = None
    _paused: dict[Connection, int] = field(default_factory=dict)
    """Connections that are not read, with the number of consecutive checks at which the peer had closed."""
    _peer_check: asyncio.TimerHandle | None = None
    gates: dict[str, Gate] = field(default_factory=dict)
    """Gates by the names of their listeners. A listener without one serves everybody."""
    ports: dict[str, int] = field(default_factory=dict)
    """Ports of the listeners by their names."""
    handshakes: int = 0
    """TLS handshakes under way. They count against the limits as connections do."""
    warnings: LineLimit = field(init=False)
    """Warnings that strangers cause."""
    _listeners: "list[asyncio.Server | TlsAcceptor]" = field(default_factory=list)
    _sweep: asyncio.TimerHandle | None = None
    _all_closed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.new_exchange = Exchange
        self.warnings = LineLimit(self.clock)
        self.connection_delay_s = lambda _: 0.0
        self.connections_max = self.settings.connections_max
        self.connections_per_address_max = self.settings.connections_per_address_max
        self.request_bytes_max = self.settings.request_bytes_max
        self.requests_in_flight_max = self.settings.requests_in_flight_max
        self.connection_bytes_max = self.settings.connection_bytes_max
        self.frame_timeout_s = self.settings.frame_timeout_ms / 1000
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.slabs = SlabPool(pooled_bytes_max=self.memory.slab_pool_bytes)
        self.budget = FrameBudget(self.memory.node_bytes_max, small_bytes_max=LARGE_FRAME_BYTES - 1)

    @property
    def bytes_held(self) -> int:
        """Bytes of requests in progress, including reserved bytes that have not arrived."""
        return self.budget.bytes_held

    async def listen(self, bound: socket.socket, listener: str = DEFAULT_LISTENER) -> None:
        """Accept connections on a socket from `bind`, as those of a listener of that name."""
        loop = asyncio.get_running_loop()
        self._add(
            bound,
            listener,
            await loop.create_server(
                lambda: Connection(self, self.next_number(), listener), sock=bound, backlog=BACKLOG
            ),
        )

    def listen_tls(
        self,
        bound: socket.socket,
        listener: str,
        tls: "Tls",
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        accepts_plaintext: bool = False,
    ) -> None:
        """Accept connections that use TLS, or also others. `spawn` runs a handshake as a task."""
        asks = listener not in self.gates  # as in Kafka, SASL names the clients of SASL_SSL, not certificates
        from anabranch.broker.node.net.tls_acceptor import TlsAcceptor  # needs an extra

        acceptor = TlsAcceptor(
            self,
            bound,
            listener,
            tls,
            spawn,
            asks_certificates=asks,
            accepts_plaintext=accepts_plaintext,
            backlog=BACKLOG,
        )
        self._add(bound, listener, acceptor)

    def _add(self, bound: socket.socket, listener: str, accepting: "asyncio.Server | TlsAcceptor") -> None:
        self.ports[listener] = int(bound.getsockname()[1])
        self._listeners.append(accepting)
        if self._sweep is None:
            self._schedule_sweep()

    async def stop_accepting(self) -> None:
        """Close the listeners; connections stay open."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for timer in (self._sweep, self._stall_check, self._peer_check):
            if timer is not None:
                timer.cancel()
        self._sweep = self._stall_check = self._peer_check = None

    async def drain(self, timeout_ms: int) -> int:
        """Let each connection finish its requests, then close it. Return how many were aborted."""
        await self.stop_accepting()
        for connection in list(self.connections):
            connection.drain()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.connections:
                    self._all_closed.clear()
                    await self._all_closed.wait()
        except TimeoutError:
            return self.drop_all()
        return 0

    def drop_all(self) -> int:
        """Abort all connections; return how many there were."""
        left = list(self.connections)
        for connection in left:
            connection.abort()
        return len(left)

    # calls by connections

    def next_number(self) -> int:
        """Return the number of the next connection."""
        return self.stats.accepted + self.stats.refused_limit

    def connected(self, connection: Connection) -> bool:
        """Register a connection, within the limits."""
        if not self._take_place(connection.host):
            return False
        self.stats.accepted += 1
        self.connections.add(connection)
        if (gate := self.gates.get(connection.listener)) is not None:
            gate.meet(connection)
        return True

    def hold_off_s(self, host: str) -> float:
        """Count a new connection against its address's quota; return for how long it is held, or 0 if it is served."""
        delay_s = self.connection_delay_s(host)
        if delay_s:
            self.stats.throttled += 1
            self.log.debug("connection throttled", client=host, seconds=delay_s)
        return delay_s

    def begin_handshake(self, host: str) -> bool:
        """Count a connection against the limits; return False if one refuses it."""
        if not self._take_place(host):
            return False
        self.handshakes += 1
        return True

    def end_handshake(self, host: str, *, failed: bool = False) -> None:
        """Count it no longer: it has become a connection, or has failed."""
        self.handshakes -= 1
        self.stats.failed_handshakes += failed
        self._give_place(host)

    def _take_place(self, host: str) -> bool:
        """Count a connection against the limits of its address; return False if they are reached."""
        too_many = len(self.connections) + self.handshakes >= self.connections_max
        if too_many or self._per_host[host] >= self.connections_per_address_max:
            self.stats.refused_limit += 1
            limit = "connections_max" if too_many else "connections_per_address_max"
            self.warn("connection refused", client=host, limit=limit, value=getattr(self, limit))
            return False
        self._per_host[host] += 1
        return True

    def _give_place(self, host: str) -> None:
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def disconnected(self, connection: Connection, error: Exception | None) -> None:
        """Unregister a connection."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._paused.pop(connection, None)
        if (gate := self.gates.get(connection.listener)) is not None:
            gate.forget(connection)
        self._give_place(connection.host)
        if not self.connections:
            self._all_closed.set()
        self.log.debug("disconnected", client=connection.host, port=connection.port, error=error and str(error))

    def warn(self, event: str, **fields: Any) -> None:
        """Log a warning that a stranger has caused, unless there are too many of its kind."""
        left_out = self.warnings.fields(event)
        if left_out is not None:
            self.log.warning(event, **fields, **left_out)

    def refused(self, connection: Connection, reason: str) -> None:
        """Log why a connection is closed for invalid input."""
        self.stats.closed_bad_input += 1
        self.warn("connection closed", client=connection.host, port=connection.port, reason=reason)

    def answered(self, exchange: Exchange) -> None:
        """Count a request by its duration."""
        latency = self.latency.get(exchange.api_key)
        if latency is None:
            latency = self.latency[exchange.api_key] = Latency()
        latency.observe(self.clock() - exchange.started)

    def reserve(self, connection: Connection, size: int) -> bool:
        """Reserve memory for a frame. While one waits, the others are checked for stalls."""
        if self.budget.reserve(connection, size):
            return True
        if self._stall_check is None:
            self._schedule_stall_check()
        return False

    # stalled peers

    def _schedule_stall_check(self) -> None:
        delay = self.frame_timeout_s / STALL_CHECKS
        self._stall_check = asyncio.get_running_loop().call_later(delay, self._close_stalled)

    def _close_stalled(self) -> None:
        """Close connections that stall in mid-frame or do not read responses, while others wait for memory."""
        budget = self.budget
        if not budget.waiting:
            self._stall_check, self._transfers = None, {}
            return
        small_too = budget.small_is_short
        transfers = [
            (connection, each)
            for connection in self.connections
            if (small_too or connection.holds_large) and (each := connection.transfer) is not None
        ]
        self._transfers, stalled = check_stalls(self._transfers, transfers)
        for connection in stalled:
            self.stats.closed_stalled += 1
            self.warn(
                "connection closed",
                client=connection.host,
                port=connection.port,
                reason=f"no progress in sending a frame or reading responses for {self.settings.frame_timeout_ms} ms "
                "while others wait for memory",
                waiting=budget.waiting,
            )
            connection.abort()
        self._schedule_stall_check()

    # closed peers

    def reading_changed(self, connection: Connection, *, paused: bool) -> None:
        """Check connections that are not read: otherwise a closed peer would not be noticed."""
        if not paused:
            self._paused.pop(connection, None)
            return
        self._paused[connection] = 0
        if self._peer_check is None:
            self._schedule_peer_check()

    def _schedule_peer_check(self) -> None:
        self._peer_check = asyncio.get_running_loop().call_later(PEER_CHECK_S, self._close_abandoned)

    def _close_abandoned(self) -> None:
        """Close connections whose peers have closed, and release their memory."""
        self._peer_check = None
        if not self._paused:
            return
        closed = find_closed_peers(connection.descriptor for connection in self._paused)
        for connection, checks in list(self._paused.items()):
            self._paused[connection] = checks + 1 if connection.descriptor in closed else 0
            if checks + 1 >= PEER_CHECKS and connection.descriptor in closed:
                connection.abort()
        self._schedule_peer_check()

    # idle connections

    def _schedule_sweep(self) -> None:
        delay = self.settings.idle_timeout_ms / IDLE_SWEEPS / 1000
        self._sweep = asyncio.get_running_loop().call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        self.tick += 1
        for connection in list(self.connections):
            if self.tick - connection.active_tick > IDLE_SWEEPS and connection.idle:
                self.stats.closed_idle += 1
                connection.close()
        self._schedule_sweep()
