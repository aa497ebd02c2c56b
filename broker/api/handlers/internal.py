"""The internal port: other nodes authenticate themselves there, write markers, verify transactions, move partitions.

They read and write the states of share partitions that this node keeps. DescribeQuorum, sent by a node, asks how far
this one has come with the catalog's changes. Relay and DescribeRuns ask this node what only a leader or coordinator can
answer, for a user of the other node's admin port; Relay also brings dead letters of share groups to the leader of their
topic. RegistryCall asks the schema registry, whose log this node leads. Relayed as well: loads for the controller, its
plans for any node, metrics for the first process of a start, and the order that a drained node ends.

A connection begins with Hello and Authenticate (`broker.node.peers.handshake`), in small frames and in limited time.
Whatever else arrives closes it, with one line in the log that says why. Then its requests are served side by side, as
long as no later life of the sender is known.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import Handler, Handlers, declare
from anabranch.broker.api.handlers import (
    add_partitions_to_txn,
    delete_share_group_state,
    describe_quorum,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
    write_txn_markers,
)
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import Exchange, Peer
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.peers.handshake import NONCE_BYTES, STRANGER_BYTES_MAX, Role, is_proof, make_proof
from anabranch.broker.node.peers.links import CALLS_MAX, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.broker.node.settings.area import MIB
from anabranch.broker.node.settings.client_areas import NetworkSettings
from anabranch.broker.node.settings.memory import MemorySizes
from anabranch.protocol.codec import decode_exact
from anabranch.protocol.errors import KafkaError, ProtocolError
from anabranch.protocol.messages.internal import authenticate, hello
from anabranch.protocol.messages.internal.authenticate import AuthenticateRequest, AuthenticateResponse
from anabranch.protocol.messages.internal.describe_runs import CachedRun, DescribeRunsRequest, DescribeRunsResponse
from anabranch.protocol.messages.internal.describe_shares import (
    DescribeSharesRequest,
    DescribeSharesResponse,
    LiveShare,
)
from anabranch.protocol.messages.internal.hand_over import HandOverRequest, HandOverResponse
from anabranch.protocol.messages.internal.hello import HelloRequest, HelloResponse
from anabranch.protocol.messages.internal.prepare_move import PrepareMoveRequest, PrepareMoveResponse
from anabranch.protocol.messages.internal.registry_call import RegistryCallRequest, RegistryCallResponse
from anabranch.protocol.messages.internal.relay import RelayRequest, RelayResponse
from anabranch.wal.interface import Buffer

SWEEP_S: Final = 2.5
"""A connection that is not authenticated is closed at the second sweep that finds it."""
CONNECTIONS_MAX: Final = 1000
"""Connections in total, one for each other node."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 100
CONNECTION_BYTES_MAX: Final = 4 * MIB
NODE_BYTES_MAX: Final = 16 * MIB


def _prepare_move(serving: Serving, request: PrepareMoveRequest, _: Exchange) -> PrepareMoveResponse:
    return serving.target.prepare(request)


def _hand_over(serving: Serving, request: HandOverRequest, exchange: Exchange) -> Coroutine[Any, Any, HandOverResponse]:
    assert exchange.peer is not None, "only authenticated nodes are served"
    return serving.target.take(request, exchange.peer)


def describe_runs(serving: Serving, request: DescribeRunsRequest, _: Exchange | None = None) -> DescribeRunsResponse:
    """Answer at once: the range of a partition that is in the log cache here."""
    try:
        partition = serving.topics.partition(request.topic, request.partition)
    except KafkaError as error:
        return DescribeRunsResponse(error_code=error.code)
    stream = partition.stream
    return DescribeRunsResponse(
        start_offset=partition.log_start_offset,
        end_offset=stream.next_offset,
        committed_offset=stream.committed_offset,
        runs=[
            CachedRun(
                base_offset=run.start_offset,
                end_offset=run.end_offset,
                size_bytes=run.size_bytes,
                committed=run.committed,
            )
            for run in stream.cached_runs()
        ],
    )


def _describe_shares(serving: Serving, request: DescribeSharesRequest, _: Exchange) -> DescribeSharesResponse:
    return DescribeSharesResponse(
        shares=[
            LiveShare(
                topic=led.partition.topic,
                partition=led.partition.index,
                in_flight=figures.in_flight,
                acquired=figures.acquired,
                archiving=figures.archiving,
            )
            for led in serving.share_partitions
            if led.key.group_id == request.group_id and (figures := led.figures()) is not None
        ]
    )


