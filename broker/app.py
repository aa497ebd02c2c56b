"""The composition root: creates the components of a node, and starts and stops them in order.

In a running node only this module reads the wall clock and creates random numbers and uuids. Other modules receive
them as arguments.

Start: lock the data directory; reserve the ports; check that log, catalog and object stores belong together and to this
node; wait until no process holds the node's id; register, which fences the previous holder; recover the log; record in
the catalog that the log is in use; open the streams; load groups and transactions; listen.

Stop: refuse new connections; answer requests under way; upload; trim; close the log; end the lease.
"""

import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from broker.admin.http import AdminServer
from broker.configs.broker import BrokerConfigs
from broker.configs.cluster import ClusterConfigs
from broker.configs.features import Features
from broker.configs.group import GroupConfigs
from broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, CoordinatorTopic
from broker.fetch_sessions import FetchSessions
from broker.groups.consumer.topic_image import TopicImageSource
from broker.groups.coordinator import GroupCoordinator
from broker.handlers import advertised_apis
from broker.handlers.dispatch import Dispatcher
from broker.logging.levels import LogLevels
from broker.membership.join import join, log_owner, open_catalog_and_stores
from broker.membership.lease import LeaseKeeper
from broker.membership.log_identity import wal_id_of
from broker.membership.node_log import NodeLog
from broker.membership.other_nodes import other_nodes, warn_of_other_nodes
from broker.net.ports import reserve_ports
from broker.net.server import Server
from broker.node import Address, Node, NodeFailure, NodeTasks
from broker.partitions.cleaning import tail_of
from broker.partitions.record_work import RecordWork
from broker.settings.clock import CautiousClock
from broker.settings.data_dir import DataDirError, DataDirLock
from broker.settings.memory import MemoryPlan, memory_for, with_sizes
from broker.settings.model import Settings
from broker.settings.package_settings import compaction_settings, gc_settings, storage_settings
from broker.telemetry.clients import ClientMetrics
from broker.topics.compaction import make_cleaning
from broker.topics.manager import TopicManager
from broker.topics.moves import TopicMoves
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.markers import MarkerWriter
from broker.transactions.producer_ids import ProducerIds
from compaction.context import CompactionContext
from compaction.scheduler import CleaningScheduler
from compaction.service import CompactionService
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import NodeInfo
from s3stream.engine import S3Stream
from s3stream.errors import StorageError
from s3stream.maintain.gc import GarbageCollector
from s3stream.maintain.manifest_keeper import ManifestKeeper
from s3stream.store.interface import ObjectStore
from wal.format import CATALOG_ID_BYTES
from wal.interface import WalError
from wal.log import DeltaWal


class StartError(Exception):
    """The node cannot start. The text is the one line to show."""


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """The monotonic clock, in ms since an arbitrary moment."""
    return time.monotonic_ns() // 1_000_000


def _new_uuid() -> bytes:
    return uuid.uuid4().bytes


def _new_writer_id() -> str:
    return uuid.uuid4().hex


@asynccontextmanager
async def run_node(settings: Settings, log_levels: LogLevels | None = None) -> AsyncIterator[Node]:
    """Start a node, serve while the body runs, then stop cleanly: requests answered, data uploaded, WAL trimmed.

    Raises StartError. When the body raises, the node stops as in a crash: no acked record is lost, nothing is uploaded.
    """
    async with AsyncExitStack() as stack:
        try:
            node, admin = await _start(settings, stack, log_levels or LogLevels())
        except (DataDirError, StorageError, WalError, OSError) as error:
            raise StartError(str(error)) from error
        yield node
        await node.stop_accepting()
        await admin.close()
        await node.stop()


@dataclass(frozen=True, slots=True)
class _OpenStorage:
    """Catalog, object stores, log and storage of a registered node, open and recovered."""

    settings: Settings
    memory: MemoryPlan
    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    info: NodeInfo
    lease: LeaseKeeper
    wal: DeltaWal
    storage: S3Stream


