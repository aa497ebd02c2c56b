"""One running node: its components, its background tasks, its failure and its stop.

`broker.app` builds the node. Handlers, resources, the admin port and metrics receive it as an argument.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.addresses import host_port
from anabranch.broker.cluster.handover.target import PartitionTarget
from anabranch.broker.cluster.membership.forgotten import report_forgotten
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.cluster.membership.operations import NodeOperations
from anabranch.broker.cluster.membership.ownership import Ownership
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.upkeep import Upkeep
from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.broker_table import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    PRODUCER_ID_EXPIRATION,
)
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.configs.features import Features
from anabranch.broker.kafka.configs.group import GroupConfigs
from anabranch.broker.kafka.coordination.internal_topics import InternalTopics
from anabranch.broker.kafka.fetch_sessions import FetchSessions
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.partitions.producer_expiry import keep_expiring
from anabranch.broker.kafka.partitions.retention import keep_enforcing
from anabranch.broker.kafka.quotas.addresses import AddressQuotas
from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.kafka.sasl.credentials import ScramCredentials
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.kafka.telemetry.clients import ClientMetrics
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.move_requests import MoveRequests
from anabranch.broker.kafka.topics.moves import TopicMoves
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.kafka.transactions.producer_ids import ProducerIds
from anabranch.broker.kafka.transactions.verifier import TransactionVerifier
from anabranch.broker.node.logging.audit import AuditLog
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.net.tls import Tls
from anabranch.broker.node.peers.links import Links
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.peers.reach import Reach
from anabranch.broker.node.settings.memory import MemoryPlan
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.tracing.stats import TracingStats
from anabranch.protocol.messages.api_versions import ApiVersion
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeListener
from anabranch.s3stream.engine import S3Stream
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

    settings: Settings
    memory: MemoryPlan
    node_id: int
    cluster_name: str
    node_epoch: int
    now_ms: Callable[[], int]
    cautious_now_ms: Callable[[], int]
    """Clock for dropping things by age (records, committed offsets, idle producers); see `CautiousClock`."""

    catalog: Catalog
    wal: NodeWal
    stores: Mapping[str, ObjectStore]
    """Object stores by name. The first is the default store."""
    storage: S3Stream
    upkeep: Upkeep

    ownership: Ownership
    """Proof that reads may be answered."""
    members: Members
    membership: Membership
    operations: NodeOperations
    parking: Parking
    """Requests that wait for partitions, groups and transactions that this node is about to serve."""
    topics: TopicManager
    topic_commands: TopicCommands
    internal_topics: InternalTopics
    moves: TopicMoves
    move_requests: MoveRequests
    """Orders to move partitions, of any node, asked for through this one."""
    target: PartitionTarget
    """Partitions that are received from other nodes."""
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: MarkerWriter
    verifier: TransactionVerifier
    links: Links
    """Connections to other nodes."""
    reach: Reach
    """Knowledge whether connections to and from other nodes work."""
    internal: Server
    """The internal port, for other nodes."""
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    server: Server
    tls: Tls | None
    """Certificates of the listeners with TLS; None: there is no such listener."""
    internal_tls: Tls | None
    """Certificates between nodes; None: neither the internal port nor connections to others use TLS."""
    audit: AuditLog
    acls: ClusterAcls | None
    """ACLs of the cluster; None: clients may do everything, since there is no authorizer."""
    cluster_configs: ClusterConfigs
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    quota_table: QuotaTable
    quotas: ClientQuotas
    address_quotas: AddressQuotas
    features: Features
    scram: ScramCredentials
    """Credentials of users by SCRAM."""
    delegation_tokens: DelegationTokens | None
    """None: there is no secret key for them, so they are off."""
    telemetry: ClientMetrics
    tracing: TracingStats | None
    """Counters of traces; None: tracing is off."""
    log_levels: LogLevels

    tasks: NodeTasks
    failure: NodeFailure
    stopping: bool = False

    advertised_apis: Sequence[ApiVersion] = ()
    """APIs and versions in the answer to ApiVersions."""
    admin_address: str = ""
    """`host:port` of the admin port; empty while it does not listen."""
    console_url: str = ""
    """Address of the web console; empty while the admin port does not listen."""

    requests: dict[int, int] = field(default_factory=dict)
    """Number of requests received, by API key."""
    request_failures: int = 0
    """Requests whose handler raised an unexpected error."""
    damaged_requests: int = 0
    """Requests answered with an error because an object is corrupt or missing."""

    @property
    def advertised(self) -> NodeListener:
        """The first listener, at the address that clients connect to."""
        return self.members.own.listeners[0]

    @property
    def bootstrap(self) -> str:
        """`host:port` of the first listener."""
        return host_port(self.advertised.host, self.advertised.port)

    @property
    def internal_address(self) -> str:
        """`host:port` for other nodes."""
        own = self.members.own
        return host_port(own.internal_host, own.internal_port)

    @property
    def failed(self) -> asyncio.Future[str]:
        """Future that is done, with the reason, once the node refuses writes."""
        return self.failure.reason

    # start

    def limit_connections(self) -> None:
        """Apply the connection limits of the broker configs to the server."""
        self.server.connections_max = self.broker_configs.number(CONNECTIONS_MAX)
        self.server.connections_per_address_max = self.broker_configs.number(CONNECTIONS_PER_ADDRESS_MAX)

    async def start_background_work(self) -> None:
        """Start the tasks that run until the node stops."""
        led_partitions = self.topics.led_partitions
        for work in (
            self.groups.run(),
            self.transactions.run(),
            self.upkeep.collector.run(),
            self.upkeep.manifests.run(),
            self._watch_storage(),
            self.membership.run(),
            self.upkeep.failover.run(),
            self.reach.run(),
            self.upkeep.drain.run(),
            self.upkeep.orders.run(),
            self.ownership.run(),
            keep_expiring(
                led_partitions, self.cautious_now_ms, lambda: self.broker_configs.number(PRODUCER_ID_EXPIRATION)
            ),
            keep_enforcing(led_partitions, self.cautious_now_ms, self.settings.topic.retention_check_interval_ms),
        ):
            self.tasks.spawn(work)
        if self.settings.compaction.enabled:
            self.tasks.spawn(self._until_fenced(self.upkeep.compaction.run()))
            self.tasks.spawn(self._until_fenced(self.upkeep.cleaning.run()))
        if self.delegation_tokens is not None:
            self.tasks.spawn(self.delegation_tokens.run())
        await self.membership.start()

    def log_serving(self, start_seconds: float) -> None:
        """Log that the node serves, and its state after the start."""
        log, storage = _logger(), self.storage
        log.info("memory", **self.memory.describe())
        if self.memory.is_overcommitted:
            log.warning("caches and limits exceed the available memory: set smaller sizes")
        log.info(
            "serving",
            address=self.bootstrap,
            listeners=",".join(
                f"{each.name}://{host_port(each.host, each.port)}" for each in self.members.own.listeners
            ),
            internal=self.internal_address,
            admin=self.admin_address or "off",
            console=self.console_url or "off",
            data_dir=str(self.settings.node.data_dir),
            objects=self.settings.objects.store,
            wal=self.wal.description,
            topics=len(self.topics),
            partitions=self.topics.partition_count,
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
        error = await self.storage.wait_stopped()
        if not self.stopping:
            self.failure.report(error)

    async def _until_fenced(self, work: Coroutine[Any, Any, None]) -> None:
        """Run compaction, and report it as the node's failure when it is fenced."""
        try:
            await work
        except NodeFenced as error:
            self.failure.report(error)

    # stop

    async def leave_partitions(self) -> None:
        """Before a stop: let other living nodes lead what this one leads, for a limited time, while clients are served.

        A node that is alone, or has failed, returns at once.
        """
        if not self.failed.done():
            await self.upkeep.drain.before_stop(self.settings.node.stop_upload_timeout_ms / 1000)

    async def stop_accepting(self) -> None:
        """Begin to stop: refuse new connections. Those that are open are served until `stop`."""
        self.stopping = True
        await self.server.stop_accepting()

    async def stop(self) -> None:
        """Refuse new connections, answer requests under way, upload, trim, end the lease.

        The exit stack of `broker.app` closes the components afterwards.
        """
        began = time.perf_counter()
        await self.stop_accepting()
        if self.catalog.went_back:
            await report_forgotten(self.catalog, self.storage, self.topics)
        await self.upkeep.orders.close()
        await self.target.close()
        self.internal_topics.close()
        self.groups.close()
        self.transactions.close()
        cut_off = await self.server.drain(self.settings.node.drain_timeout_ms)
        # Requests of clients wait for other nodes, and those for this one: the links end last, but before the log.
        cut_off += await self.internal.drain(self.settings.node.drain_timeout_ms)
        self.links.close()
        self.tasks.cancel()
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
        storage = self.storage
        if storage.error is None and not isinstance(self.wal.error, WalFenced):
            try:
                async with asyncio.timeout(self.settings.node.stop_upload_timeout_ms / 1000):
                    await storage.close(upload=True)
            except TimeoutError:
                _logger().warning(
                    "the upload at the stop timed out; the log keeps the rest for the next start",
                    uncommitted_bytes=storage.uncommitted_bytes,
                    waited_ms=self.settings.node.stop_upload_timeout_ms,
                )
        await storage.close(upload=False)

    async def _leave(self) -> None:
        """Record in the catalog that the node has stopped, and whether its log is empty."""
        await self.membership.stop()
        drained = self.wal.wal_id if self.wal.drained else None
        try:
            await self.catalog.stop_node(
                NodeIdentity(self.node_id, self.node_epoch),
                drained_wal=drained,
                successors=[each for each in self.topics.new_leaders() if each != self.node_id],
                now_ms=self.now_ms(),
            )
        except CatalogError as error:
            _logger().warning("the stop cannot be recorded in the catalog; the lease ends by time", reason=str(error))

    async def drop_clients(self) -> None:
        """Close the sockets of all clients and nodes at once. After a clean stop there is none left."""
        for server in (self.server, self.internal):
            await server.stop_accepting()
            server.drop_all()
        self.links.close()
