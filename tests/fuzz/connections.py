"""Whole connections: bytes of a client reach a real node through a network in memory, on a virtual clock.

A node serves many inputs in a row, so that one finds what others left behind. After each input, no request may have
failed inside the node, nobody's exception may be lost, no memory for requests may be held, and another client must be
served. The first byte says in what pieces the rest arrives, and where: at the port for clients, or at the internal one,
from a stranger or from another node.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, Generic, TypeVar

import structlog

from anabranch.broker.api.handlers.internal import INTERNAL_HANDLERS
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.peers.handshake import NONCE_BYTES, Role, make_proof
from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.internal.authenticate import AuthenticateRequest
from anabranch.protocol.messages.internal.hello import HelloRequest
from anabranch.protocol.registry import INTERNAL_APIS
from tests.fuzz.messages import NAMES, TOPIC_IDS, TOPICS, random_frame
from tests.fuzz.target import Choices, Target
from tests.simulation.loop import CALLBACKS_MAX
from tests.simulation.node import SimNode
from tests.simulation.trace import patched
from tests.simulation.world import World
from tests.support.raw_client import RawClient

INPUTS_MAX: Final = 400
"""Inputs that one node gets."""
COLD_INPUTS: Final = 40
"""Inputs that it gets before it loads groups and transactions."""
TURNS_MAX: Final = 100_000
"""Turns of the loop that an input may take."""
SERVED_S: Final = 0.2
"""Virtual time for the requests of an input. Those that wait longer are left alone by their client."""
AFTER_S: Final = 0.5
PIECES_MAX: Final = 40
PARTITIONS_MAX: Final = 60
INTERNAL_PORT: Final = 9093
CLIENT, STRANGER, OTHER_NODE = range(3)
"""Senders of an input, by the number in the upper bits of its first byte; larger ones are clients."""
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
CONFIGS: Final = {
    "compacted": {"cleanup.policy": "compact"},
    "timed": {"message.timestamp.type": "LogAppendTime"},
    "packed": {"compression.type": "zstd"},
}


LEFT: Final[list[object]] = []
"""Rigs whose nodes did not stop: the garbage collector must not run what is left of them."""


class FuzzedNode(SimNode):
    """A node with little room for what strangers create."""

    @property
    def settings(self) -> Settings:
        settings = super().settings
        topic = replace(settings.topic, partitions_max=PARTITIONS_MAX)
        telemetry = replace(settings.telemetry, enabled=True)
        cluster = replace(settings.cluster, internal_port=INTERNAL_PORT)
        return replace(settings, topic=topic, telemetry=telemetry, cluster=cluster)


class Rig:
    """A world with one node, and a client that is always connected."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-node-", dir=MEMORY)))
        self.world = World(1, folder)
        self._stack.enter_context(patched(self.world))
        self.world.loop.set_exception_handler(self.world._unexpected)  # noqa: SLF001 - as `World.run` does
        structlog.configure(processors=[self._note_error, self.world.trace.log])
        self.world.nodes = [FuzzedNode(self.world, 1)]
        self.inputs = 0
        self.node: Node
        self.other: RawClient
        self.ids: list[bytes] = []
        self.raised: list[BaseException] = []
        """Exceptions that the node has logged."""
        self.run(self._start())

    def close(self) -> None:
        """Stop the node. Raises what went wrong in it."""
        try:
            self.run(self._stop())
        except BaseException:
            LEFT.append(self)
            for node in self.world.nodes:
                node.kill(restart=False)
            raise
        finally:
            self._stack.close()
            self.world.loop.close()

    async def _stop(self) -> None:
        await self.other.close()
        for node in self.world.nodes:
            await node.stopped()
        self._supervisor.cancel()
        await asyncio.wait([self._supervisor])
        for error in (*self.raised, *self.world.errors):
            raise AssertionError(error)

    def run(self, work: Any) -> None:
        """Run a coroutine to its end. Raises what it raises, and Stuck if it does not end."""
        loop = self.world.loop
        loop.turns = CALLBACKS_MAX - TURNS_MAX
        task = loop.create_task(work)
        task.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        task.result()

    def _note_error(self, _logger: object, _level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor of structlog."""
        if isinstance(event.get("exc_info"), BaseException):
            self.raised.append(event["exc_info"])
        return event

    async def _start(self) -> None:
        (sim_node,) = self.world.nodes
        self._supervisor = self.world.loop.create_task(sim_node.supervise())
        self.node = await sim_node.serving()
        self.other = await self.connect("other")
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=2,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in CONFIGS.get(name, {}).items()],
            )
            for name in TOPICS[:4]
        ]
        answer = await self.other.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}
        self.ids = [topic.topic_id for topic in answer.topics]

    async def find_coordinators(self) -> None:
        """Make the node load groups and transactions, as the first client that looks for them does."""
        for kind, names in ((0, NAMES["group"]), (1, NAMES["transactional_id"])):
            wanted = FindCoordinatorRequest(key_type=kind, coordinator_keys=names)
            coordinators = (await self.other.call(wanted, 4)).coordinators
            assert {each.error_code for each in coordinators} == {ErrorCode.NONE}

    async def connect(self, host: str) -> RawClient:
        return RawClient(*await self.world.network.connect(host, self.world.nodes[0].address))

    async def connect_to_internal_port(self, sender: int) -> RawClient:
        """Connect as a stranger, or as a node that knows the cluster's secret."""
        node = self.node
        address = (self.world.nodes[0].host, INTERNAL_PORT)
        client = RawClient(*await self.world.network.connect("stranger", address))
        if sender == OTHER_NODE:
            hello = HelloRequest(
                cluster=node.serving.settings.node.cluster,
                node_id=node.serving.node_id + 1,
                node_epoch=1,
                target_id=node.serving.node_id,
                target_epoch=node.serving.members.own.epoch,
                nonce=bytes(NONCE_BYTES),
            )
            challenge = await client.call(hello)
            secret = await node.serving.catalog.secret(b"")
            proof = make_proof(secret, Role.SENDER, hello, challenge.nonce)
            await client.call(AuthenticateRequest(proof=proof))
        return client

    async def feed(self, pieces: list[bytes], sender: int) -> None:
        """Send the pieces on a new connection, then leave, and check what is left behind."""
        world, node = self.world, self.node
        failures = node.serving.request_failures
        world.trace.lines.clear()
        internal = sender in {STRANGER, OTHER_NODE}
        client = await (self.connect_to_internal_port(sender) if internal else self.connect("stranger"))
        for piece in pieces:
            client.send_bytes(piece)
            await asyncio.sleep(0.005)
        await asyncio.sleep(SERVED_S)
        await client.abort()
        await asyncio.sleep(AFTER_S)
        for error in self.raised:
            raise error
        assert not world.errors, world.errors
        assert node.serving.request_failures == failures, "\n".join(world.trace.lines)
        assert not node.failed.done(), node.failed.result()
        assert node.ports.clients.bytes_held == 0
        assert len(node.ports.clients.connections) <= 2
        assert node.ports.nodes is not None
        assert node.ports.nodes.bytes_held == 0
        assert not node.ports.nodes.connections
        answer = await self.other.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert answer.error_code == ErrorCode.NONE


AnyRig = TypeVar("AnyRig", bound=Rig)


class Rigs(Generic[AnyRig]):
    """The current rig: a new one after a number of inputs, and after a failure."""

    def __init__(self, make: Callable[[], AnyRig]) -> None:
        self._make = make
        self._rig: AnyRig | None = None

    @contextmanager
    def turn(self) -> Iterator[AnyRig]:
        """The rig for the next input."""
        rig = self._rig
        if rig is None or rig.inputs >= INPUTS_MAX:
            self.close()
            rig = self._rig = self._make()
        rig.inputs += 1
        try:
            yield rig
        except BaseException:
            with suppress(Exception):  # it may have failed for good
                self.close()
            raise

    def close(self) -> None:
        rig, self._rig = self._rig, None
        if rig is not None:
            rig.close()


def check(data: bytes) -> None:
    with RIGS.turn() as rig:
        if rig.inputs == COLD_INPUTS:
            rig.run(rig.find_coordinators())
        choices = Choices(data)
        first = choices.number(1)
        size, sender = (1 << 16, 1000, 50, 7)[first % 4], first // 64
        rest = choices.rest()
        for placeholder, topic_id in zip(TOPIC_IDS, rig.ids, strict=False):
            rest = rest.replace(placeholder, topic_id)
        size = max(size, len(rest) // PIECES_MAX)
        rig.run(rig.feed([rest[at : at + size] for at in range(0, len(rest), size)], sender))


def fresh(random: Random) -> bytes:
    sender = random.choice((CLIENT, CLIENT, CLIENT, CLIENT, STRANGER, OTHER_NODE))
    of_nodes = [handler.api for handler in INTERNAL_HANDLERS.values()]
    apis = {STRANGER: [*INTERNAL_APIS.values()], OTHER_NODE: of_nodes}.get(sender)
    frames = b"".join(random_frame(random, apis) for _ in range(random.choice((1, 1, 2, 3, 6))))
    return bytes((random.choice((0, 0, 0, 1, 2, 3)) + 64 * sender,)) + frames


def seeds() -> list[bytes]:
    random = Random(1)
    return [fresh(random) for _ in range(100)]


WORDS: Final = (b"\0\0\0\x0c", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("1603010200010001fc0303"))
RIGS: Final = Rigs(Rig)
TARGET = Target(check, seeds, quick_inputs=400, fresh=fresh, words=WORDS, close=RIGS.close)
