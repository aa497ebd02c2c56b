"""The composition root: picks the components of a node, starts them in order, and stops them in order.

Only here are the wall clock, randomness and uuids read; everything else is handed them. Start: lock the data directory,
reserve the ports, look at the log and at the catalog, which must belong together and to this node; wait until nobody
holds the node's id; register (which fences whoever had it), recover the log, note in the catalog that it is in use,
open the streams, load the groups, listen. Stop: accept nothing more, answer what is under way, upload, trim, close the
log, end the lease.
"""

import asyncio
import os
import random
import secrets
import socket
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog

from broker.admin.http import AdminServer
from broker.configs.broker import BrokerConfigs
from broker.configs.broker_table import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX, PRODUCER_ID_EXPIRATION
from broker.configs.cluster import ClusterConfigs
from broker.configs.features import Features
from broker.configs.group import GroupConfigs
from broker.coordination.offsets_topic import OffsetsTopic
from broker.fetch_sessions import FetchSessions
from broker.groups.consumer.topics import TopicImages
from broker.groups.coordinator import GroupCoordinator
from broker.handlers import HANDLERS
from broker.handlers.dispatch import Dispatcher
from broker.logging.levels import LogLevels
from broker.membership.lease import Claimant, LeaseKeeper, wait_until_free
from broker.membership.log_identity import wal_id_of, why_blank_catalog_refused
from broker.membership.node_log import NodeLog
from broker.membership.other_nodes import other_nodes, warn_of_other_nodes
from broker.net.ports import reserve_ports
from broker.net.server import Server
from broker.node import Address, Node
from broker.partitions.cleaning import KafkaBatches, clean_policies, history_of, tail_of
from broker.partitions.producer_expiry import keep_expiring
from broker.partitions.record_work import RecordWork
from broker.partitions.retention import keep_enforcing
from broker.settings.clock import CautiousClock
from broker.settings.data_dir import DataDirError, DataDirLock
from broker.settings.memory import memory_for, with_sizes
from broker.settings.model import Settings
from broker.settings.producer_ids import ProducerIds
from broker.settings.stores import check_stores_hold_objects, check_stores_known, find_object, make_stores
from broker.telemetry.clients import ClientMetrics
from broker.topics.manager import TopicManager
from broker.topics.moves import TopicMoves
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.markers import MarkerWriter
from broker.transactions.topic import TransactionTopic
from compaction.interface import AbortedRange, Cleaning
from compaction.node import CompactionNode
from compaction.scheduler import CleaningScheduler
from compaction.service import CompactionService
from compaction.settings import CompactionSettings
from protocol.messages import get_telemetry_subscriptions, push_telemetry
from protocol.messages.api_versions import ApiVersion
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import NodeHolder, NodeInfo
from s3stream.engine import S3Stream
from s3stream.errors import CatalogDamaged, CatalogError, NodeFenced, StorageError
from s3stream.maintain.gc import GarbageCollector, GcSettings
from s3stream.maintain.manifest_keeper import ManifestKeeper, check_catalog_is_newest, newest_manifest_key
from s3stream.outages import CATALOG
from s3stream.settings import StorageSettings
from s3stream.store.interface import ObjectStore
from s3stream.tasks import end_tasks
from wal.format import CATALOG_ID_BYTES
from wal.interface import WalError
from wal.log import DeltaWal
from wal.owner import Owner

TELEMETRY_APIS = frozenset({get_telemetry_subscriptions.KEY, push_telemetry.KEY})


class StartError(Exception):
    """The node cannot start; the text is the one line to show."""


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """A clock that is never set, in ms since some moment."""
    return time.monotonic_ns() // 1_000_000


@asynccontextmanager
async def run_node(settings: Settings, log_levels: LogLevels | None = None) -> AsyncIterator["RunningNode"]:
    """Start a node, serve while the body runs, then stop it cleanly: answers out, everything uploaded, WAL trimmed.

    Raises StartError. When the body raises, the node stops as in a crash: nothing acked is lost, nothing is uploaded.
    """
    async with AsyncExitStack() as stack:
        try:
            running = await RunningNode.start(settings, stack, log_levels or LogLevels())
        except (DataDirError, StorageError, WalError, OSError) as error:
            raise StartError(str(error)) from error
        yield running
        await running.stop()


