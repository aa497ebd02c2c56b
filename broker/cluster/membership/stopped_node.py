"""Compaction of a stopped node's storage, in the node's place.

The data directory is locked, and the node's id is registered again, so that a process that still runs as this node is
fenced.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from anabranch.broker.cluster.membership.join import announced_listeners, claimant_of, register
from anabranch.broker.cluster.membership.lease import wait_until_free
from anabranch.broker.cluster.membership.store_checks import check_stores_hold_objects
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.configs.topic import parse_topic_config
from anabranch.broker.kafka.partitions.cleaning import KafkaBatches, clean_policies, history_of
from anabranch.broker.node.settings.data_dir import DataDirLock
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import compaction_settings
from anabranch.broker.node.settings.stores import make_stores
from anabranch.compaction.context import CompactionContext, ReportProgress
from anabranch.compaction.interface import CleaningHooks
from anabranch.compaction.service import CompactionService
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.maintain.claim import check_claim
from anabranch.s3stream.maintain.manifest_store import check_catalog_is_newest
from anabranch.s3stream.model import NodeIdentity

UNREGISTERED = -1
"""Node epoch of a compaction that only plans."""


class StoppedNode:
    """A stopped node whose storage is open: `plan` or `compact`, once."""

    def __init__(self, node: CompactionContext, now_ms: Callable[[], int]) -> None:
        self._node = node
        self._service = CompactionService(node)
        self._now_ms = now_ms

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Settings, rng: random.Random, now_ms: Callable[[], int], *, plan_only: bool
    ) -> "AsyncIterator[StoppedNode]":
        """Lock and open a node's storage; with `plan_only` nothing is changed, else the node's id is registered.

        Raises DataDirError, StorageError; NodeInUse when the node runs, here or elsewhere.
        """
        cluster, node_id = settings.node.cluster, settings.node.node_id
        async with AsyncExitStack() as stack:
            lock = DataDirLock(settings.node.data_dir)
            stack.callback(lock.release)
            catalog = Catalog(settings.catalog_url, read_only=plan_only)
            stack.push_async_callback(catalog.close)
            if await catalog.is_blank():
                raise CatalogError(f"there is nothing in the catalog {catalog.where}: check catalog.url")
            await catalog.open(cluster=cluster)
            stores = make_stores(settings, rng, read_only=plan_only)
            for store in stores.values():
                stack.push_async_callback(store.close)
                await store.open()
                await check_claim(store, cluster, catalog.identity())
            await check_catalog_is_newest(catalog, stores[settings.objects.store], cluster)
            await check_stores_hold_objects(catalog, stores, cluster)
            configs = ClusterConfigs(catalog)
            await configs.load()
            defaults = BrokerConfigs(configs, settings, node_id)
            topics = [(topic, parse_topic_config(topic.configs, defaults)) for topic in await catalog.list_topics()]
            policies = clean_policies(topics)
            store_of = {partition.stream_id: config.store for topic, config in topics for partition in topic.partitions}
            epoch = UNREGISTERED
            if not plan_only:
                epoch = await _take_id(settings, catalog, lock.lock_id, now_ms)
            node = CompactionContext(
                catalog=catalog,
                stores=stores,
                settings=compaction_settings(settings),
                cluster=cluster,
                identity=NodeIdentity(node_id, epoch),
                now_ms=now_ms,
                new_writer_id=lambda: f"{rng.getrandbits(128):032x}",
                cleaning=CleaningHooks(KafkaBatches(), lambda: policies, history_of),
                placement=store_of.get,
            )
            yield cls(node, now_ms)

    async def plan(self) -> dict[str, Any]:
        """Return what a run would do, as plain values."""
        return (await self._service.plan()).as_json(self._node)

    async def compact(self, on_progress: ReportProgress) -> dict[str, Any]:
        """Compact everything; return the summary, as plain values. The node is registered as stopped again."""
        summary = (await self._service.run_once(on_progress)).as_json()
        node = self._node
        await node.catalog.stop_node(node.identity, drained_wal=None, now_ms=self._now_ms())
        return summary


async def _take_id(settings: Settings, catalog: Catalog, lock_id: str, now_ms: Callable[[], int]) -> int:
    """Register this process as the stopped node, without a lease; return the new epoch. Raises NodeInUse."""
    node_id = settings.node.node_id
    listeners = announced_listeners(settings, [each.port for each in settings.listeners])
    claimant = claimant_of(settings, lock_id)
    seen = await wait_until_free(catalog, node_id, claimant)
    info = await register(catalog, node_id, claimant, seen, listeners=listeners, lease_ms=0, now_ms=now_ms())
    return info.epoch
