"""The upkeep of a node, with that of what is stored: manifests, collection of objects, compaction."""

from functools import partial
from typing import TYPE_CHECKING

from anabranch.broker.app.storage import Basis, OpenStorage
from anabranch.broker.cluster.balancer.balancer import Balancer
from anabranch.broker.cluster.balancer.loads import LoadMeter
from anabranch.broker.cluster.balancer.planning import Zone
from anabranch.broker.cluster.handover.orders import MoveOrders
from anabranch.broker.cluster.membership.drain import Drain
from anabranch.broker.cluster.membership.failover import Failover
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.cluster.tables import LOOK_S, TablesOnDemand
from anabranch.broker.cluster.upkeep import Upkeep
from anabranch.broker.kafka.configs.broker_table import BALANCER, BALANCER_ZONE
from anabranch.broker.kafka.partitions.cleaning import tail_of
from anabranch.broker.kafka.topics.compaction import make_cleaning
from anabranch.broker.node.net.traffic import ClientTraffic
from anabranch.broker.node.peers.relay import relay
from anabranch.broker.node.settings.package_settings import compaction_settings, gc_settings
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.interface import CleaningHooks
from anabranch.compaction.scheduler import CleaningScheduler
from anabranch.compaction.service import CompactionService
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.maintain.manifest_keeper import ManifestKeeper
from anabranch.s3stream.maintain.manifest_store import check_marks
from anabranch.s3stream.tracing import NO_TRACING

if TYPE_CHECKING:
    from anabranch.tables.upkeep.service import TableUpkeep


def make_upkeep(
    basis: Basis,
    opened: OpenStorage,
    serving: Serving,
    traffic: ClientTraffic,
    *,
    failover: Failover,
    drain: Drain,
    orders: MoveOrders,
) -> Upkeep:
    """Build what runs behind the requests. Nothing runs yet."""
    topics = serving.topics
    manifests = _make_manifests(basis, opened)
    collector = _make_collector(basis, opened, manifests)
    storage = opened.storage
    hooks = make_cleaning(topics, storage)
    context = _make_context(basis, opened, hooks)
    compaction = CompactionService(context, under_pressure=lambda: not storage.writable)
    cleaning = CleaningScheduler(
        compaction,
        hooks,
        tails=lambda stream_id: tail_of(storage, stream_id),
        request_upload=storage.request_upload,
        steady_ms=basis.environment.steady_ms,
    )
    return Upkeep(
        failover=failover,
        drain=drain,
        orders=orders,
        meter=(meter := LoadMeter(topics, serving.replicas, traffic, basis.environment.steady_ms)),
        balancer=Balancer(
            serving.move_requests,
            topics,
            serving.members,
            meter,
            ask=partial(relay, serving.links, version=0),
            judged=serving.membership.suspects,
            is_on=partial(serving.broker_configs.is_on, BALANCER),
            zone=lambda: Zone(serving.broker_configs.value(BALANCER_ZONE)),
            steady_ms=basis.environment.steady_ms,
            now_ms=basis.environment.now_ms,
        ),
        manifests=manifests,
        collector=collector,
        compaction_context=context,
        compaction=compaction,
        cleaning=cleaning,
        tables=TablesOnDemand(
            topics, partial(_make_tables, basis, opened, serving), partial(_has_abandoned_tables, basis, opened)
        ),
    )


def _make_tables(basis: Basis, opened: OpenStorage, serving: Serving) -> "TableUpkeep":
    from anabranch.broker.app.tables import make_tables  # a node without tables does without it

    return make_tables(basis, opened, serving)


async def _has_abandoned_tables(basis: Basis, opened: OpenStorage) -> bool:
    """Return whether there are tables that nobody commits, whose old snapshots have to expire."""
    before_ms = basis.cautious.now_ms() - round(LOOK_S * 1000)
    try:
        if not await opened.catalog.tables.list_at_rest(before_ms):
            return False
        from anabranch.tables.upkeep.abandoned import find_abandoned  # a cluster without tables does without it

        return bool(await find_abandoned(opened.catalog, before_ms))
    except StorageError:
        return False


def _make_manifests(basis: Basis, opened: OpenStorage) -> ManifestKeeper:
    settings = basis.settings
    return ManifestKeeper(
        catalog=opened.catalog,
        store=opened.stores[settings.objects.store],
        cluster=settings.node.cluster,
        node=opened.info.identity,
        now_ms=basis.environment.now_ms,
        new_writer_id=basis.new_writer_id,
        owner_marks=opened.storage.owner_marks,
    )


def _make_collector(basis: Basis, opened: OpenStorage, manifests: ManifestKeeper) -> GarbageCollector:
    settings = basis.settings
    return GarbageCollector(
        catalog=opened.catalog,
        stores=opened.stores,
        cluster=settings.node.cluster,
        now_ms=basis.cautious.now_ms,
        settings=gc_settings(settings),
        check_catalog=partial(
            check_marks, opened.catalog, opened.stores[settings.objects.store], settings.node.cluster
        ),
        before_deleting=manifests.ensure_current,
        pace=opened.storage.background,
    )


def _make_context(basis: Basis, opened: OpenStorage, hooks: CleaningHooks) -> CompactionContext:
    settings, storage = basis.settings, opened.storage
    return CompactionContext(
        catalog=opened.catalog,
        stores=opened.stores,
        settings=compaction_settings(settings, basis.memory.sizes),
        cluster=settings.node.cluster,
        identity=opened.info.identity,
        now_ms=basis.cautious.now_ms,
        new_writer_id=basis.new_writer_id,
        cleaning=hooks,
        placement=storage.store_of,
        on_replaced=storage.invalidate,
        on_damaged=storage.damaged.note,
        pace=storage.background,
        tracing=basis.tracer or NO_TRACING,
    )
