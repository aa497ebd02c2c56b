"""Connections to the internal ports of other nodes.

There is one connection per node. The first call opens it, and all calls share it: requests are pipelined, and responses
are matched by correlation id, in any order. A cancelled call keeps its place until the response arrives, so a node that
does not read cannot make this one hold more and more.

A connection ends when it fails, when its node does not answer, and when the node has another epoch or address or is no
longer known to live. All its calls fail then, and the next call opens a new one: at once for a new epoch or address,
otherwise after a pause that grows with each failure.
"""

import asyncio
import os
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from struct import Struct
from typing import Any, Final

import structlog

from anabranch.addresses import host_port
from anabranch.broker.node.peers.handshake import NONCE_BYTES, STRANGER_BYTES_MAX, Role, is_proof, make_proof
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.members import Member, Members
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.protocol.api import Api, api_of
from anabranch.protocol.codec import decode_exact
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.header import response_header
from anabranch.protocol.messages.internal import authenticate, hello
from anabranch.protocol.requests import request_frame

OpenConnection = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a host and port. Raises OSError."""

CALL_S: Final = 5.0
"""Time limit of a call, of a handshake, and of a node's silence while it owes responses."""
REFUSAL_S: Final = 1.0
"""Time within which a node that refuses a connection closes it."""
LOST_S: Final = 30.0
"""Limit of the wait for a response, even if others arrive."""
CALLS_MAX: Final = 1000
"""Requests that one node owes responses to. Further calls wait for their turn."""
CALLS_BYTES_MAX: Final = 16 << 20
"""Bytes of these requests. A call beyond them fails."""
REQUEST_BYTES_MAX: Final = 1 << 20
"""Largest request that a node accepts from another; markers take less (`broker.kafka.transactions.marker_router`)."""
RESPONSE_BYTES_MAX: Final = 1 << 20
PAUSE_S: Final = (0.05, 1.0)
"""Shortest and longest pause after a failure. It doubles with each, and a random half of it is left out."""
DOUBLINGS_MAX: Final = 10
CLIENT_ID: Final = b"node"
STOPPING: Final = "this node is stopping"
_INT32: Final = Struct(">i")
_CORRELATION_ID_MAX: Final = 2**31 - 1

_log = structlog.get_logger(__name__)


class _HandshakeFailed(Exception):
    """The other side is not the node that it should be."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Name and secret of the cluster, network and randomness."""

    cluster: str
    secret: ClusterSecret
    open_connection: OpenConnection
    random_bytes: Callable[[int], bytes]
    random: Random


@dataclass(slots=True)
class _Call:
    """A request that was sent and has no response yet."""

    api: Api
    version: int
    frame_bytes: int
    sent_s: float
    answered: "asyncio.Future[Any]"
    """Cancelled: its caller has given up."""