async def _registry_call(serving: Serving, request: RegistryCallRequest, _: Exchange) -> RegistryCallResponse:
    from anabranch.broker.kafka.schemas.model import RegistryError
    from anabranch.broker.kafka.schemas.requests import RegistryRequest, failure_of

    answer = await serving.schemas().answer(
        RegistryRequest(request.method, bytes(request.target).decode("ascii", "replace"), bytes(request.body))
    )
    if len(answer.body) > RESPONSE_BYTES_MAX - 1024:
        answer = failure_of(RegistryError(413, "the answer is too large to pass on: ask for pages (offset, limit)"))
    return RegistryCallResponse(status=answer.status, body=answer.body)


def _by_key(*handlers: Handler) -> Handlers:
    return {handler.api.key: handler for handler in handlers}


INTERNAL_HANDLERS: Final = _by_key(
    write_txn_markers.API,
    replace(add_partitions_to_txn.API, min_version=add_partitions_to_txn.BATCH_VERSION),
    initialize_share_group_state.API,
    read_share_group_state.API,
    write_share_group_state.API,
    delete_share_group_state.API,
    read_share_group_state_summary.API,
    declare(PrepareMoveRequest, _prepare_move, guard=open_to_all),
    declare(HandOverRequest, _hand_over, guard=open_to_all),
    declare(DescribeRunsRequest, describe_runs, guard=open_to_all),
    declare(RegistryCallRequest, _registry_call, guard=open_to_all),
    replace(describe_quorum.API, min_version=describe_quorum.NODES_SINCE, function=describe_quorum.report),
)
"""The APIs that nodes send to each other. Only their versions for brokers."""


def relayed(request_type: type, answer: Callable[[Any], Any]) -> Handler:
    """Return the handler of a request of our own that comes by Relay; `answer` gets it, and returns the response.

    It is relayed, so that a node of an earlier version says that it does not know it, instead of closing the link.
    """
    return declare(request_type, lambda _serving, request, _exchange: answer(request), guard=open_to_all, relayed=True)


DESCRIBE_SHARES: Final = declare(DescribeSharesRequest, _describe_shares, guard=open_to_all, relayed=True)
"""Relayed like those of `relayed`; it needs the node's parts."""


def internal_handlers(local: LocalRequests) -> Handlers:
    """Return these APIs, and Relay, which asks this node on behalf of another one."""

    def relay(_serving: Serving, request: RelayRequest, _exchange: Exchange) -> Coroutine[Any, Any, RelayResponse]:
        return local.relay(request)

    return {**INTERNAL_HANDLERS, **_by_key(declare(RelayRequest, relay, guard=open_to_all))}


def internal_server(network: NetworkSettings, memory: MemorySizes) -> Server:
    """Return the server of the internal port, with its own small limits."""
    limits = {
        "request_bytes_max": STRANGER_BYTES_MAX,
        "requests_in_flight_max": CALLS_MAX,
        "connection_bytes_max": CONNECTION_BYTES_MAX,
        "connections_max": CONNECTIONS_MAX,
        "connections_per_address_max": CONNECTIONS_PER_ADDRESS_MAX,
    }
    sizes = replace(memory, node_bytes_max=NODE_BYTES_MAX, slab_pool_bytes=CONNECTION_BYTES_MAX)
    return Server(replace(network, **limits), sizes, pipelined=frozenset())


class _Refused(Exception):
    """The connection must be closed; the text is the reason."""


class _Challenge(NamedTuple):
    """A Hello that was accepted, and the nonce that it was answered with."""

    hello: HelloRequest
    nonce: bytes


