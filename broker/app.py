"""The composition root: creates the components of a node, and starts and stops them in order.

Clocks, random numbers and the ways to disk, catalog, stores and network come from an `Environment`.

Start: lock the data directory; reserve the ports; check that log, catalog and object stores belong together and to this
node; wait until no process holds the node's id; register, which fences the previous holder; recover the log; record in
the catalog that the log is in use; open the streams; load groups and transactions; listen.

Stop: move partitions to other nodes, if there are any; refuse new connections; answer requests under way, of clients
and then of other nodes; upload; trim; close the log; end the lease.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from anabranch.broker.api.declaration import audited, guarded
from anabranch.broker.api.handlers import HANDLERS, PIPELINED, advertised_apis
from anabranch.broker.api.handlers.authentication import make_gates
from anabranch.broker.api.handlers.dispatch import Dispatcher
from anabranch.broker.api.handlers.internal import InternalPort, internal_handlers, internal_server
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.handover.orders import BEAT_AGE_S, MoveOrders
from anabranch.broker.cluster.handover.source import PartitionSource
from anabranch.broker.cluster.handover.target import PartitionTarget
from anabranch.broker.cluster.membership.copies import Copies
from anabranch.broker.cluster.membership.drain import Drain
from anabranch.broker.cluster.membership.environment import DirectoryLock, Environment
from anabranch.broker.cluster.membership.failover import Failover
from anabranch.broker.cluster.membership.join import (
    announced_listeners,
    internal_address,
    join,
    log_owner,
    open_catalog_and_stores,
)
from anabranch.broker.cluster.membership.lease import Lease, beat_during_start
from anabranch.broker.cluster.membership.log_recovery import LogRecovery, takeover_of
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.cluster.membership.object_log import ObjectStartLog
from anabranch.broker.cluster.membership.operations import NodeOperations
from anabranch.broker.cluster.membership.start_log import StartLog
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.node import Node, NodeFailure
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.configs.features import Features
from anabranch.broker.kafka.configs.group import GroupConfigs
from anabranch.broker.kafka.coordination.internal_topics import (
    OFFSETS_TOPIC,
    TRANSACTION_TOPIC,
    CoordinatorTopic,
    InternalTopics,
)
from anabranch.broker.kafka.fetch_sessions import FetchSessions
from anabranch.broker.kafka.groups.consumer.topic_image import TopicImageSource
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.partitions.cleaning import tail_of
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.kafka.quotas.addresses import AddressQuotas
from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.kafka.quotas.metering import Metering
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.kafka.sasl.credentials import ScramCredentials
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens, read_key
from anabranch.broker.kafka.sasl.mechanisms import Mechanisms, open_files
from anabranch.broker.kafka.telemetry.clients import ClientMetrics
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.compaction import make_cleaning
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.move_requests import MoveRequests
from anabranch.broker.kafka.topics.moves import TopicMoves
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.marker_router import MarkerRouter
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.kafka.transactions.producer_ids import ProducerIds
from anabranch.broker.kafka.transactions.verifier import TransactionVerifier
from anabranch.broker.node.logging.audit import AuditLog
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.net.ports import resolve, warn_if_internal_open, warn_if_open
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.net.tls import Tls
from anabranch.broker.node.peers.handshake import SECRET_BYTES
from anabranch.broker.node.peers.links import LinkContext, Links
from anabranch.broker.node.peers.members import Member, Members, member_of
from anabranch.broker.node.peers.reach import Reach
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.broker.node.settings.authorizer_area import super_users_of
from anabranch.broker.node.settings.clock import CautiousClock
from anabranch.broker.node.settings.data_dir import DataDirError, warn_if_readable
from anabranch.broker.node.settings.memory import MemoryPlan, memory_for, with_sizes
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import compaction_settings, gc_settings, storage_settings
from anabranch.broker.node.tracing.start import open_tracer
from anabranch.broker.operator.admin.access import open_access
from anabranch.broker.operator.admin.http import AdminServer
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.scheduler import CleaningScheduler
from anabranch.compaction.service import CompactionService
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, NodeListener, Takeover
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.maintain.manifest_keeper import ManifestKeeper
from anabranch.s3stream.maintain.manifest_store import check_marks
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tracing import NO_TRACING
from anabranch.wal.format import CATALOG_ID_BYTES
from anabranch.wal.interface import NodeWal, WalError, WalFenced

if TYPE_CHECKING:
    from anabranch.broker.node.tracing.tracer import NodeTracer

LOG_WAIT_S: Final = 10.0
"""Time for which a start waits for a log that another node may be recovering."""


class StartError(Exception):
    """The node cannot start. The text is the one line to show."""


@asynccontextmanager
async def run_node(
    settings: Settings, log_levels: LogLevels | None = None, environment: Environment | None = None
) -> AsyncIterator[Node]:
    """Start a node, serve while the body runs, then stop cleanly: requests answered, data uploaded, WAL trimmed.

    Raises StartError. When the body raises, the node stops as in a crash: no acked record is lost, nothing is uploaded.
    """
    async with AsyncExitStack() as stack:
        try:
            node, admin = await _start(settings, stack, log_levels or LogLevels(), environment or Environment())
        except (DataDirError, StorageError, WalError, OSError) as error:
            raise StartError(str(error)) from error
        yield node
        await node.leave_partitions()
        await node.stop_accepting()
        await admin.close()
        await node.stop()


@dataclass(frozen=True, slots=True)
class _OpenStorage:
    """Catalog, object stores, log and storage of a registered node, open and recovered."""

    environment: Environment
    settings: Settings
    memory: MemoryPlan
    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    info: NodeInfo
    lease: Lease
    wal: NodeWal
    storage: S3Stream
    secret: ClusterSecret
    """Known to the nodes of the cluster only."""
    work: RecordWork
    seen_change: int
    """Number of the last change of the catalog before any of it was read."""
    nodes: Sequence[NodeInfo]
    """All registered nodes."""
    acls: ClusterAcls | None
    """ACLs of the cluster; None without an authorizer."""
    configs: ClusterConfigs
    scram: ScramCredentials
    """Credentials of the cluster's users."""
    tokens: DelegationTokens | None
    """Delegation tokens of the cluster; None without a secret key for them."""
    tracer: "NodeTracer | None"


