"""Storage of a node: checks that catalog, log and stores belong together, takes the node's id, recovers the log."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.membership.join import join, log_owner, open_catalog_and_stores
from anabranch.broker.cluster.membership.lease import Lease, beat_during_start
from anabranch.broker.cluster.membership.log_recovery import takeover_of
from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.cluster.membership.object_log import ObjectStartLog
from anabranch.broker.cluster.membership.start_log import StartLog, errors_at
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.node import NodeFailure
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.kafka.sasl.credentials import ScramCredentials
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.node.peers.handshake import SECRET_BYTES
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.broker.node.settings.authorizer_area import super_users_of
from anabranch.broker.node.settings.clock import CautiousClock
from anabranch.broker.node.settings.data_dir import warn_if_readable
from anabranch.broker.node.settings.memory import MemoryPlan
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import storage_settings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, NodeListener
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tracing import NO_TRACING
from anabranch.wal.format import CATALOG_ID_BYTES
from anabranch.wal.interface import NodeWal, WalFenced

if TYPE_CHECKING:
    from anabranch.broker.node.tracing.tracer import NodeTracer

LOG_WAIT_S: Final = 10.0
"""Time for which a start waits for a log that another node may be recovering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Settings, clocks and secrets that a start has before its node is registered."""

    environment: Environment
    settings: Settings
    memory: MemoryPlan
    cautious: CautiousClock
    failure: NodeFailure
    tracer: "NodeTracer | None"
    stack: AsyncExitStack
    """Stops again what was started."""
    lock_id: str
    """Id of the lock of the data directory."""
    token_key: bytes
    """Secret key of delegation tokens; empty: they are off."""

    def new_writer_id(self) -> str:
        """Return an id for a writer of objects."""
        return self.environment.new_uuid().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """State that the cluster shares, as the catalog had it at the start."""

    seen_change: int
    """Number of the last change of the catalog before any of it was read."""
    nodes: Sequence[NodeInfo]
    """All registered nodes."""
    secret: ClusterSecret
    """Known to the nodes of the cluster only."""
    acls: ClusterAcls | None
    """ACLs of the cluster; None without an authorizer."""
    configs: ClusterConfigs
    scram: ScramCredentials
    """Credentials of the cluster's users."""
    tokens: DelegationTokens | None
    """Delegation tokens of the cluster; None without a secret key for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStorage:
    """Catalog, object stores, log and storage of a registered node, open and recovered."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    info: NodeInfo
    lease: Lease
    wal: NodeWal
    storage: S3Stream
    work: RecordWork
    shared: SharedState


async def open_storage(basis: Basis, *, listeners: Sequence[NodeListener], internal: tuple[str, int]) -> OpenStorage:
    """Register the node under its addresses for clients and for other nodes, and open all that it stores data in."""
    environment, settings, stack = basis.environment, basis.settings, basis.stack
    warn_if_readable(*settings.private_paths)
    catalog = environment.make_catalog(settings.catalog_url)
    stack.push_async_callback(catalog.close)
    log = await _start_log(basis)
    stores = await open_catalog_and_stores(
        catalog,
        log,
        settings,
        stack,
        new_catalog_id=lambda: environment.random_bytes(CATALOG_ID_BYTES),
        make_stores=lambda: environment.make_stores(settings, environment.random()),
    )
    info = await join(
        catalog,
        stores,
        log,
        settings,
        basis.lock_id,
        listeners=listeners,
        internal=internal,
        now_ms=environment.now_ms,
    )
    if basis.tracer is not None:  # not earlier: the log uses the same stores, and its writes belong to no request
        stores = basis.tracer.wrap_stores(stores)
    catalog.act_for(info.identity)
    lease = Lease(catalog, info, await stack.enter_async_context(NodeTasks()), now_ms=environment.now_ms)
    lease.tasks.spawn(beat_during_start(lease, basis.failure.report))
    wal = await log.open_wal(log_owner(settings, catalog, info.epoch), environment.now_ms)
    stack.push_async_callback(wal.close)
    storage = await _recover(basis, catalog, stores, info, log, wal)
    work = RecordWork(basis.memory.sizes.decompressed_bytes_max)
    stack.callback(work.close)
    return OpenStorage(
        catalog=catalog,
        stores=stores,
        info=info,
        lease=lease,
        wal=wal,
        storage=storage,
        work=work,
        shared=await _load_shared(basis, catalog),
    )


