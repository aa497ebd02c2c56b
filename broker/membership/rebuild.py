"""Rebuilds the catalog of a stopped node from its object store, its newest manifest and its log.

`s3stream.maintain.rebuild` handles objects and streams; this module adds the node's settings, its log and Kafka's
batches. Everything is read before anything is written. Then one transaction fills an empty catalog.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from broker.membership.log_identity import may_hold_records
from broker.membership.node_log import NodeLog
from broker.partitions.replay import PartitionReplay
from broker.settings.data_dir import DataDirLock
from broker.settings.model import Settings
from broker.settings.stores import make_stores
from protocol.errors import KafkaError
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.schema import MIGRATIONS
from s3stream.catalog.values import WalInfo, WalState
from s3stream.errors import CatalogError, CorruptObject, StorageError
from s3stream.maintain.manifest import Manifest, parse_manifest_key
from s3stream.maintain.manifest_store import newest_manifest_key, read_manifest
from s3stream.maintain.rebuild import LocalLog, assemble
from s3stream.maintain.rebuild_plan import RebuildPlan, plan_rebuild
from s3stream.maintain.rebuild_read import ReadReport, RebuildReader
from s3stream.maintain.rebuild_scan import StoreContents, scan_stores
from s3stream.model import StreamBatch
from s3stream.store.interface import ObjectStore
from wal.format import CATALOG_UNKNOWN, wal_id_of


@dataclass(frozen=True, slots=True)
class ClockAndIds:
    """Sources of time, topic ids and random numbers (for the delays of retries)."""

    now_ms: Callable[[], int]
    new_topic_id: Callable[[], bytes]
    rng: random.Random


class KafkaReplay:
    """State of a partition, recovered from its batches."""

    def __init__(self, stream_id: int, unused_since_ms: int) -> None:
        self._stream_id = stream_id
        self._state = PartitionReplay(stream_id)
        self._unused_since_ms = unused_since_ms

    @property
    def leader_epoch(self) -> int:
        """Newest leader epoch so far, or -1."""
        return self._state.leader_epoch

    @property
    def producer_id(self) -> int:
        """Largest producer id so far, or -1."""
        return self._state.producer_id

    def add(self, batch: StreamBatch) -> None:
        """Add the next batch. Raises CorruptObject."""
        try:
            self._state.add(batch)
        except KafkaError as error:
            raise CorruptObject(
                f"stream {self._stream_id} at offset {batch.base_offset}: invalid record batch: {error}"
            ) from None

    def encode(self, start_offset: int) -> bytes:
        """Encode the snapshot of the partition after the last batch."""
        return self._state.encode(start_offset, unused_since_ms=self._unused_since_ms)


class CatalogRebuild:
    """A rebuild of one node's catalog: `make_plan`, then `execute`."""

    def __init__(
        self, settings: Settings, stores: Mapping[str, ObjectStore], node_log: NodeLog, entropy: ClockAndIds
    ) -> None:
        self.settings = settings
        self._stores = stores
        self._node_log = node_log
        self._entropy = entropy
        self.manifest_key: str
        self.manifest: Manifest
        self.log: LocalLog | None = None
        """The node's log, if it exists at its path in the settings."""
        self.stored: StoreContents
        self.plan: RebuildPlan
        self._newest_sequence = 0
        """Sequence number of the newest manifest in the store, which may differ from the one used."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: Settings, entropy: ClockAndIds) -> "AsyncIterator[CatalogRebuild]":
        """Open stores and log for reading. The node must not run. Raises DataDirError, StorageError, WalError."""
        async with AsyncExitStack() as stack:
            stack.callback(DataDirLock(settings.node.data_dir).release)
            stores = make_stores(settings, entropy.rng, read_only=True)
            for store in stores.values():
                stack.push_async_callback(store.close)
                await store.open()
            if settings.wal.kind != "device":
                raise StorageError("a rebuild reads logs on devices only so far: the log of this node is in objects")
            node_log = await stack.enter_async_context(NodeLog.opened(settings, any_content=True))
            yield cls(settings, stores, node_log, entropy)

    async def make_plan(self, manifest_key: str | None, on_progress: Callable[[int, int], None]) -> RebuildPlan:
        """Read manifest, log and indexes, and return the plan. `on_progress` receives objects done and in total.

        Raises StorageError, WalError.
        """
        cluster = self.settings.node.cluster
        store = self._stores[self.settings.objects.store]
        newest = await newest_manifest_key(store, cluster)
        if newest is None:
            raise StorageError(
                f"the object store {store.name!r} has no manifest of cluster {cluster!r}: without one, the topics "
                "of the objects are unknown"
            )
        key = self.manifest_key = manifest_key or newest
        self.manifest = await read_manifest(store, key)
        parsed = parse_manifest_key(newest)
        assert parsed is not None, "only keys of manifests are listed"
        self._newest_sequence = parsed.sequence
        if self.manifest.cluster != cluster:
            raise StorageError(f"manifest {key} is of cluster {self.manifest.cluster!r}, not of {cluster!r}")
        if self.manifest.state.schema_version > MIGRATIONS[-1][0]:
            raise StorageError(
                f"manifest {key} is of a catalog of schema version {self.manifest.state.schema_version}, newer than "
                f"this program's {MIGRATIONS[-1][0]}: use the version of the node"
            )
        self.log = await self._find_log()
        self.stored = await scan_stores(self._stores, self.manifest, on_progress=on_progress)
        self.plan = plan_rebuild(
            self.manifest.state,
            self.stored.objects.values(),
            self.stored.unreadable,
            streams_in_log=() if self.log is None else self.log.stream_ids,
        )
        return self.plan

    async def _find_log(self) -> LocalLog | None:
        header, path = self._node_log.header, self._node_log.path
        if header is None:
            return None
        node = self.settings.node
        if (header.cluster, header.node_id) != (node.cluster, node.node_id):
            raise StorageError(
                f"{path} holds the log of node {header.node_id} of cluster {header.cluster!r}, not of node "
                f"{node.node_id} of {node.cluster!r}: set wal.path to this node's log"
            )
        if header.catalog_id not in {CATALOG_UNKNOWN, self.manifest.state.catalog_id}:
            raise StorageError(
                f"{path} holds a log of catalog {header.catalog_id.hex()}, and the manifest is of catalog "
                f"{self.manifest.state.catalog_id.hex()}: they do not belong together"
            )
        state = WalState.OPEN if may_hold_records(header) else WalState.DRAINED
        wal = WalInfo(
            wal_id_of(header.log_id), header.node_id, header.node_epoch, str(path), state, header.last_write_ms
        )
        return LocalLog(wal, await self._node_log.stream_ids())

    async def execute(
        self, *, accept_loss: bool, keep_ms: int, on_progress: Callable[[ReadReport], None]
    ) -> RebuildReader:
        """Read all records and fill the catalog. Raises StorageError; the catalog is still empty then."""
        settings, now_ms = self.settings, self._entropy.now_ms()
        unused_since_ms = now_ms - settings.topic.producer_id_expiration_ms
        reader = RebuildReader(
            stores=self._stores,
            cluster=self.manifest.cluster,
            objects=self.stored.objects,
            new_replay=lambda stream_id: KafkaReplay(stream_id, unused_since_ms),
            accept_loss=accept_loss,
            on_progress=on_progress,
        )
        catalog = Catalog(settings.catalog_url)
        try:
            if not await catalog.is_blank():
                raise CatalogError(
                    f"catalog {catalog.where}: it is not empty. A rebuild fills an empty one: move the old one away "
                    "first, an SQLite file together with its -wal and -shm files"
                )
            await reader.read(self.plan.chains.values())
            filling = assemble(
                self.manifest,
                self.plan,
                self.stored,
                reader,
                node_id=settings.node.node_id,
                log=self.log,
                newest_sequence=self._newest_sequence,
                new_topic_id=self._entropy.new_topic_id,
                now_ms=now_ms,
                keep_ms=keep_ms,
            )
            await catalog.open(cluster=self.manifest.cluster, new_id=self.manifest.state.catalog_id)
            await catalog.restore(filling)
        finally:
            await catalog.close()
        return reader