class InternalPort:
    """Authenticates connections of a server, and passes requests of other nodes to `serve`."""

    def __init__(
        self,
        server: Server,
        members: Members,
        *,
        cluster: str,
        secret: ClusterSecret,
        random_bytes: Callable[[int], bytes],
        hear: Callable[[int, int], None],
        serve: Callable[[Exchange, Buffer], None],
    ) -> None:
        """Set up; `hear` receives id and epoch of each node that sends a request."""
        self._server = server
        self._members = members
        self._cluster = cluster
        self._secret = secret
        self._random_bytes = random_bytes
        self._hear = hear
        self._serve = serve
        self._challenges: WeakKeyDictionary[Connection, _Challenge] = WeakKeyDictionary()
        server.dispatch = self.dispatch
        secret.watch(self._begin_anew)

    async def run(self) -> None:
        """Close connections that do not authenticate themselves in time, until cancelled."""
        seen: set[Connection] = set()
        while True:
            await asyncio.sleep(SWEEP_S)
            strangers = {connection for connection in self._server.connections if connection.peer is None}
            for connection in strangers & seen:
                connection.refuse(f"no node has authenticated itself within {2 * SWEEP_S:g} s")
            seen = strangers - seen

    def dispatch(self, exchange: Exchange, frame: Buffer) -> None:
        """Handle a request."""
        try:
            if exchange.peer is not None:
                self._check_current(exchange.peer)
                self._hear(exchange.peer.node_id, exchange.peer.node_epoch)
                self._serve(exchange, frame)
            else:
                exchange.complete(self._answer_stranger(exchange, frame))
        except (_Refused, ProtocolError) as error:
            exchange.connection.refuse(str(error))

    def _answer_stranger(self, exchange: Exchange, frame: Buffer) -> HelloResponse | AuthenticateResponse:
        """Return the response to a step of the handshake. Raises _Refused, ProtocolError."""
        connection, version = cast("Connection", exchange.connection), exchange.api_version
        if exchange.api_key == hello.KEY and not version:
            return self._greet(connection, decode_exact(HelloRequest, frame, version, exchange.header_end))
        if exchange.api_key == authenticate.KEY and not version:
            return self._admit(connection, decode_exact(AuthenticateRequest, frame, version, exchange.header_end))
        raise _Refused(
            f"request with API key {exchange.api_key} in version {version} before a Hello: this port is for nodes of "
            "the cluster, not for clients"
        )

    def _greet(self, connection: Connection, request: HelloRequest) -> HelloResponse:
        """Return a challenge. Raises _Refused."""
        own = self._members.own
        if request.cluster != self._cluster:
            raise _Refused(
                f"Hello of node {request.node_id} of cluster {request.cluster!r}: this is cluster {self._cluster!r}"
            )
        if (request.target_id, request.target_epoch) != (own.node_id, own.epoch) or request.node_id == own.node_id:
            raise _Refused(
                f"Hello of node {request.node_id} for epoch {request.target_epoch} of node {request.target_id}: "
                f"this is epoch {own.epoch} of node {own.node_id}"
            )
        if len(request.nonce) != NONCE_BYTES:
            raise _Refused(f"Hello of node {request.node_id} with a nonce of {len(request.nonce)} bytes")
        self._check_current(Peer(request.node_id, request.node_epoch))
        challenge = self._challenges[connection] = _Challenge(request, self._random_bytes(NONCE_BYTES))
        return HelloResponse(nonce=challenge.nonce)

    def _admit(self, connection: Connection, request: AuthenticateRequest) -> AuthenticateResponse:
        """Serve the connection from now on, and return the proof of this node. Raises _Refused."""
        challenge = self._challenges.pop(connection, None)
        if challenge is None:
            raise _Refused("Authenticate before a Hello")
        greeting, nonce = challenge
        if not is_proof(request.proof, self._secret.value, Role.SENDER, greeting, nonce):
            raise _Refused(f"Hello of node {greeting.node_id}, which does not know the secret of the cluster")
        peer = Peer(greeting.node_id, greeting.node_epoch)
        self._check_current(peer)
        connection.trust(peer, request_bytes_max=REQUEST_BYTES_MAX)
        for other in self._connections_of(peer.node_id):
            if other.peer != peer:
                other.refuse(f"node {peer.node_id} has connected with epoch {peer.node_epoch}")
        return AuthenticateResponse(proof=make_proof(self._secret.value, Role.RECEIVER, greeting, nonce))

    def _begin_anew(self) -> None:
        """Close the connections of nodes that have proved that they know another secret."""
        for connection in list(self._server.connections):
            connection.refuse("the secret of the cluster was replaced")

    def _connections_of(self, node_id: int) -> Sequence[Connection]:
        return [each for each in self._server.connections if each.peer is not None and each.peer.node_id == node_id]

    def _check_current(self, peer: Peer) -> None:
        """Raise _Refused if a later life of the node is known."""
        member = self._members.get(peer.node_id)
        epochs = [each.peer.node_epoch for each in self._connections_of(peer.node_id) if each.peer is not None]
        newest = max(epochs, default=0) if member is None else max(member.epoch, *epochs, 0)
        if peer.node_epoch < newest:
            raise _Refused(f"epoch {peer.node_epoch} of node {peer.node_id}, which has epoch {newest} now")