class RunningNode:
    """A node that serves, with what its owner needs: where it listens, and when it has failed."""

    def __init__(self, settings: Settings) -> None:
        self.memory = memory_for(settings)
        self.settings = with_sizes(settings, self.memory.sizes)
        self.log = structlog.get_logger("node")
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the node can take no more writes."""
        self.node: Node
        self.dispatcher: Dispatcher
        self.wal: DeltaWal
        self.lease: LeaseKeeper
        self.stores: Mapping[str, ObjectStore]
        """By name; the first is the default one."""
        self.compaction: CompactionService
        self.cleaning: CleaningScheduler
        self.moves: TopicMoves
        self.compaction_node: CompactionNode
        self.manifests: ManifestKeeper
        self.admin: AdminServer | None = None
        self._cautious = CautiousClock(now_ms, steady_ms)
        """For what is dropped by its age: records, committed offsets and idle producers."""
        self._stopping = False
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{self.node.advertised.host}:{self.node.advertised.port}"

    # start

    @classmethod
    async def start(cls, settings: Settings, stack: AsyncExitStack, log_levels: LogLevels) -> "RunningNode":
        """Bring everything up, pushing onto `stack` what takes it down again."""
        began = time.perf_counter()
        running = cls(settings)
        settings = running.settings
        lock = DataDirLock(settings.node.data_dir)
        stack.callback(lock.release)
        bound, admin_bound = reserve_ports(settings, stack)
        advertised = Address(
            settings.listener.advertised_host or settings.listener.host,
            settings.listener.advertised_port or int(bound.getsockname()[1]),
        )
        catalog = Catalog(settings.catalog_url)
        stack.push_async_callback(catalog.close)
        node_log = await stack.enter_async_context(NodeLog.opened(settings))
        await running._open_catalog(catalog, node_log, stack)
        info = await running._register(catalog, node_log, advertised, lock.lock_id, stack)
        running.wal = await node_log.make(running._owner(catalog, info.epoch), now_ms)
        stack.push_async_callback(running.wal.close)
        storage = await stack.enter_async_context(running._make_storage(catalog, info))
        with node_log.named():
            await storage.recover()
        await catalog.open_wal(
            wal_id_of(running.wal.log_id),
            node_id=info.node_id,
            node_epoch=info.epoch,
            location=str(node_log.path),
            now_ms=now_ms(),
        )
        work = RecordWork(running.memory.sizes.decompressed_bytes_max)
        stack.callback(work.close)
        configs = ClusterConfigs(catalog)
        await configs.load()
        broker_configs = BrokerConfigs(configs, settings, info.node_id)
        topics = TopicManager(
            catalog=catalog,
            storage=storage,
            settings=settings,
            work=work,
            defaults=broker_configs,
            now_ms=now_ms,
            new_topic_id=lambda: uuid.uuid4().bytes,
        )
        await topics.load()
        await running._group.__aenter__()
        stack.push_async_callback(running._leave_group)
        broker_configs.watch(topics.take_defaults)
        running._compose(catalog, info, storage, topics, advertised, configs, broker_configs, log_levels)
        stack.push_async_callback(running._drop_clients)
        found = [topic.info for topic in topics]
        warn_of_other_nodes(other_nodes(await catalog.list_nodes(), found, info.node_id, now_ms()))
        await running._serve(bound, admin_bound)
        # Nothing is awaited once clients are served: whoever reads that the node serves can stop it cleanly.
        running._announce(time.perf_counter() - began)
        return running

    async def _open_catalog(self, catalog: Catalog, node_log: NodeLog, stack: AsyncExitStack) -> None:
        """Open catalog and stores; an empty catalog beside a log or objects is refused, and left as it is."""
        settings = self.settings
        cluster = settings.node.cluster
        blank = await catalog.is_blank()
        if blank and (beside := node_log.why_not_new()):
            raise StartError(why_blank_catalog_refused(catalog.where, beside))
        if not blank:
            await catalog.open(cluster=cluster, new_id=secrets.token_bytes(CATALOG_ID_BYTES))
        self.stores = make_stores(settings, random.Random())  # noqa: S311 - spreads retries in time
        if not blank:
            check_stores_known(await catalog.count_committed(), self.stores)
        for store in self.stores.values():
            stack.push_async_callback(store.close)
            await store.open()
        default = self.stores[settings.objects.store]
        if blank:
            if found := await find_object(self.stores, cluster) or await newest_manifest_key(default, cluster):
                beside = f"there are objects of cluster {cluster!r} ({found})"
                raise StartError(why_blank_catalog_refused(catalog.where, beside))
            await catalog.open(cluster=cluster, new_id=secrets.token_bytes(CATALOG_ID_BYTES))
        else:
            await check_catalog_is_newest(catalog, default, cluster)
            await check_stores_hold_objects(catalog, self.stores, cluster)

    def _owner(self, catalog: Catalog, epoch: int) -> Owner:
        node = self.settings.node
        return Owner(node.node_id, epoch, node.cluster, catalog.identity())

    async def _register(
        self, catalog: Catalog, node_log: NodeLog, advertised: Address, lock_id: str, stack: AsyncExitStack
    ) -> NodeInfo:
        """Take the node's id, if nobody has it and the log is the one to go on with; its lease is kept from then on."""
        node_id, lease_ms = self.settings.node.node_id, self.settings.catalog.lease_ms
        known = await catalog.get_node(node_id)
        await node_log.check(self._owner(catalog, (0 if known is None else known.epoch) + 1), catalog)
        claimant = Claimant(lock_id, socket.gethostname(), self.settings.one_machine, lease_ms)
        seen = await wait_until_free(catalog, node_id, claimant)
        await node_log.decide(catalog, node_id, seen)
        info = await catalog.register_node(
            node_id,
            advertised.host,
            advertised.port,
            now_ms=now_ms(),
            lease_ms=lease_ms,
            holder=NodeHolder(socket.gethostname(), os.getpid(), lock_id),
            after_epoch=0 if seen is None else seen.epoch,
        )
        keeper = LeaseKeeper(catalog, info, now_ms=now_ms, on_lost=self._lose)
        self.lease = await stack.enter_async_context(keeper)
        return info

    def _make_storage(self, catalog: Catalog, info: NodeInfo) -> S3Stream:
        wanted, sizes = self.settings.storage, self.memory.sizes
        return S3Stream(
            wal=self.wal,
            catalog=catalog,
            stores=self.stores,
            default_store=self.settings.objects.store,
            settings=StorageSettings(
                upload_threshold_bytes=wanted.upload_bytes,
                upload_age_ms=wanted.upload_age_ms,
                split_bytes=wanted.split_bytes,
                delete_delay_ms=wanted.delete_delay_ms,
                prepare_ttl_ms=wanted.prepare_ttl_ms,
                log_cache_bytes=sizes.log_cache_bytes,
                block_cache_bytes=sizes.block_cache_bytes,
                index_cache_bytes=sizes.index_cache_bytes,
            ),
            cluster=self.settings.node.cluster,
            node_id=info.node_id,
            node_epoch=info.epoch,
            now_ms=now_ms,
            new_writer_id=lambda: uuid.uuid4().hex,
        )

    def _vacate(self, stream_id: int, vacated: Sequence[AbortedRange]) -> None:
        """Compaction has left only the markers of aborted transactions."""
        for partition in self.node.topics.led_partitions():
            if partition.stream.stream_id == stream_id:
                partition.vacate(vacated)

    def _make_compaction(self) -> None:
        node, settings = self.node, self.settings
        cleaning = Cleaning(
            KafkaBatches(),
            lambda: clean_policies((topic.info, topic.config) for topic in node.topics),
            history_of,
            self._vacate,
            node.storage.supersede,
        )
        self.compaction_node = CompactionNode(
            catalog=node.catalog,
            stores=self.stores,
            settings=CompactionSettings(
                period_ms=settings.compaction.period_ms,
                split_bytes=settings.storage.split_bytes,
                delete_delay_ms=settings.storage.delete_delay_ms,
                memory_bytes=self.memory.sizes.compaction_bytes,
                index_bytes_max=self.memory.sizes.compaction_index_bytes,
                clean_keys_bytes_max=self.memory.sizes.compaction_keys_bytes,
            ),
            cluster=settings.node.cluster,
            node_id=node.node_id,
            node_epoch=node.node_epoch,
            now_ms=self._cautious.now_ms,
            new_writer_id=lambda: uuid.uuid4().hex,
            cleaning=cleaning,
            placement=node.storage.store_of,
            on_replaced=node.storage.invalidate,
            on_damaged=node.storage.damaged.note,
        )
        self.compaction = CompactionService(self.compaction_node, under_pressure=lambda: not node.storage.writable)
        self.cleaning = CleaningScheduler(
            self.compaction,
            cleaning,
            tails=lambda stream_id: tail_of(node.storage, stream_id),
            request_upload=node.storage.request_upload,
            steady_ms=steady_ms,
        )

    def _compose(
        self,
        catalog: Catalog,
        info: NodeInfo,
        storage: S3Stream,
        topics: TopicManager,
        advertised: Address,
        configs: ClusterConfigs,
        broker_configs: BrokerConfigs,
        log_levels: LogLevels,
    ) -> None:
        settings = self.settings
        generator = random.Random()  # noqa: S311 - session ids need no secrecy
        server = Server(settings.network, self.memory.sizes)
        group_configs = GroupConfigs(configs, settings.group)
        groups = GroupCoordinator(
            OffsetsTopic(topics, settings.group, now_ms),
            settings.group,
            now_ms=now_ms,
            new_id=lambda: str(uuid.uuid4()),
            topics=TopicImages(topics),
            session_timeout_ms=group_configs.session_timeout_ms,
            expiry_now_ms=self._cautious.now_ms,
        )
        markers = MarkerWriter(topics, groups)
        producer_ids = ProducerIds(catalog)
        self.node = Node(
            settings=settings,
            node_id=info.node_id,
            cluster_id=settings.node.cluster,
            node_epoch=info.epoch,
            catalog=catalog,
            storage=storage,
            topics=topics,
            groups=groups,
            transactions=TransactionCoordinator(
                TransactionTopic(topics, settings.transaction, now_ms),
                markers,
                settings.transaction,
                now_ms=now_ms,
                next_producer_id=producer_ids.next,
            ),
            markers=markers,
            fetch_sessions=FetchSessions(settings.fetch.sessions_max, settings.fetch.session_idle_ms, generator),
            producer_ids=producer_ids,
            server=server,
            cluster_configs=configs,
            broker_configs=broker_configs,
            group_configs=group_configs,
            features=Features(configs, info.node_id),
            telemetry=ClientMetrics(configs, settings.telemetry, now_ms, lambda: uuid.uuid4().bytes),
            log_levels=log_levels,
            now_ms=now_ms,
            advertised_apis=[
                ApiVersion(api_key=key, min_version=handler.advertised_min_version, max_version=handler.max_version)
                for key, handler in HANDLERS.items()
                # What clients push is read on the admin port: without it nobody could.
                if (settings.telemetry.enabled and settings.admin.enabled) or key not in TELEMETRY_APIS
            ],
            advertised=advertised,
        )
        self.moves = TopicMoves(
            catalog=catalog,
            storage=storage,
            topics=topics,
            settings=settings,
            node_epoch=info.epoch,
            now_ms=now_ms,
            new_topic_id=lambda: uuid.uuid4().bytes,
            on_gone=self.node.transactions.forget_topics,
        )
        self.dispatcher = Dispatcher(self.node, spawn=self._spawn)
        server.dispatch = self.dispatcher.dispatch
        self._limit_connections()
        broker_configs.watch(self._limit_connections)

    def _limit_connections(self) -> None:
        server, configs = self.node.server, self.node.broker_configs
        server.connections_max = configs.number(CONNECTIONS_MAX)
        server.connections_per_address_max = configs.number(CONNECTIONS_PER_ADDRESS_MAX)

    async def _serve(self, bound: socket.socket, admin_bound: socket.socket | None) -> None:
        node = self.node
        await node.groups.start()
        await node.transactions.start()
        self._make_compaction()
        self.manifests = ManifestKeeper(
            catalog=node.catalog,
            store=self.stores[self.settings.objects.store],
            cluster=self.settings.node.cluster,
            node_id=node.node_id,
            node_epoch=node.node_epoch,
            now_ms=now_ms,
            new_writer_id=lambda: uuid.uuid4().hex,
        )
        collector = GarbageCollector(
            catalog=node.catalog,
            stores=self.stores,
            cluster=self.settings.node.cluster,
            now_ms=self._cautious.now_ms,
            settings=GcSettings(period_ms=self.settings.storage.gc_period_ms),
            before_deleting=self.manifests.ensure_current,
        )
        for work in (
            node.groups.run(),
            node.transactions.run(),
            collector.run(),
            self.manifests.run(),
            self._watch_storage(),
            keep_expiring(
                self.node.topics.led_partitions,
                self._cautious.now_ms,
                lambda: node.broker_configs.number(PRODUCER_ID_EXPIRATION),
            ),
            keep_enforcing(
                self.node.topics.led_partitions,
                self._cautious.now_ms,
                self.settings.topic.retention_check_interval_ms,
            ),
        ):
            self._spawn(work)
        self.lease.on_renewed = self._follow_catalog
        self.lease.on_failed = lambda error: node.storage.outages.note(CATALOG, error)
        if self.settings.compaction.enabled:
            self._spawn(self._compact(self.compaction.run()))
            self._spawn(self._compact(self.cleaning.run()))
        if admin_bound is not None:
            self.admin = AdminServer(self)
            await self.admin.start(admin_bound)
        await node.server.listen(bound)

    def _announce(self, seconds: float) -> None:
        stats = self.node.storage.stats
        self.log.info("memory", **self.memory.describe())
        if self.memory.is_short:
            self.log.warning("the caches and limits that are set or needed take more memory than is available")
        self.log.info(
            "serving",
            address=self.bootstrap,
            admin=self.admin.address if self.admin is not None else "off",
            data_dir=str(self.settings.node.data_dir),
            objects=self.settings.objects.store,
            wal=self.wal.description,
            topics=len(self.node.topics),
            partitions=self.node.topics.partition_count,
            recovered_records=stats.recovered_records,
            recovered_bytes=stats.recovered_bytes,
            seconds=round(seconds, 3),
        )
        for stream_id, stopped in self.node.storage.stopped_streams.items():
            self.log.error(
                "a partition is stopped: see `anabranch storage stopped`",
                stream_id=stream_id,
                reason=str(stopped.error),
            )

    # while it runs

    async def _follow_catalog(self) -> None:
        """Follow what the catalog has been told meanwhile."""
        if gone := await self.node.topics.settle():
            self.node.groups.forget_topics(gone)
            self.node.transactions.forget_topics(gone)
        await self.node.cluster_configs.settle()
        await self.node.storage.damaged.forget_removed(self.node.catalog)
        self.node.storage.outages.over(CATALOG)
        await self._follow_configs()

    async def _follow_configs(self) -> None:
        """Take over configs that were set through other nodes; alone there are none."""
        try:
            if len(await self.node.catalog.list_nodes()) > 1:
                await self.node.topics.refresh_configs()
                await self.node.cluster_configs.load()
        except CatalogError as error:
            self.log.warning("configs that other nodes may have set could not be read", reason=str(error))

    async def _compact(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NodeFenced as error:
            self._fail(f"fenced: {error}")

    async def _watch_storage(self) -> None:
        error = await self.node.storage.wait_stopped()
        if not self._stopping:
            self._fail(str(error))

    def _lose(self, error: NodeFenced | CatalogDamaged) -> None:
        """The node can commit nothing any more."""
        self._fail(f"fenced: {error}" if isinstance(error, NodeFenced) else str(error))

    def _fail(self, reason: str) -> None:
        self.log.error("the node takes no more writes", reason=reason)
        if not self.failed.done():
            self.failed.set_result(reason)

    # stop

    async def stop(self) -> None:
        """Accept nothing more, answer what is under way, upload, trim. Components are closed by the caller's stack."""
        began = time.perf_counter()
        self._stopping = True
        server = self.node.server
        await server.stop_accepting()
        if self.admin is not None:
            await self.admin.close()
        self.node.groups.close()
        self.node.transactions.close()
        cut_off = await server.drain(self.settings.node.drain_timeout_ms)
        self._cancel_tasks()
        await self._close_storage()
        await self.wal.close()
        await self._leave()
        await self.manifests.stop()
        self.log.info(
            "stopped",
            connections_cut_off=cut_off,
            wal_used_bytes=self.wal.used_bytes,
            seconds=round(time.perf_counter() - began, 3),
        )

    async def _close_storage(self) -> None:
        """Upload what is left; while the store takes nothing only for a while, since the log keeps it all."""
        storage = self.node.storage
        if storage.error is None:
            try:
                async with asyncio.timeout(self.settings.node.stop_upload_timeout_ms / 1000):
                    await storage.close(upload=True)
            except TimeoutError:
                self.log.warning(
                    "not everything could be uploaded in time; the log keeps it for the next start",
                    uncommitted_bytes=storage.uncommitted_bytes,
                    waited_ms=self.settings.node.stop_upload_timeout_ms,
                )
        await storage.close(upload=False)

    async def _leave(self) -> None:
        """Tell the catalog that the node has stopped, and whether its log is empty."""
        await self.lease.stop()
        drained = wal_id_of(self.wal.log_id) if self.wal.drained else None
        try:
            await self.node.catalog.stop_node(
                self.node.node_id, self.node.node_epoch, drained_wal=drained, now_ms=now_ms()
            )
        except CatalogError as error:
            self.log.warning("the catalog could not be told that the node has stopped", reason=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drop_clients(self) -> None:
        """Close every socket at once; after a clean stop there is none."""
        if self.admin is not None:
            await self.admin.close()
        await self.node.server.stop_accepting()
        self.node.server.drop_all()

    async def _leave_group(self) -> None:
        """End all tasks. The group is not told of the caller's error: it would wrap it in a group of one."""
        await end_tasks(self._tasks)
        await self._group.__aexit__(None, None, None)

    def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
