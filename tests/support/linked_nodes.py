"""Nodes that are only linked: a real internal port and real links each, over a simulated network on virtual time.

    @linked
    async def test(network: LinkedNodes) -> None:
        first, second = await network.start(1), await network.start(2)
        call = first.ask(2)
        (await second.received()).complete(ANSWER)
        await call

Requests that a node receives wait in `inbox` until a test completes them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import Signature, signature
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from anabranch.broker.api.handlers.dispatch import Dispatcher
from anabranch.broker.api.handlers.internal import INTERNAL_HANDLERS, InternalPort, internal_server
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.links import LinkContext, Links
from anabranch.broker.node.peers.members import Member, Members
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.broker.node.settings.client_areas import NetworkSettings
from anabranch.broker.node.settings.memory import memory_for
from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.codec import decode_exact
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
)
from anabranch.wal.interface import Buffer
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network, Port
from tests.support.raw_client import RawClient

CLUSTER: Final = "c"
SECRET: Final = bytes(range(32))
VERSION: Final = 5
SIZES: Final = memory_for(Settings()).sizes


def request(name: str = "t", *, size: int = 0) -> AddPartitionsToTxnRequest:
    """A request that is known by its transactional id."""
    return AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnTransaction(transactional_id=name + "x" * size, producer_id=1)]
    )


def answer(code: int = 0) -> AddPartitionsToTxnResponse:
    """A response that is known by its code."""
    return AddPartitionsToTxnResponse(error_code=code)


class LinkedNode:
    """One life of a node."""

    def __init__(self, nodes: "LinkedNodes", node_id: int, epoch: int, secret: bytes) -> None:
        self._nodes = nodes
        self.member = Member(node_id, epoch, (), internal_host=f"node-{node_id}", internal_port=7000 + epoch)
        self.members = Members(self.member)
        self.tasks: set[asyncio.Task[None]] = set()
        self.attempts = 0
        """Connections that it has tried to open."""
        self.inbox: asyncio.Queue[tuple[Exchange, AddPartitionsToTxnRequest]] = asyncio.Queue()
        self.server = internal_server(NetworkSettings(), SIZES)
        randbytes = nodes.random.randbytes
        self.secret = ClusterSecret(cast("Any", nodes), secret)
        self.port = InternalPort(
            self.server,
            self.members,
            cluster=CLUSTER,
            secret=self.secret,
            random_bytes=randbytes,
            hear=lambda _node_id, _epoch: None,
            serve=self._serve,
        )
        self._dispatcher = Dispatcher(
            cast("Any", SimpleNamespace(requests={}, parking=Parking(), ownership=SimpleNamespace(may_lapse=False))),
            spawn=self.spawn,
            handlers=INTERNAL_HANDLERS,
        )
        context = LinkContext(CLUSTER, self.secret, self._open, randbytes, nodes.random)
        self.links = Links(context, self.members, self.spawn)
        self.spawn(self.port.run())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _open(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.attempts += 1
        return await self._nodes.network.connect(self.member.internal_host, (host, port))

    def _serve(self, exchange: Exchange, frame: Buffer) -> None:
        handler = INTERNAL_HANDLERS.get(exchange.api_key)
        if handler is None or exchange.api_version < handler.min_version:
            self._dispatcher.dispatch(exchange, frame)  # it refuses
            return
        self.inbox.put_nowait(
            (exchange, decode_exact(AddPartitionsToTxnRequest, frame, exchange.api_version, exchange.header_end))
        )

    def ask(self, node_id: int, name: str = "t", *, size: int = 0) -> "asyncio.Task[Any]":
        """Begin a call."""
        return asyncio.get_running_loop().create_task(self.links.call(node_id, request(name, size=size), VERSION))

    async def received(self) -> Exchange:
        """Wait for the next request."""
        exchange, _ = await self.inbox.get()
        return exchange

    async def received_names(self, count: int) -> dict[str, Exchange]:
        """Wait for requests; return them by their transactional ids."""
        found = [await self.inbox.get() for _ in range(count)]
        return {message.transactions[0].transactional_id: exchange for exchange, message in found}

    async def stop(self) -> None:
        """Close port and links, and end the port's task. Fails if anything of the links is left."""
        await self.server.drain(0)
        self.links.close()
        (sweep,) = [task for task in self.tasks if "InternalPort.run" in repr(task.get_coro())]
        sweep.cancel()
        await asyncio.sleep(0.01)
        assert not self.tasks


class LinkedNodes:
    """All nodes of a test. Each knows all others."""

    def __init__(self, loop: SimLoop) -> None:
        self.random = Random(1)
        self.network = Network(loop, Random(2))
        self.nodes: dict[int, LinkedNode] = {}
        self._strangers: list[RawClient] = []
        self.secret = SECRET
        """The secret in the catalog."""

    async def current_secret(self) -> bytes:
        """Return the secret, as the catalog does."""
        return self.secret

    async def start(self, node_id: int, epoch: int = 1, *, secret: bytes = SECRET) -> LinkedNode:
        """Start a node, in place of its former life if there is one."""
        node = self.nodes[node_id] = LinkedNode(self, node_id, epoch, secret)
        host, port = node.member.internal_host, node.member.internal_port
        await node.server.listen(cast("Any", Port(self.network, host, port)))
        self.announce()
        return node

    def announce(self) -> None:
        """Tell every node of the others."""
        for node in self.nodes.values():
            node.members.update(other.member for other in self.nodes.values())

    async def connect(self, node: LinkedNode) -> RawClient:
        """Connect to a node's internal port as a stranger."""
        address = (node.member.internal_host, node.member.internal_port)
        client = RawClient(*await self.network.connect("stranger", address))
        self._strangers.append(client)
        return client

    async def stop(self) -> None:
        """Stop all nodes, and close the connections of strangers."""
        for client in self._strangers:
            await client.abort()
        for node in self.nodes.values():
            await node.stop()


def linked(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on virtual time. Its first argument are the nodes, which are stopped at its end."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        loop = SimLoop(Random(3))
        raised: list[object] = []
        loop.set_exception_handler(lambda _loop, context: raised.append(context))

        async def main() -> None:
            nodes = LinkedNodes(loop)
            await test(nodes, **arguments)
            await nodes.stop()

        try:
            loop.run_until_complete(main())
        finally:
            loop.close()
        assert not raised

    # pytest asks for what the signature names: not for the nodes.
    parameters = list(signature(test).parameters.values())[1:]
    vars(run)["__signature__"] = Signature(parameters)
    return run
