"""One running node: what it serves from, its upkeep and its ports, its background tasks, its failure and its stop.

`broker.app` builds the node. The admin port and metrics receive it as an argument; handlers receive its `Serving` only.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.addresses import host_port
from anabranch.broker.cluster.membership.forgotten import report_forgotten
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.ports import Ports
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.cluster.upkeep import Upkeep
from anabranch.broker.kafka.configs.broker_table import PRODUCER_ID_EXPIRATION
from anabranch.broker.kafka.groups.share.creator import keep_creating
from anabranch.broker.kafka.partitions.producer_expiry import keep_expiring
from anabranch.broker.kafka.partitions.retention import keep_enforcing
from anabranch.broker.kafka.topics.moves import TopicMoves
from anabranch.broker.node.settings.memory import MemoryPlan
from anabranch.broker.node.tracing.stats import TracingStats
from anabranch.native import native_part
from anabranch.s3stream.catalog.values import NodeListener
from anabranch.s3stream.errors import CatalogError, NodeFenced
from anabranch.s3stream.model import NodeIdentity
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import NodeWal, WalFenced


def _logger() -> FilteringBoundLogger:
    logger: FilteringBoundLogger = structlog.get_logger("node")
    return logger


class NodeFailure:
    """The first error after which a node refuses all writes."""

    def __init__(self) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._fence: NodeFenced | None = None
        self._on_fenced: Callable[[NodeFenced], None] = lambda _error: None

    def report(self, error: Exception) -> None:
        """Log an error; the first one becomes the reason."""
        reason = f"fenced: {error}" if isinstance(error, NodeFenced) else str(error)
        _logger().error("the node refuses all writes", reason=reason)
        if not self.reason.done():
            self.reason.set_result(reason)
        if isinstance(error, NodeFenced):
            self._fence = error
            self._on_fenced(error)

    def watch_fence(self, callback: Callable[[NodeFenced], None]) -> None:
        """Call `callback` once another process has the node's id; immediately if it has."""
        self._on_fenced = callback
        if self._fence is not None:
            callback(self._fence)


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One running node. Its components are set once, at the start."""

    serving: Serving
    upkeep: Upkeep
    ports: Ports

    memory: MemoryPlan
    cautious_now_ms: Callable[[], int]
    """Clock for dropping things by age (records, committed offsets, idle producers); see `CautiousClock`."""
    wal: NodeWal
    stores: Mapping[str, ObjectStore]
    """Object stores by name. The first is the default store."""
    moves: TopicMoves
    tracing: TracingStats | None
    """Counters of traces; None: tracing is off."""

    tasks: NodeTasks
    failure: NodeFailure
    removed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when the process is to end: the node was drained, and is to be removed from the cluster."""
    stopping: bool = False

    @property
    def advertised(self) -> NodeListener:
        """The first listener, at the address that clients connect to."""
        return self.serving.members.own.listeners[0]

    @property
    def bootstrap(self) -> str:
        """`host:port` of the first listener."""
        return host_port(self.advertised.host, self.advertised.port)

    @property
    def internal_address(self) -> str:
        """`host:port` for other nodes."""
        own = self.serving.members.own
        return host_port(own.internal_host, own.internal_port)

    @property
    def failed(self) -> asyncio.Future[str]:
        """Future that is done, with the reason, once the node refuses writes."""
        return self.failure.reason

    # start

    async def start_background_work(self) -> None:
        """Start the tasks that run until the node stops."""
        serving, upkeep = self.serving, self.upkeep
        led_partitions = serving.topics.led_partitions
        for work in (
            serving.groups.run(),
            keep_creating(serving.groups.states_to_create, serving.share_persister, serving.groups.note_created),
            serving.transactions.run(),
            serving.share_states.run(),
            upkeep.collector.run(),
            upkeep.manifests.run(),
            self._watch_storage(),
            serving.membership.run(),
            upkeep.failover.run(),
            serving.reach.run(),
            upkeep.drain.run(),
            upkeep.orders.run(),
            upkeep.balancer.run(),
            serving.ownership.run(),
            keep_expiring(
                led_partitions, self.cautious_now_ms, lambda: serving.broker_configs.number(PRODUCER_ID_EXPIRATION)
            ),
            keep_enforcing(led_partitions, self.cautious_now_ms, serving.settings.topic.retention_check_interval_ms),
        ):
            self.tasks.spawn(work)
        if serving.settings.compaction.enabled:
            self.tasks.spawn(self._until_fenced(upkeep.compaction.run()))
            self.tasks.spawn(self._until_fenced(upkeep.cleaning.run()))
        self.tasks.spawn(self._until_fenced(upkeep.tables.run()))
        if serving.delegation_tokens is not None:
            self.tasks.spawn(serving.delegation_tokens.run())
        await serving.membership.start()

    def log_serving(self, start_seconds: float) -> None:
        """Log that the node serves, and its state after the start."""
        log, serving, storage = _logger(), self.serving, self.serving.storage
        log.info("memory", **self.memory.describe())
        if self.memory.is_overcommitted:
            log.warning("caches and limits exceed the available memory: set smaller sizes")
        native = native_part()
        if native.advice:
            log.warning("the native part is not used", reason=native.description, advice=native.advice)
        log.info(
            "serving",
            address=self.bootstrap,
            listeners=",".join(
                f"{each.name}://{host_port(each.host, each.port)}" for each in serving.members.own.listeners
            ),
            internal=self.internal_address,
            admin=self.ports.admin_address or "off",
            console=self.ports.console_url or "off",
            data_dir=str(serving.settings.node.data_dir),
            objects=serving.settings.objects.store,
            wal=self.wal.description,
            native=native.description,
            topics=len(serving.topics),
            partitions=serving.topics.partition_count,
            recovered_records=storage.stats.recovered_records,
            recovered_bytes=storage.stats.recovered_bytes,
            seconds=round(start_seconds, 3),
        )
        for stream_id, stopped in storage.stopped_streams.items():
            log.error(
                "a partition is stopped: see `anabranch storage stopped`",
                stream_id=stream_id,
                reason=str(stopped.error),
            )

    # while it runs

    async def _watch_storage(self) -> None:
        """Wait until the storage fails, and report it as the node's failure."""
        error = await self.serving.storage.wait_stopped()
        if not self.stopping:
            self.failure.report(error)

    async def _until_fenced(self, work: Coroutine[Any, Any, None]) -> None:
        """Run compaction or the upkeep of tables, and report it as the node's failure when it is fenced."""
        try:
            await work
        except NodeFenced as error:
            self.failure.report(error)

    # stop

    def end_if_drained(self) -> str:
        """Let the process end, if the node is being drained and leads nothing. Returns why it goes on."""
        serving = self.serving
        if serving.node_id not in serving.members.draining:
            return f"node {serving.node_id} is not being drained"
        if led := serving.move_requests.led_by(serving.node_id):
            return f"node {serving.node_id} leads {len(led):,} partitions"
        if not self.removed.done():
            self.removed.set_result(None)
        return ""

    async def leave_partitions(self) -> None:
        """Before a stop: let other living nodes lead what this one leads, for a limited time, while clients are served.

        A node that is alone, or has failed, returns at once.
        """
        if not self.failed.done():
            await self.upkeep.drain.before_stop(self.serving.settings.node.stop_upload_timeout_ms / 1000)

    async def stop_accepting(self) -> None:
        """Begin to stop: refuse new connections. Those that are open are served until `stop`."""
        self.stopping = True
        await self.ports.clients.stop_accepting()

    async def stop(self) -> None:
        """Refuse new connections, answer requests under way, upload, trim, end the lease.

        The exit stack of `broker.app` closes the components afterwards.
        """
        began = time.perf_counter()
        serving, drain_timeout_ms = self.serving, self.serving.settings.node.drain_timeout_ms
        await self.stop_accepting()
        if serving.catalog.went_back:
            await report_forgotten(serving.catalog, serving.storage, serving.topics)
        await self.upkeep.orders.close()
        await serving.target.close()
        serving.internal_topics.close()
        serving.groups.close()
        serving.transactions.close()
        serving.share_states.close()
        cut_off = await self.ports.clients.drain(drain_timeout_ms)
        # Requests of clients wait for other nodes, and those for this one: the links end last, but before the log.
        cut_off += await self.ports.nodes.drain(drain_timeout_ms)
        serving.links.close()
        self.tasks.cancel()
        await self.upkeep.tables.close()
        await self._close_storage()
        await self.wal.close()
        await self._leave()
        await self.upkeep.manifests.stop()
        _logger().info(
            "stopped",
            connections_cut_off=cut_off,
            wal_used_bytes=self.wal.used_bytes,
            seconds=round(time.perf_counter() - began, 3),
        )

    async def _close_storage(self) -> None:
        """Upload the remaining data, for a limited time. The log keeps what could not be uploaded.

        A node that is fenced uploads nothing: the catalog would not commit it.
        """
        storage, timeout_ms = self.serving.storage, self.serving.settings.node.stop_upload_timeout_ms
        if storage.error is None and not isinstance(self.wal.error, WalFenced):
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await storage.close(upload=True)
            except TimeoutError:
                _logger().warning(
                    "the upload at the stop timed out; the log keeps the rest for the next start",
                    uncommitted_bytes=storage.uncommitted_bytes,
                    waited_ms=timeout_ms,
                )
        await storage.close(upload=False)

    async def _leave(self) -> None:
        """Record in the catalog that the node has stopped, and whether its log is empty."""
        serving, own = self.serving, self.serving.members.own
        await serving.membership.stop()
        drained = self.wal.wal_id if self.wal.drained else None
        try:
            await serving.catalog.stop_node(
                NodeIdentity(own.node_id, own.epoch),
                drained_wal=drained,
                successors=[
                    each
                    for each in serving.topics.other_leaders()
                    if each not in serving.members.draining  # nor those that stop together with this one
                ],
                now_ms=serving.now_ms(),
            )
        except CatalogError as error:
            _logger().warning("the stop cannot be recorded in the catalog; the lease ends by time", reason=str(error))

    async def drop_clients(self) -> None:
        """Close the sockets of all clients and nodes at once. After a clean stop there is none left."""
        for server in (self.ports.clients, self.ports.nodes):
            await server.stop_accepting()
            server.drop_all()
        self.serving.links.close()