@dataclass(frozen=True, slots=True)
class _NodeTls:
    """TLS of the listeners, and of the internal port with connections to other nodes. None: not used."""

    clients: Tls | None
    nodes: Tls | None


async def _start(
    settings: Settings, stack: AsyncExitStack, log_levels: LogLevels, environment: Environment
) -> tuple[Node, AdminServer]:
    """Start all components, and push onto `stack` what stops them again."""
    began = time.perf_counter()
    now_ms = environment.now_ms
    cautious = CautiousClock(now_ms, environment.steady_ms)
    memory = memory_for(settings)
    settings = with_sizes(settings, memory.sizes)
    lock = environment.lock_directory(settings.node.data_dir)
    stack.callback(lock.release)
    with _unregistered(lock):
        ports = environment.reserve_ports(settings, stack)
        tls = _open_tls(settings, now_ms)
        sasl = open_files(settings.sasl, environment.random_bytes)
        token_key = read_key(settings.delegation_token)
        access = None if ports.admin is None else open_access(settings, ports.admin, now_ms)
    announced = announced_listeners(settings, [int(bound.getsockname()[1]) for bound in ports.clients])
    internal = internal_address(settings, ports.internal)
    failure = NodeFailure()
    tracer = open_tracer(settings, stack, environment.random().random, environment.now_ns)
    opened = await _open_storage(
        environment, settings, memory, announced, internal, token_key, lock.lock_id, failure, tracer, stack
    )
    members = Members(member_of(opened.info))
    configs = opened.configs
    broker_configs = BrokerConfigs(configs, settings, opened.info.node_id)
    topics = TopicManager(
        catalog=opened.catalog,
        storage=opened.storage,
        settings=settings,
        work=opened.work,
        defaults=broker_configs,
        members=members,
        now_ms=now_ms,
    )
    existing_topics = await topics.load()
    tasks = await stack.enter_async_context(NodeTasks())
    broker_configs.watch(topics.apply_defaults)
    node, local = _make_node(opened, members, topics, broker_configs, log_levels, cautious, tls, tasks, failure)
    mechanisms = Mechanisms(opened.scram, opened.tokens, sasl, environment.random_bytes, now_ms)
    node.server.gates.update(make_gates(node, mechanisms.begin))
    stack.push_async_callback(node.drop_clients)
    admin = AdminServer(node, local)
    stack.push_async_callback(admin.close)
    node.groups.start(existing_topics)
    node.transactions.start()
    await node.start_background_work()
    if ports.admin is not None and access is not None:
        await admin.start(ports.admin, access)
        node.admin_address, node.console_url = admin.address, admin.console_url
    await _listen_to_nodes(node.internal, settings, ports.internal, tls.nodes, tasks)
    await node.membership.learn_who_lives()
    if tls.clients is not None:
        tasks.spawn(tls.clients.run())
    sasl.keep_current(tasks.spawn)
    for listener, bound in zip(settings.listeners, ports.clients, strict=True):
        if listener.protocol.uses_tls and tls.clients is not None:
            node.server.listen_tls(bound, listener.name, tls.clients, tasks.spawn)
        else:
            await node.server.listen(bound, listener.name)
        warn_if_open(listener, bound)
    # No await from here on: a caller that reads "serving" in the log can stop the node cleanly at once.
    node.log_serving(time.perf_counter() - began)
    return node, admin