class _Link:
    """One connection to one life of a node, from the attempt to open it until its end."""

    def __init__(
        self, context: LinkContext, own: Member, member: Member, exchanged: Counter[int], failures: int
    ) -> None:
        self.member = member
        self.failures = failures
        """Failures in a row, until a response arrives."""
        self.failure = ""
        """Reason of the end; empty while there is hope."""
        self.retry_s = 0.0
        """Time at which the next connection may be opened."""
        self._context = context
        self._own = own
        self._exchanged = exchanged
        self._loop = asyncio.get_running_loop()
        self._opened = asyncio.Event()
        """Set when requests may be sent, and at the end."""
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._calls: dict[int, _Call] = {}
        """Calls by correlation id, the oldest one first."""
        self._calls_bytes = 0
        self._correlation_id = 0
        self._began_s = self._loop.time()
        self._received_s = 0.0
        """Time of the last response."""
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._check: asyncio.TimerHandle | None = None

    # calls

    async def call(self, request: Any, version: int) -> Any:
        """Send a request, and wait for its response without limit. Raises PeerUnavailable."""
        await self._opened.wait()
        await self._turns.acquire()
        try:
            answered = self._send(api_of(type(request)), request, version)
        except BaseException:
            self._turns.release()
            raise
        return await answered

    def _send(self, api: Api, request: Any, version: int) -> "asyncio.Future[Any]":
        if self.failure:
            raise PeerUnavailable(self.failure)
        assert self._writer is not None, "it is open"
        self._correlation_id = correlation_id = self._correlation_id % _CORRELATION_ID_MAX + 1
        frame = request_frame(version, correlation_id, CLIENT_ID, request)
        frame_bytes = sum(map(len, frame))
        if self._calls_bytes + frame_bytes > CALLS_BYTES_MAX or frame_bytes > REQUEST_BYTES_MAX:
            raise PeerUnavailable(
                f"{self._where}: {self._calls_bytes} bytes of requests have no response yet, no room for {frame_bytes}"
            )
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._calls[correlation_id] = _Call(api, version, frame_bytes, self._loop.time(), answered)
        self._calls_bytes += frame_bytes
        self._exchanged[self.member.node_id] += frame_bytes
        self._writer.writelines(frame)
        if self._check is None:
            self._check = self._loop.call_later(CALL_S, self._check_silence)
        return answered

    def _check_silence(self) -> None:
        """End the connection if the node does not answer."""
        self._check = None
        if not self._calls:
            return
        oldest_s, now_s = next(iter(self._calls.values())).sent_s, self._loop.time()
        due_s = min(max(oldest_s, self._received_s) + CALL_S, oldest_s + LOST_S)
        if now_s >= due_s:  # the timer's own time: a difference may be rounded to less than CALL_S, again and again
            self._end("it does not answer")  # and so does the task, when it finds its connection aborted
        else:
            self._check = self._loop.call_at(due_s, self._check_silence)

    async def answers(self) -> bool:
        """Return whether the node completes the handshake, and close the connection."""
        try:
            await self._opened.wait()
            return not self.failure
        finally:
            self.close("it was opened to see whether the node answers")

    # the connection

    async def run(self) -> None:
        """Open the connection, and receive responses until its end."""
        if self.failure:
            return
        self._task = asyncio.current_task()
        try:
            async with asyncio.timeout(CALL_S):
                member = self.member
                connect = self._context.open_connection(member.internal_host, member.internal_port)
                reader, self._writer = await connect
                await self._shake_hands(reader, self._writer)
            self._opened.set()
            while True:
                self._take(await _receive(reader, RESPONSE_BYTES_MAX))
        except (OSError, EOFError, ProtocolError, _HandshakeFailed) as error:
            unused = self._opened.is_set() and not self._calls  # the other node closes what is idle, and stops
            self._end(self._describe(error), expected=unused)
        finally:
            self._end(STOPPING, expected=True)

    def _describe(self, error: Exception) -> str:
        begins = not self._opened.is_set()
        if begins and (isinstance(error, EOFError | ConnectionResetError)):
            waited_s = self._loop.time() - self._began_s
            if waited_s >= REFUSAL_S:  # it knows nothing of this node: packets are lost on the way
                return f"no answer for {waited_s:.1f} s, and then the connection was closed"
            return "it refuses the connection, and its log says why"
        if isinstance(error, EOFError):
            return "the connection is lost"
        if isinstance(error, ssl.SSLError):
            return f"it ends the TLS connection ({error.reason}), and its log says why"
        if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)  # asyncio's own texts repeat the address
        return str(error) or f"no {'connection' if self._writer is None else 'answer'} within {CALL_S:g} s"

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Authenticate both sides (`broker.node.peers.handshake`)."""
        context, own, member = self._context, self._own, self.member
        greeting = hello.HelloRequest(
            cluster=context.cluster,
            node_id=own.node_id,
            node_epoch=own.epoch,
            target_id=member.node_id,
            target_epoch=member.epoch,
            nonce=context.random_bytes(NONCE_BYTES),
        )
        challenge: hello.HelloResponse = await _ask(reader, writer, greeting)
        if len(challenge.nonce) != NONCE_BYTES:
            raise _HandshakeFailed(f"its nonce has {len(challenge.nonce)} bytes")
        secret = context.secret.value
        proof = make_proof(secret, Role.SENDER, greeting, challenge.nonce)
        answer: authenticate.AuthenticateResponse = await _ask(
            reader, writer, authenticate.AuthenticateRequest(proof=proof)
        )
        if not is_proof(answer.proof, secret, Role.RECEIVER, greeting, challenge.nonce):
            raise _HandshakeFailed("it does not know the cluster's secret")

    def _take(self, frame: bytes) -> None:
        """Hand a response to its caller. Raises ProtocolError."""
        (correlation_id,) = _INT32.unpack_from(frame)
        call = self._calls.get(correlation_id)
        if call is None:
            raise ProtocolError(f"a response to request {correlation_id}, which was not sent")
        header = response_header(call.api.key, call.version, correlation_id)
        response = decode_exact(call.api.response, frame, call.version, len(header))
        del self._calls[correlation_id]
        self._exchanged[self.member.node_id] += len(frame) + _INT32.size
        self._forget(call)
        self._received_s = self._loop.time()
        self.failures = 0
        if not call.answered.done():
            call.answered.set_result(response)

    def _forget(self, call: _Call) -> None:
        self._calls_bytes -= call.frame_bytes
        self._turns.release()

    # the end

    @property
    def _where(self) -> str:
        member = self.member
        return f"node {member.node_id} at {host_port(member.internal_host, member.internal_port)}"

    def close(self, reason: str) -> None:
        """End the connection because it is no longer needed; all calls fail."""
        self._end(reason, expected=True)
        if self._task is not None:
            self._task.cancel()

    def _end(self, reason: str, *, expected: bool = False) -> None:
        if self.failure:
            return
        self.failure = f"{self._where}: {reason}"
        if not expected:
            self._note_failure()
        if self._check is not None:
            self._check.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self._opened.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._forget(call)
            if not call.answered.done():
                call.answered.set_exception(PeerUnavailable(self.failure))

    def _note_failure(self) -> None:
        """Log the first failure in a row, and let the next attempt wait."""
        if self.failures == 0:
            _log.warning("no connection to a node", node_id=self.member.node_id, reason=self.failure)
        shortest_s, longest_s = PAUSE_S
        pause_s = min(shortest_s * 2 ** min(self.failures, DOUBLINGS_MAX), longest_s)
        self.retry_s = self._loop.time() + pause_s * self._context.random.uniform(0.5, 1)
        self.failures += 1


class Links:
    """The way to other nodes: `Peers`. `spawn` runs a coroutine as a task of this node."""

    def __init__(
        self, context: LinkContext, members: Members, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self.exchanged: Counter[int] = Counter()
        """Bytes of requests to each node, and of its responses, since the start."""
        self._context = context
        self._members = members
        self._spawn = spawn
        self._links: dict[int, _Link] = {}
        """The newest connection to each living node, open or not."""
        self._closed = False
        members.watch(self._close_outdated)
        context.secret.watch(self._begin_anew)

    async def call(self, node_id: int, request: Any, version: int) -> Any:
        """Send a request message of the protocol in that version to another node; return its response message.

        Raises PeerUnavailable when the node is unknown, cannot be reached or does not answer in time.
        """
        link = self._link_to(node_id)
        try:
            async with asyncio.timeout(CALL_S):
                return await link.call(request, version)
        except TimeoutError:
            raise PeerUnavailable(f"node {node_id} has not answered within {CALL_S:g} s") from None

    async def reaches(self, member: Member) -> bool:
        """Return whether a node that is not known to live answers at its internal port."""
        if self._closed or not member.internal_port:
            return False
        link = _Link(
            self._context, self._members.own, member, self.exchanged, failures=1
        )  # the first failure would be logged
        self._spawn(link.run())
        return await link.answers()

    def _link_to(self, node_id: int) -> _Link:
        """Return the open connection to a node, or a new one that is being opened. Raises PeerUnavailable."""
        assert node_id != self._members.own.node_id, "a node calls others only"
        member = self._members.get(node_id)
        if self._closed or member is None:
            raise PeerUnavailable(STOPPING if self._closed else f"node {node_id} is not known to live")
        if not member.internal_port:
            raise PeerUnavailable(f"node {node_id} takes no connections from other nodes: it runs an earlier version")
        failures = 0
        link = self._links.get(node_id)
        if link is not None:
            if not link.failure:
                return link
            if asyncio.get_running_loop().time() < link.retry_s:
                raise PeerUnavailable(link.failure)
            failures = link.failures
        link = self._links[node_id] = _Link(self._context, self._members.own, member, self.exchanged, failures)
        self._spawn(link.run())
        return link

    def _close_outdated(self) -> None:
        """Close the connections to nodes that have another epoch or address, or are no longer known to live."""
        for node_id, link in list(self._links.items()):
            if self._members.get(node_id) != link.member:
                del self._links[node_id]
                link.close("it has another epoch or address, or is not known to live any more")

    def _begin_anew(self) -> None:
        """Close all connections, which next calls open with the new secret."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close("the secret of the cluster was replaced")

    def close(self) -> None:
        """Close all connections; calls fail from now on."""
        self._closed = True
        for link in self._links.values():
            link.close(STOPPING)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: object) -> Any:
    """Send a request of the handshake; return its response. Raises IncompleteReadError, ProtocolError."""
    api = api_of(type(request))
    writer.writelines(request_frame(api.max_version, 0, CLIENT_ID, request))
    frame = await _receive(reader, STRANGER_BYTES_MAX)
    return decode_exact(api.response, frame, api.max_version, _INT32.size)


async def _receive(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Return a frame without its size. Raises IncompleteReadError, ProtocolError."""
    (size,) = _INT32.unpack(await reader.readexactly(_INT32.size))
    if not _INT32.size <= size <= bytes_max:
        raise ProtocolError(f"a response of {size} bytes, allowed are {_INT32.size} to {bytes_max}")
    return await reader.readexactly(size)