async def _start(settings: Settings, stack: AsyncExitStack, log_levels: LogLevels) -> tuple[Node, AdminServer]:
    """Start all components, and push onto `stack` what stops them again."""
    began = time.perf_counter()
    cautious = CautiousClock(now_ms, steady_ms)
    memory = memory_for(settings)
    settings = with_sizes(settings, memory.sizes)
    lock = DataDirLock(settings.node.data_dir)
    stack.callback(lock.release)
    bound, admin_bound = reserve_ports(settings, stack)
    advertised = Address(
        settings.listener.advertised_host or settings.listener.host,
        settings.listener.advertised_port or int(bound.getsockname()[1]),
    )
    failure = NodeFailure()
    opened = await _open_storage(settings, memory, advertised, lock.lock_id, failure, stack)
    work = RecordWork(memory.sizes.decompressed_bytes_max)
    stack.callback(work.close)
    configs = ClusterConfigs(opened.catalog)
    await configs.load()
    broker_configs = BrokerConfigs(configs, settings, opened.info.node_id)
    topics = TopicManager(
        catalog=opened.catalog,
        storage=opened.storage,
        settings=settings,
        work=work,
        defaults=broker_configs,
        now_ms=now_ms,
        new_topic_id=_new_uuid,
    )
    await topics.load()
    tasks = await stack.enter_async_context(NodeTasks())
    broker_configs.watch(topics.apply_defaults)
    node = _make_node(opened, topics, configs, broker_configs, log_levels, cautious, advertised, tasks, failure)
    stack.push_async_callback(node.drop_clients)
    admin = AdminServer(node)
    stack.push_async_callback(admin.close)
    found = [topic.info for topic in topics]
    warn_of_other_nodes(other_nodes(await node.catalog.list_nodes(), found, node.node_id, now_ms()))
    await node.groups.start()
    await node.transactions.start()
    node.start_background_work()
    if admin_bound is not None:
        await admin.start(admin_bound)
        node.admin_address = admin.address
    await node.server.listen(bound)
    # No await from here on: a caller that reads "serving" in the log can stop the node cleanly at once.
    node.log_serving(time.perf_counter() - began)
    return node, admin


async def _open_storage(
    settings: Settings,
    memory: MemoryPlan,
    advertised: Address,
    lock_id: str,
    failure: NodeFailure,
    stack: AsyncExitStack,
) -> _OpenStorage:
    """Check that catalog, log and stores belong together, take the node's id, and recover the log."""
    catalog = Catalog(settings.catalog_url)
    stack.push_async_callback(catalog.close)
    node_log = await stack.enter_async_context(NodeLog.opened(settings))
    stores = await open_catalog_and_stores(
        catalog,
        node_log,
        settings,
        stack,
        new_catalog_id=lambda: secrets.token_bytes(CATALOG_ID_BYTES),
        rng=random.Random(),  # noqa: S311 - spreads retries in time
    )
    info = await join(catalog, node_log, settings, lock_id, host=advertised.host, port=advertised.port, now_ms=now_ms)
    lease = LeaseKeeper(catalog, info, now_ms=now_ms, on_lost=failure.report)
    await stack.enter_async_context(lease)
    wal = await node_log.open_wal(log_owner(settings, catalog, info.epoch), now_ms)
    stack.push_async_callback(wal.close)
    storage = S3Stream(
        wal=wal,
        catalog=catalog,
        stores=stores,
        default_store=settings.objects.store,
        settings=storage_settings(settings, memory.sizes),
        cluster=settings.node.cluster,
        node_id=info.node_id,
        node_epoch=info.epoch,
        now_ms=now_ms,
        new_writer_id=_new_writer_id,
    )
    await stack.enter_async_context(storage)
    with node_log.errors_with_path():
        await storage.recover()
    await catalog.open_wal(
        wal_id_of(wal.log_id),
        node_id=info.node_id,
        node_epoch=info.epoch,
        location=str(node_log.path),
        now_ms=now_ms(),
    )
    return _OpenStorage(settings, memory, catalog, stores, info, lease, wal, storage)