@contextmanager
def _unregistered(lock: DirectoryLock) -> Iterator[None]:
    """Do what comes before the id of the lock is in the catalog. If it fails, a new data directory is removed."""
    try:
        yield
    except BaseException:
        lock.release_unused()
        raise


def _open_tls(settings: Settings, now_ms: Callable[[], int]) -> _NodeTls:
    """Read the files of TLS. Raises TlsError."""
    area = settings.internal_ssl
    return _NodeTls(
        clients=Tls(settings.ssl, now_ms) if settings.uses_tls else None,
        nodes=None if area is None else Tls(area, now_ms),
    )


async def _listen_to_nodes(
    server: Server, settings: Settings, bound: socket.socket, tls: Tls | None, tasks: NodeTasks
) -> None:
    """Accept connections of other nodes, with TLS or without."""
    warn_if_internal_open(settings, bound)
    if tls is None:
        await server.listen(bound)
        return
    accepts_plaintext = settings.cluster.internal_tls != "required"
    server.listen_tls(bound, "internal", tls, tasks.spawn, accepts_plaintext=accepts_plaintext)
    tasks.spawn(tls.run())


async def _open_storage(
    environment: Environment,
    settings: Settings,
    memory: MemoryPlan,
    announced: Sequence[NodeListener],
    internal: tuple[str, int],
    token_key: bytes,
    lock_id: str,
    failure: NodeFailure,
    tracer: "NodeTracer | None",
    stack: AsyncExitStack,
) -> _OpenStorage:
    """Check that catalog, log and stores belong together, take the node's id, and recover the log."""
    now_ms = environment.now_ms
    warn_if_readable(*settings.private_paths)
    catalog = environment.make_catalog(settings.catalog_url)
    stack.push_async_callback(catalog.close)
    node_log = await _start_log(environment, settings, stack)
    stores = await open_catalog_and_stores(
        catalog,
        node_log,
        settings,
        stack,
        new_catalog_id=lambda: environment.random_bytes(CATALOG_ID_BYTES),
        make_stores=lambda: environment.make_stores(settings, environment.random()),
    )
    info = await join(
        catalog,
        stores,
        node_log,
        settings,
        lock_id,
        listeners=announced,
        internal=internal,
        now_ms=now_ms,
    )
    if tracer is not None:  # not earlier: the log uses the same stores, and its writes belong to no request
        stores = tracer.wrap_stores(stores)
    catalog.act_for(info.node_id, info.epoch)
    lease = Lease(catalog, info, await stack.enter_async_context(NodeTasks()), now_ms=now_ms)
    lease.tasks.spawn(beat_during_start(lease, failure.report))
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
        new_writer_id=lambda: environment.new_uuid().hex,
        tracing=tracer or NO_TRACING,
    )
    await stack.enter_async_context(storage)
    if (found := node_log.found) is not None:
        await catalog.reclaim_streams(
            found.wal_id, node_id=info.node_id, node_epoch=info.epoch, claimed_epoch=found.node_epoch
        )
    with node_log.errors_with_path():
        await storage.recover()
    # The log would find its fence by itself, but only once its store answers: the stop would wait for that.
    failure.watch_fence(lambda error: wal.failed(WalFenced(str(error))))
    await catalog.open_wal(
        wal.wal_id,
        node_id=info.node_id,
        node_epoch=info.epoch,
        kind=node_log.kind,
        location=node_log.location,
        takeover=takeover_of(settings, wal),
        held={*storage.recovered_streams, *storage.stopped_streams},
        now_ms=now_ms(),
    )
    work = RecordWork(memory.sizes.decompressed_bytes_max)
    stack.callback(work.close)
    seen_change = await catalog.last_change()
    secret = ClusterSecret(catalog, await catalog.secret(environment.random_bytes(SECRET_BYTES)))
    nodes = await catalog.list_nodes()
    acls = _make_acls(settings, catalog)
    if acls is not None:
        await acls.load()
        if not acls.authorizer.acls and not super_users_of(settings.authorizer):
            structlog.get_logger("node").warning(
                "there are no ACLs and no super users: clients may do nothing that is checked",
                setting="authorizer.super_users",
            )
    configs = ClusterConfigs(catalog)
    await configs.load()
    scram = ScramCredentials(configs, lambda: secret.value)  # the secret hides which users exist
    tokens = await _load_tokens(environment, settings, catalog, scram, token_key) if token_key else None
    return _OpenStorage(
        environment,
        settings,
        memory,
        catalog,
        stores,
        info,
        lease,
        wal,
        storage,
        secret,
        work,
        seen_change,
        nodes,
        acls,
        configs,
        scram,
        tokens,
        tracer,
    )


