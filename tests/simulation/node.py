"""A simulated node: its process, the machine under it, and all that can happen to them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from anabranch.broker.app import StartError, run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.ports import ReservedPorts
from anabranch.broker.node.settings.data_dir import DataDirError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sources import load
from anabranch.wal.requests import Device
from anabranch.wal.settings import WalSettings
from tests.simulation.catalog import faulty_catalog
from tests.simulation.columns import REGISTRY_URL
from tests.simulation.disk import SimLogFiles
from tests.simulation.history import Violation
from tests.simulation.loop import PROCESS, Process
from tests.simulation.network import INTERNAL_PORT, NODE_PORT, Port
from tests.simulation.store import SimStore, Way

if TYPE_CHECKING:
    import socket

    from tests.simulation.world import World

RESTART_S = (0.1, 3.0)
PROCESS_RESTART_S = (1.0, 3.0)
"""The same of a process that its parent starts again: by then the others have taken its partitions over."""
FAILURES = (
    "Input/output error",
    "claimed by node",
    "former owner",
    "is not the registered",
    "was fenced by node",
    "another writer's object",
    "gone back to an earlier state",
)
"""Parts of the reasons for which a node may stop by itself: its log's disk failed, or another process has its id."""
CATALOG, STORE = "catalog", "local"
"""Catalog and store, as hosts that a node may be cut off from; the store's name, too."""

PREPARE_TTL_MS = 300_000
STALL_MS = 2_000
RACKS: Final = ("even", "odd")
"""Racks of the nodes, by their ids, and of the consumers that read from replicas."""
SETTINGS: Mapping[str, object] = {
    "wal.capacity_bytes": 8 << 20,
    "wal.stall_ms": STALL_MS,
    "storage.upload_bytes": 64 << 10,
    "storage.upload_age_ms": 3_000,
    "storage.split_bytes": 64 << 10,
    "storage.log_cache_bytes": 1 << 20,
    "storage.block_cache_bytes": 1 << 20,
    "storage.prepare_ttl_ms": PREPARE_TTL_MS,
    "storage.gc_period_ms": 4_000,
    "catalog.lease_ms": 10_000,
    "topic.retention_ms": -1,  # the topic that expires has its own; clocks are set wrong by a day
    "topic.retention_check_interval_ms": 3_000,
    "topic.message_timestamp_after_max_ms": 2**62,  # clocks are set wrong by a day
    "compaction.period_ms": 8_000,
    "group.initial_rebalance_delay_ms": 0,
    "group.session_timeout_min_ms": 100,
    "group.offsets_partitions": 2,
    "transaction.state_partitions": 2,
    "share.state_partitions": 2,
    "share.updates_per_snapshot": 5,
    "group.streams_session_timeout_min_ms": 100,
    "group.streams_session_timeout_ms": 3_000,
    "group.streams_heartbeat_interval_min_ms": 100,
    "group.streams_heartbeat_interval_ms": 500,
    "group.streams_initial_rebalance_delay_ms": 200,
    "group.streams_assignment_interval_ms": 200,
    "group.streams_standby_replicas": 1,
    "group.share_record_lock_duration_min_ms": 1_000,
    "group.share_record_lock_duration_ms": 2_000,
    "group.share_delivery_count_limit": 10,
    "group.dead_letter_topic_auto_create": True,
    "transaction.abort_interval_ms": 1_000,
    "network.slab_pool_bytes": 4 << 20,
    "network.node_bytes_max": 32 << 20,
    "network.request_bytes_max": 4 << 20,
    "topic.decompressed_bytes_max": 1 << 20,
    "node.memory_bytes": 512 << 20,
    "node.drain_timeout_ms": 2_000,
    "admin.enabled": False,
    "tables.registry": REGISTRY_URL,
    "schema_registry.enabled": False,
}