def _make_node(
    opened: _OpenStorage,
    topics: TopicManager,
    configs: ClusterConfigs,
    broker_configs: BrokerConfigs,
    log_levels: LogLevels,
    cautious: CautiousClock,
    advertised: Address,
    tasks: NodeTasks,
    failure: NodeFailure,
) -> Node:
    """Build the components that serve clients, and the node of them all."""
    settings, memory, catalog, storage = opened.settings, opened.memory, opened.catalog, opened.storage
    info = opened.info
    server = Server(settings.network, memory.sizes)
    group_configs = GroupConfigs(configs, settings.group)
    groups = GroupCoordinator(
        CoordinatorTopic(topics, OFFSETS_TOPIC, settings.group.offsets_partitions, now_ms),
        settings.group,
        now_ms=now_ms,
        new_id=lambda: str(uuid.uuid4()),
        topics=TopicImageSource(topics),
        session_timeout_ms=group_configs.session_timeout_ms,
        expiry_now_ms=cautious.now_ms,
    )
    markers = MarkerWriter(topics, groups)
    fetch_sessions = FetchSessions(
        settings.fetch.sessions_max,
        settings.fetch.session_idle_ms,
        random.Random(),  # noqa: S311 - session ids need no secrecy
    )
    producer_ids = ProducerIds(catalog)
    transactions = TransactionCoordinator(
        CoordinatorTopic(topics, TRANSACTION_TOPIC, settings.transaction.state_partitions, now_ms),
        markers,
        settings.transaction,
        now_ms=now_ms,
        next_producer_id=producer_ids.next,
    )
    moves = TopicMoves(
        catalog=catalog,
        storage=storage,
        topics=topics,
        settings=settings,
        node_epoch=info.epoch,
        now_ms=now_ms,
        new_topic_id=_new_uuid,
        on_detached=transactions.forget_topics,
    )
    manifests = ManifestKeeper(
        catalog=catalog,
        store=opened.stores[settings.objects.store],
        cluster=settings.node.cluster,
        node_id=info.node_id,
        node_epoch=info.epoch,
        now_ms=now_ms,
        new_writer_id=_new_writer_id,
    )
    collector = GarbageCollector(
        catalog=catalog,
        stores=opened.stores,
        cluster=settings.node.cluster,
        now_ms=cautious.now_ms,
        settings=gc_settings(settings),
        before_deleting=manifests.ensure_current,
        pace=storage.background,
    )
    compaction_context, compaction, cleaning = _make_compaction(opened, topics, cautious)
    node = Node(
        settings=settings,
        memory=memory,
        node_id=info.node_id,
        cluster_id=settings.node.cluster,
        node_epoch=info.epoch,
        now_ms=now_ms,
        cautious_now_ms=cautious.now_ms,
        catalog=catalog,
        lease=opened.lease,
        wal=opened.wal,
        stores=opened.stores,
        storage=storage,
        manifests=manifests,
        collector=collector,
        compaction_context=compaction_context,
        compaction=compaction,
        cleaning=cleaning,
        topics=topics,
        moves=moves,
        groups=groups,
        transactions=transactions,
        markers=markers,
        producer_ids=producer_ids,
        fetch_sessions=fetch_sessions,
        server=server,
        cluster_configs=configs,
        broker_configs=broker_configs,
        group_configs=group_configs,
        features=Features(configs, info.node_id),
        telemetry=ClientMetrics(configs, settings.telemetry, now_ms, _new_uuid),
        log_levels=log_levels,
        tasks=tasks,
        failure=failure,
        advertised=advertised,
        # The admin port exposes the metrics that clients push, so telemetry needs it.
        advertised_apis=advertised_apis(telemetry=settings.telemetry.enabled and settings.admin.enabled),
    )
    server.dispatch = Dispatcher(node, spawn=tasks.spawn).dispatch
    node.limit_connections()
    broker_configs.watch(node.limit_connections)
    return node


def _make_compaction(
    opened: _OpenStorage, topics: TopicManager, cautious: CautiousClock
) -> tuple[CompactionContext, CompactionService, CleaningScheduler]:
    settings, storage = opened.settings, opened.storage
    cleaning = make_cleaning(topics, storage)
    node = CompactionContext(
        catalog=opened.catalog,
        stores=opened.stores,
        settings=compaction_settings(settings, opened.memory.sizes),
        cluster=settings.node.cluster,
        node_id=opened.info.node_id,
        node_epoch=opened.info.epoch,
        now_ms=cautious.now_ms,
        new_writer_id=_new_writer_id,
        cleaning=cleaning,
        placement=storage.store_of,
        on_replaced=storage.invalidate,
        on_damaged=storage.damaged.note,
        pace=storage.background,
    )
    service = CompactionService(node, under_pressure=lambda: not storage.writable)
    scheduler = CleaningScheduler(
        service,
        cleaning,
        tails=lambda stream_id: tail_of(storage, stream_id),
        request_upload=storage.request_upload,
        steady_ms=steady_ms,
    )
    return node, service, scheduler