async def _start_log(environment: Environment, settings: Settings, stack: AsyncExitStack) -> StartLog:
    """Return the log of the kind that the settings ask for, not claimed yet."""
    if settings.wal.kind == "object":
        return ObjectStartLog(settings, lambda: environment.new_uuid().hex)
    return await stack.enter_async_context(NodeLog.opened(settings, files=environment.logs, wait_s=LOG_WAIT_S))


def _make_acls(settings: Settings, catalog: Catalog) -> ClusterAcls | None:
    area = settings.authorizer
    if not area.enabled:
        return None
    authorizer = Authorizer(super_users=super_users_of(area), allow_if_no_acl=area.allow_everyone_if_no_acl_found)
    return ClusterAcls(catalog, authorizer, acls_max=area.acls_max)


async def _load_tokens(
    environment: Environment, settings: Settings, catalog: Catalog, scram: ScramCredentials, key: bytes
) -> DelegationTokens:
    tokens = DelegationTokens(
        catalog,
        settings.delegation_token,
        key,
        invent=scram.invent,
        now_ms=environment.now_ms,
        new_uuid=lambda: environment.new_uuid().bytes,
    )
    await tokens.load()
    return tokens


def _make_node(
    opened: _OpenStorage,
    members: Members,
    topics: TopicManager,
    broker_configs: BrokerConfigs,
    log_levels: LogLevels,
    cautious: CautiousClock,
    tls: _NodeTls,
    tasks: NodeTasks,
    failure: NodeFailure,
) -> tuple[Node, LocalRequests]:
    """Build the components that serve clients, the node of them all, and its requests to itself."""
    settings, memory, catalog, storage = opened.settings, opened.memory, opened.catalog, opened.storage
    environment, info, configs = opened.environment, opened.info, opened.configs
    now_ms = environment.now_ms
    server = Server(settings.network, memory.sizes, pipelined=PIPELINED)
    group_configs = GroupConfigs(configs, settings.group)
    quota_table = QuotaTable(configs)
    groups = GroupCoordinator(
        CoordinatorTopic(topics, OFFSETS_TOPIC, now_ms),
        settings.group,
        now_ms=now_ms,
        new_id=lambda: str(environment.new_uuid()),
        topics=TopicImageSource(topics),
        session_timeout_ms=group_configs.session_timeout_ms,
        expiry_now_ms=cautious.now_ms,
        read_topic_names=topics.read_names,
        parking=topics.parking,
    )
    links = _make_links(opened, members, tasks, tls.nodes)
    markers = MarkerWriter(topics, groups)
    router = MarkerRouter(markers, topics, links, node_id=info.node_id, node_epoch=info.epoch, spawn=tasks.spawn)
    fetch_sessions = FetchSessions(
        settings.fetch.sessions_max,
        settings.fetch.session_idle_ms,
        environment.random(),
    )
    producer_ids = ProducerIds(catalog)
    transactions = TransactionCoordinator(
        CoordinatorTopic(topics, TRANSACTION_TOPIC, now_ms),
        router,
        settings.transaction,
        now_ms=now_ms,
        next_producer_id=producer_ids.next,
        parking=topics.parking,
    )
    membership = Membership(
        catalog,
        opened.lease,
        wal=opened.wal,
        is_exclusive=takeover_of(settings, opened.wal) is not Takeover.SHARED,
        storage=storage,
        members=members,
        copies=Copies(
            topics=topics,
            groups=groups,
            configs=configs,
            acls=opened.acls,
            tokens=opened.tokens,
            secret=opened.secret,
        ),
        seen=opened.seen_change,
        nodes=opened.nodes,
        on_lost=failure.report,
    )
    topic_commands = TopicCommands(
        catalog=catalog,
        topics=topics,
        turns=membership,
        members=members,
        settings=settings,
        now_ms=now_ms,
        new_topic_id=environment.new_topic_id,
    )
    move_requests = MoveRequests(catalog=catalog, topics=topics, turns=membership, now_ms=now_ms)
    moves = TopicMoves(
        catalog=catalog,
        storage=storage,
        topics=topics,
        turns=membership,
        requests=move_requests,
        members=members,
        settings=settings,
        node_epoch=info.epoch,
        now_ms=now_ms,
        new_topic_id=environment.new_topic_id,
    )
    source = PartitionSource(catalog, storage, topics, links, may_seal=lambda: membership.beat_age_s <= BEAT_AGE_S)
    manifests = ManifestKeeper(
        catalog=catalog,
        store=opened.stores[settings.objects.store],
        cluster=settings.node.cluster,
        node_id=info.node_id,
        node_epoch=info.epoch,
        now_ms=now_ms,
        new_writer_id=lambda: environment.new_uuid().hex,
    )
    collector = GarbageCollector(
        catalog=catalog,
        stores=opened.stores,
        cluster=settings.node.cluster,
        now_ms=cautious.now_ms,
        settings=gc_settings(settings),
        check_catalog=partial(check_marks, catalog, opened.stores[settings.objects.store], settings.node.cluster),
        before_deleting=manifests.ensure_current,
        pace=storage.background,
    )
    compaction_context, compaction, cleaning = _make_compaction(opened, topics, cautious)
    recovery = LogRecovery(
        catalog=catalog,
        stores=opened.stores,
        settings=settings,
        storage_settings=storage_settings(settings, memory.sizes),
        files=environment.logs,
        host_name=info.holder.host_name,
        work=opened.work,
        defaults=broker_configs,
        now_ms=now_ms,
        new_writer_id=lambda: environment.new_uuid().hex,
    )
    failover = Failover(
        catalog,
        membership,
        recovery,
        own=(info.node_id, info.epoch),
        new_leaders=topics.new_leaders,
        left_any=topics.names_node,
        reaches=lambda other: links.reaches(member_of(other)),
        spawn=tasks.spawn,
    )
    node = Node(
        settings=settings,
        memory=memory,
        node_id=info.node_id,
        cluster_id=settings.node.cluster,
        node_epoch=info.epoch,
        now_ms=now_ms,
        cautious_now_ms=cautious.now_ms,
        catalog=catalog,
        wal=opened.wal,
        stores=opened.stores,
        storage=storage,
        manifests=manifests,
        collector=collector,
        compaction_context=compaction_context,
        compaction=compaction,
        cleaning=cleaning,
        ownership=membership.ownership,
        members=members,
        membership=membership,
        failover=failover,
        operations=NodeOperations(
            catalog, membership, failover, node_id=info.node_id, new_leaders=topics.new_leaders, now_ms=now_ms
        ),
        drain=Drain(move_requests, topics, members),
        parking=topics.parking,
        topics=topics,
        topic_commands=topic_commands,
        internal_topics=InternalTopics(
            topics,
            topic_commands,
            offsets_partitions=settings.group.offsets_partitions,
            state_partitions=settings.transaction.state_partitions,
        ),
        moves=moves,
        move_requests=move_requests,
        orders=MoveOrders(
            catalog,
            topics,
            source,
            node_id=info.node_id,
            beat_age_s=lambda: membership.beat_age_s,
            spawn=tasks.spawn,
        ),
        target=PartitionTarget(catalog, storage, topics, membership, tasks.spawn),
        groups=groups,
        transactions=transactions,
        markers=markers,
        verifier=TransactionVerifier(transactions, topics, links, node_id=info.node_id),
        links=links,
        reach=Reach(members, links, has_started=lambda other: _has_started(catalog, other)),
        internal=internal_server(settings.network, memory.sizes),
        producer_ids=producer_ids,
        fetch_sessions=fetch_sessions,
        server=server,
        tls=tls.clients,
        internal_tls=tls.nodes,
        audit=AuditLog(asyncio.get_running_loop().time),
        acls=opened.acls,
        cluster_configs=configs,
        broker_configs=broker_configs,
        group_configs=group_configs,
        quota_table=quota_table,
        quotas=ClientQuotas(quota_table, settings.quota, environment.steady_ms),
        address_quotas=AddressQuotas(
            quota_table, settings.quota, environment.steady_ms, resolve=resolve, spawn=tasks.spawn
        ),
        features=Features(configs, info.node_id),
        scram=opened.scram,
        delegation_tokens=opened.tokens,
        telemetry=ClientMetrics(configs, settings.telemetry, now_ms, lambda: environment.new_uuid().bytes),
        tracing=None if opened.tracer is None else opened.tracer.stats,
        log_levels=log_levels,
        tasks=tasks,
        failure=failure,
        # The admin port exposes the metrics that clients push, so telemetry needs it.
        advertised_apis=advertised_apis(telemetry=settings.telemetry.enabled and settings.admin.enabled),
    )
    local = LocalRequests(node, audited(HANDLERS))
    handlers = environment.wrap_handlers(audited(HANDLERS if opened.acls is None else guarded(HANDLERS)))
    if opened.tracer is not None:
        from anabranch.broker.api.handlers.traced import traced  # it loads OpenTelemetry, which may be missing

        handlers = traced(handlers, opened.tracer)
    metering = Metering(
        server,
        node.quotas,
        {key: handler.metered for key, handler in HANDLERS.items()},
        lambda spawn: Dispatcher(node, spawn=spawn, handlers=handlers).dispatch,
        spawn=tasks.spawn,
    )
    node.quotas.watch(configs, metering.update)
    node.address_quotas.watch(configs)
    server.connection_delay_s = node.address_quotas.delay_s
    internal = InternalPort(
        node.internal,
        members,
        cluster=settings.node.cluster,
        secret=opened.secret,
        random_bytes=environment.random_bytes,
        hear=node.reach.hear,
        serve=Dispatcher(node, spawn=tasks.spawn, handlers=internal_handlers(local)).dispatch,
    )
    tasks.spawn(internal.run())
    node.limit_connections()
    broker_configs.watch(node.limit_connections)
    return node, local