class SimNode:
    """A node and the machine under it: its disk outlives it, and a supervisor starts it again."""

    def __init__(self, world: "World", node_id: int, host: str = "", catalog: str = "catalog.db") -> None:
        self.world = world
        self.node_id = node_id
        self.host = host or f"node-{node_id}"
        self.catalog = catalog
        """File of the catalog."""
        self.random = world.random(self.host)
        self.logs = SimLogFiles(world.loop, world.random(f"{self.host}/disk"), volatile=lambda: False)
        self.process: Process | None = None
        self.node: Node | None = None
        """The node while it serves."""
        self.lives = 0
        self.refusals: list[str] = []
        """Reasons why starts failed."""
        self.wanted = True
        """False while the machine is off."""
        self._stop: asyncio.Event | None = None
        self._changed = asyncio.Event()
        self._lock: _Lock | None = None
        """The lock of the data directory that is held."""
        self.machine = 1
        """Number of the machine that the newest process runs on."""
        self.others: list[Process] = []
        """Processes of other machines that have the node's id and its disk, too."""
        self._commands: list[tuple[asyncio.Task[Any], Process]] = []
        """All commands that the node was asked to run."""

    @property
    def address(self) -> tuple[str, int]:
        return self.host, NODE_PORT

    @property
    def settings(self) -> Settings:
        folder = self.world.folder
        values = {
            **SETTINGS,
            "node.node_id": self.node_id,
            "storage.delete_delay_ms": self.world.delete_delay_ms,
            "node.data_dir": folder / self.host,
            # Not in the folder, whose name differs from run to run: manifests have the path, and their sizes count.
            "wal.path": f"/disks/{self.host}/log",
            "catalog.url": f"sqlite:///{folder}/{self.catalog}",
            "listener.host": self.host,
            "listener.port": NODE_PORT,
            "listener.rack": RACKS[self.node_id % len(RACKS)],
            "cluster.internal_port": INTERNAL_PORT,
            "wal.kind": "object" if self.world.object_log else "device",
            "wal.fencing": "strict" if self.world.strict else "auto",
            "wal.takeover": "shared" if self.world.strict else "machine",
        }
        return load(values, {})

    async def supervise(self) -> None:
        """Start the node, and start it again whenever it has ended."""
        world = self.world
        while True:
            if not self.wanted:
                await self._wait()
                continue
            self._changed.clear()
            self.lives += 1
            process = self.process = Process(f"{self.host}#{self.lives}", self.host)
            self._stop = asyncio.Event()
            context = copy_context()
            context.run(PROCESS.set, process)
            world.loop.create_task(self._live(process, self._stop), context=context)
            while self.process is process and not process.dead:
                await self._wait()
            await asyncio.sleep(self.random.uniform(*(PROCESS_RESTART_S if world.processes else RESTART_S)))

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _live(self, process: Process, stop: asyncio.Event) -> None:
        world = self.world
        try:
            async with run_node(self.settings, environment=self._environment(process)) as node:
                if self.process is process:
                    self.node = node
                world.balancing.watch(node)
                self._changed.set()
                node.failed.add_done_callback(lambda _: stop.set())
                await stop.wait()
                if node.failed.done():
                    reason = node.failed.result()
                    world.note("failed", node=self.host, reason=reason)
                    if not any(each in reason for each in FAILURES):
                        world.errors.append(f"{self.host}: failed by itself: {reason}")
                    world.count("node failed by itself")
        except StartError as error:
            self.refusals.append(str(error))
            world.note("refused to start", node=self.host, reason=str(error))
            world.count("refused start")
        except Exception as error:  # noqa: BLE001  # it fails the run
            world.errors.append(f"{self.host}: {error!r}")
            world.note("crashed", node=self.host, error=repr(error))
        finally:
            if not process.dead:
                left = [task for task in process.tasks if not task.done() and task is not asyncio.current_task()]
                if left:
                    world.errors.append(f"{process}: tasks are left after the end: {left}")
                self._ended(process)

    def _ended(self, process: Process) -> None:
        if self.process is process:
            self.node = None
        self.world.loop.kill(process)
        self._changed.set()

    def _environment(self, process: Process) -> Environment:
        world, random = self.world, self.random

        def now_ms() -> int:
            return world.now_ms() + process.clock_ahead_ms

        return Environment(
            now_ms=now_ms,
            steady_ms=lambda: int(world.loop.time() * 1000),
            random_bytes=random.randbytes,
            lock_directory=lambda _path: _Lock(self, process),
            reserve_ports=self._reserve_ports,
            open_connection=lambda host, port: world.network.connect(self.host, (host, port)),
            logs=_LogFiles(world),
            make_catalog=lambda url: faulty_catalog(url, world.catalog_faults, random, self._is_cut_from(CATALOG)),
            make_stores=lambda _settings, _rng: {STORE: SimStore(Way(world.store, self._is_cut_from(STORE)))},
        )

    def _is_cut_from(self, host: str) -> Callable[[], bool]:
        return lambda: self.world.network.is_cut(self.host, host)

    def _reserve_ports(self, settings: Settings, _stack: object) -> ReservedPorts:
        network = self.world.network
        clients = Port(network, settings.listeners[0].host, settings.listeners[0].port)
        return ReservedPorts(
            [cast("socket.socket", clients)],
            cast("socket.socket", Port(network, settings.internal_host, settings.internal_port)),
            None,
        )

    # what can happen to it

    def kill(self, *, restart: bool = True) -> None:
        """End the process at this moment."""
        self.wanted = restart
        process = self.process
        if process is not None and not process.dead:
            self.world.note("killed", node=self.host)
            self._ended(process)
            if self.world.processes:
                self.world.parent_notes(self)

    def power_cut(self, *, restart: bool = True) -> None:
        """End the process, and lose what its disk had not flushed."""
        self.kill(restart=restart)
        self.end_others()
        if not self.logs.is_open:  # else another node recovers it, and loses nothing
            self.logs.power_cut()

    def start(self) -> None:
        """Switch the machine on again."""
        self.wanted = True
        self._changed.set()

    def stop(self) -> None:
        """Ask the node to stop cleanly, as SIGTERM does."""
        if self.node is not None and self._stop is not None:
            self._stop.set()

    def stop_with_all(self) -> None:
        """Stop as all processes of a machine do when their parent has ended or stops; one that starts ends at once."""
        if self.node is None:
            self.kill(restart=False)
            return
        self.wanted = False
        self.call(lambda node: node.serving.members.stop_with(self.world.siblings_of(self)))
        self.stop()

    def call(self, function: Callable[[Node], None]) -> None:
        """Let the process call a function of its node, when it is not paused."""
        node, process = self.node, self.process
        if node is not None and process is not None and not process.dead:
            context = copy_context()
            context.run(PROCESS.set, process)
            self.world.loop.call_soon(function, node, context=context)

    def pause(self) -> bool:
        """Stop the process as SIGSTOP does. Returns False if there is none."""
        process = self.process
        if process is None or process.dead or process.paused:
            return False
        process.paused = True
        return True

    def resume(self) -> None:
        """Let the process go on."""
        if self.process is not None and self.process.paused:
            self.world.loop.resume(self.process)

    async def ask(self, call: Callable[[Node], Coroutine[Any, Any, Any]], timeout_s: float) -> Any:
        """Run a command inside the node's process, as its admin port does. Raises OSError if it ended meanwhile."""
        node, process = self.node, self.process
        if node is None or process is None or process.dead:
            raise ConnectionRefusedError(self.host)
        context = copy_context()
        context.run(PROCESS.set, process)
        task = self.world.loop.create_task(call(node), context=context)
        process.tasks.discard(task)  # a clean stop need not wait for it
        self.world.loop.graveyard.append(task)
        self._commands.append((task, process))
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise TimeoutError(self.host)
        if task.cancelled():
            raise ConnectionResetError(self.host)
        return task.result()

    async def until_commands_end(self) -> None:
        """Wait for commands that outlived their callers: those of a paused process take effect when it goes on."""
        while any(not task.done() and not process.dead for task, process in self._commands):
            await asyncio.sleep(0.1)

    def start_elsewhere(self) -> Process | None:
        """Start the node on another machine that has its disk. Returns the process that is there, if it is alive."""
        old = self.process
        if old is None or old.dead:
            return None
        self.machine += 1
        self._lock = None
        self.logs.share()
        self.others.append(old)
        self.process = self.node = None
        self._changed.set()
        return old

    def end_others(self) -> None:
        """End the processes of other machines."""
        others, self.others = self.others, []
        for process in others:
            if not process.dead:
                self.world.note("killed", process=process)
                self._ended(process)

    @property
    def serves(self) -> bool:
        """True if the node serves, and was not asked to stop."""
        return self.node is not None and self._stop is not None and not self._stop.is_set()

    async def serving(self) -> Node:
        """Wait until the node serves. Raises Violation for an error that its starts would repeat for ever."""
        while self.node is None:
            if self.world.errors:
                raise Violation(self.world.errors[0])
            await asyncio.sleep(0.05)
        return self.node

    async def stopped(self) -> None:
        """Stop cleanly for good, and wait for the end."""
        self.wanted = False
        while self.process is not None and not self.process.dead:
            self.stop()  # again and again: one that is starting does not hear it yet
            await asyncio.sleep(0.05)


class _LogFiles:
    """The disks of all nodes: each node can open those of the others."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def _of(self, path: Path) -> SimLogFiles:
        return next(node.logs for node in (*self._world.nodes, self._world.rival) if node.host in path.parts)

    def exists(self, path: Path) -> bool:
        return self._of(path).exists(path)

    def open(self, path: Path, settings: WalSettings, *, create: bool, exclusive: bool = True) -> Device:
        return self._of(path).open(path, settings, create=create, exclusive=exclusive)


class _Lock:
    """The lock of a data directory; the kernel releases it when the process ends."""

    def __init__(self, node: SimNode, process: Process) -> None:
        if node._lock is not None:
            raise DataDirError(f"{node.host}: in use")
        self._node = node
        self._machine = node.machine
        node._lock = self
        process.ended.append(self.release)

    @property
    def lock_id(self) -> str:
        return f"boot:{self._machine}:{self._node.node_id}"

    def release(self) -> None:
        if self._node._lock is self:
            self._node._lock = None

    def release_unused(self) -> None:
        self.release()