async def _start_log(basis: Basis) -> StartLog:
    """Return the log of the kind that the settings ask for, not claimed yet."""
    if basis.settings.wal.kind == "object":
        return ObjectStartLog(basis.settings, basis.new_writer_id)
    return await basis.stack.enter_async_context(
        NodeLog.opened(basis.settings, files=basis.environment.logs, wait_s=LOG_WAIT_S)
    )


async def _recover(
    basis: Basis, catalog: Catalog, stores: Mapping[str, ObjectStore], info: NodeInfo, log: StartLog, wal: NodeWal
) -> S3Stream:
    """Return the storage with what the log has, and record in the catalog that the log is in use."""
    settings, now_ms = basis.settings, basis.environment.now_ms
    storage = S3Stream(
        wal=wal,
        catalog=catalog,
        stores=stores,
        default_store=settings.objects.store,
        settings=storage_settings(settings, basis.memory.sizes),
        cluster=settings.node.cluster,
        node=info.identity,
        now_ms=now_ms,
        new_writer_id=basis.new_writer_id,
        tracing=basis.tracer or NO_TRACING,
    )
    await basis.stack.enter_async_context(storage)
    if (found := log.found) is not None:
        await catalog.reclaim_streams(found.wal_id, node=info.identity, claimed_epoch=found.node_epoch)
    with errors_at(log.location):
        await storage.recover()
    # The log would find its fence by itself, but only once its store answers: the stop would wait for that.
    basis.failure.watch_fence(lambda error: wal.failed(WalFenced(str(error))))
    await catalog.open_wal(
        wal.wal_id,
        node=info.identity,
        kind=log.kind,
        location=log.location,
        takeover=takeover_of(settings, wal),
        held={*storage.recovered_streams, *storage.stopped_streams},
        now_ms=now_ms(),
    )
    return storage


async def _load_shared(basis: Basis, catalog: Catalog) -> SharedState:
    seen_change = await catalog.last_change()
    secret = ClusterSecret(catalog, await catalog.secret(basis.environment.random_bytes(SECRET_BYTES)))
    nodes = await catalog.list_nodes()
    acls = await _load_acls(basis.settings, catalog)
    configs = ClusterConfigs(catalog)
    await configs.load()
    scram = ScramCredentials(configs, lambda: secret.value)  # the secret hides which users exist
    return SharedState(
        seen_change=seen_change,
        nodes=nodes,
        secret=secret,
        acls=acls,
        configs=configs,
        scram=scram,
        tokens=await _load_tokens(basis, catalog, scram) if basis.token_key else None,
    )


async def _load_acls(settings: Settings, catalog: Catalog) -> ClusterAcls | None:
    area = settings.authorizer
    if not area.enabled:
        return None
    super_users = super_users_of(area)
    authorizer = Authorizer(super_users=super_users, allow_if_no_acl=area.allow_everyone_if_no_acl_found)
    acls = ClusterAcls(catalog, authorizer, acls_max=area.acls_max)
    await acls.load()
    if not authorizer.acls and not super_users:
        structlog.get_logger("node").warning(
            "there are no ACLs and no super users: clients may do nothing that is checked",
            setting="authorizer.super_users",
        )
    return acls


async def _load_tokens(basis: Basis, catalog: Catalog, scram: ScramCredentials) -> DelegationTokens:
    environment = basis.environment
    tokens = DelegationTokens(
        catalog,
        basis.settings.delegation_token,
        basis.token_key,
        invent=scram.invent,
        now_ms=environment.now_ms,
        new_uuid=lambda: environment.new_uuid().bytes,
    )
    await tokens.load()
    return tokens