async def _has_started(catalog: Catalog, node: Member) -> bool:
    """Return whether a node has recovered its log in this life of it. Raises StorageError."""
    return any(wal.node_epoch == node.epoch for wal in await catalog.list_wals(node.node_id))


def _make_links(opened: _OpenStorage, members: Members, tasks: NodeTasks, internal_tls: Tls | None) -> Links:
    environment = opened.environment
    tls = internal_tls if opened.settings.cluster.internal_tls in {"preferred", "required"} else None
    context = LinkContext(
        opened.settings.node.cluster,
        opened.secret,
        environment.open_connection if tls is None else tls.open_connection,
        environment.random_bytes,
        environment.random(),
    )
    return Links(context, members, tasks.spawn)


def _make_compaction(
    opened: _OpenStorage, topics: TopicManager, cautious: CautiousClock
) -> tuple[CompactionContext, CompactionService, CleaningScheduler]:
    environment, settings, storage = opened.environment, opened.settings, opened.storage
    cleaning = make_cleaning(topics, storage)
    node = CompactionContext(
        catalog=opened.catalog,
        stores=opened.stores,
        settings=compaction_settings(settings, opened.memory.sizes),
        cluster=settings.node.cluster,
        node_id=opened.info.node_id,
        node_epoch=opened.info.epoch,
        now_ms=cautious.now_ms,
        new_writer_id=lambda: environment.new_uuid().hex,
        cleaning=cleaning,
        placement=storage.store_of,
        on_replaced=storage.invalidate,
        on_damaged=storage.damaged.note,
        pace=storage.background,
        tracing=opened.tracer or NO_TRACING,
    )
    service = CompactionService(node, under_pressure=lambda: not storage.writable)
    scheduler = CleaningScheduler(
        service,
        cleaning,
        tails=lambda stream_id: tail_of(storage, stream_id),
        request_upload=storage.request_upload,
        steady_ms=environment.steady_ms,
    )
    return node, service, scheduler
