"""Rebuilds the catalog of a stopped node from its object store, its newest manifest and its log.

`s3stream.maintain.rebuild` handles objects and streams; this module adds the node's settings, its log and Kafka's
batches. Everything is read before anything is written. Then one transaction fills an empty catalog.

A restore is a rebuild that begins with a backup. Which objects count follows from the newest manifest, as in any
rebuild, so that a backup of any age is complete afterwards. Of each stream only what was committed after the backup is
read: the backup has the state of its owner as of then. Without a newer manifest the backup stands for it.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from anabranch.broker.cluster.membership.log_identity import may_hold_records
from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.cluster.membership.object_log import ObjectStartLog
from anabranch.broker.kafka.partitions.replay import PartitionReplay
from anabranch.broker.kafka.partitions.snapshot import decode_snapshot
from anabranch.broker.node.settings.data_dir import DataDirLock
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import make_stores
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.append.wal_record import decode_record
from anabranch.s3stream.catalog.backup import Backup, BackupStream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.restore import CatalogContents
from anabranch.s3stream.catalog.schema import MIGRATIONS
from anabranch.s3stream.catalog.values import Takeover, WalInfo, WalState
from anabranch.s3stream.errors import CatalogError, CorruptObject, ObjectDamage, StorageError
from anabranch.s3stream.maintain.claim import check_claim
from anabranch.s3stream.maintain.last_owners import is_of_earlier_life, with_last_owners
from anabranch.s3stream.maintain.manifest import Manifest, parse_manifest_key
from anabranch.s3stream.maintain.manifest_store import manifest_keys, read_manifest
from anabranch.s3stream.maintain.rebuild import LocalLog, StoreNumbers, assemble
from anabranch.s3stream.maintain.rebuild_plan import EPOCHS_SKIPPED, RebuildPlan, StreamChain, plan_rebuild
from anabranch.s3stream.maintain.rebuild_read import ReadReport, RebuildReader
from anabranch.s3stream.maintain.rebuild_scan import StoreContents, scan_stores
from anabranch.s3stream.model import NodeIdentity, StreamBatch
from anabranch.s3stream.object.marks import MarkPlace
from anabranch.s3stream.object.owner_marks import read_owner_marks
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.format import CATALOG_UNKNOWN, wal_id_of
from anabranch.wal.object.format import LogName
from anabranch.wal.object.stopped import find_stopped

BACKUP: Final = "the backup"
"""Source of a state that comes from no manifest."""


@dataclass(frozen=True, slots=True)
class ClockAndIds:
    """Sources of time, topic ids and random numbers (for the delays of retries)."""

    now_ms: Callable[[], int]
    new_topic_id: Callable[[], bytes]
    rng: random.Random


class KafkaReplay:
    """State of a partition, recovered from its batches."""

    def __init__(self, stream_id: int, unused_since_ms: int, known: BackupStream | None = None) -> None:
        self._stream_id = stream_id
        if known is None:
            self._state = PartitionReplay(stream_id)
        else:
            self._state = PartitionReplay(stream_id, known.snapshot, known.end_offset)
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


def is_continued(known: BackupStream, chain: StreamChain) -> bool:
    """Return whether the records of a stream continue the state that the backup has of it.

    They do not if records between the two are gone, which may have ended transactions and moved sequence numbers. Nor
    if a transaction was open: log compaction removes the end of one whose records it has removed. Raises CorruptObject.
    """
    if not chain.start_offset <= known.end_offset <= chain.end_offset:
        return False
    return not decode_snapshot(chain.stream_id, known.snapshot).transactions.open


def _knows_more(one: Manifest, other: Manifest) -> bool:
    """Return whether a manifest has a later end of a stream than a newer one, and is of the same life of the catalog.

    A rebuild, or continuing with an older copy, begins a new life, which invalidates earlier manifests.
    """
    if one.state.catalog_id != other.state.catalog_id:
        return False
    if is_of_earlier_life(one.state.nodes, other.state):
        return False
    ends = {stream.stream_id: stream.end_offset for stream in other.state.streams}
    return any(stream.end_offset > ends.get(stream.stream_id, stream.end_offset) for stream in one.state.streams)


def _after(keys: Sequence[str], key: str) -> Sequence[str]:
    """Return the manifests that are older than one of them, newest first."""
    return keys[keys.index(key) + 1 :] if key in keys else ()


class CatalogRebuild:
    """A rebuild of one node's catalog: `make_plan`, then `execute`."""

    def __init__(
        self,
        settings: Settings,
        stores: Mapping[str, ObjectStore],
        node_log: NodeLog | None,
        entropy: ClockAndIds,
        backup: Backup | None,
    ) -> None:
        self.settings = settings
        self._stores = stores
        self._node_log = node_log
        """None: the log is in objects."""
        self._entropy = entropy
        self.backup = backup
        self.source: str
        """Source of `manifest`: the key of a manifest, or `BACKUP`."""
        self.manifest: Manifest
        self.manifest_errors: list[str] = []
        """Reasons why newer manifests than the one used could not be read."""
        self.log: LocalLog | None = None
        """The node's log, if it exists at its path in the settings."""
        self.stored: StoreContents
        self.plan: RebuildPlan
        self.live_logs: Sequence[WalInfo] = ()
        """Logs that may hold records, after `execute`."""
        self._newest_sequence = 0
        """Sequence number of the newest manifest in the store, which may differ from the one used."""

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Settings, entropy: ClockAndIds, backup: Backup | None = None
    ) -> "AsyncIterator[CatalogRebuild]":
        """Open stores and log for reading. The node must not run. Raises DataDirError, StorageError, WalError."""
        if backup is not None and backup.header.cluster != settings.node.cluster:
            raise StorageError(
                f"backup {backup.path} is of cluster {backup.header.cluster!r}, not of {settings.node.cluster!r} "
                "(node.cluster)"
            )
        async with AsyncExitStack() as stack:
            stack.callback(DataDirLock(settings.node.data_dir).release_unused)
            stores = make_stores(settings, entropy.rng, read_only=True)
            for store in stores.values():
                stack.push_async_callback(store.close)
                await store.open()
            node_log = None
            if settings.wal.kind == NodeLog.kind:
                node_log = await stack.enter_async_context(NodeLog.opened(settings, any_content=True))
            yield cls(settings, stores, node_log, entropy, backup)

    async def check_blank(self) -> None:
        """Raise CatalogError unless the catalog is empty."""
        catalog = Catalog(self.settings.catalog_url)
        try:
            if not await catalog.is_blank():
                raise CatalogError(
                    f"catalog {catalog.where}: it is not empty, and only an empty one is filled: move the old one away "
                    "first, an SQLite file together with its -wal and -shm files"
                )
        finally:
            await catalog.close()

    async def make_plan(self, manifest_key: str | None, on_progress: Callable[[int, int], None]) -> RebuildPlan:
        """Read manifest, log and indexes, and return the plan. `on_progress` receives objects done and in total.

        Raises StorageError, WalError.
        """
        for manifest, source in await self._find_states(manifest_key):
            if any(manifest.state.catalog_id):
                for store in self._stores.values():
                    await check_claim(store, manifest.cluster, manifest.state.catalog_id)
            self.manifest, self.source = await self._with_last_owners(manifest), source
            self.log = await self._find_log()
            self.stored = await scan_stores(self._stores, self.manifest, on_progress=on_progress)
            self.plan = plan_rebuild(
                self.manifest.state,
                self.stored.objects.values(),
                self.stored.unreadable,
                streams_in_log=() if self.log is None else self.log.stream_ids,
            )
            if not self.plan.has_loss:
                break
        return self.plan

    async def _find_states(self, manifest_key: str | None) -> Sequence[tuple[Manifest, str]]:
        """Return the states to try, and where each comes from: a manifest, or first the backup if it is not older.

        Clocks may differ, and a number is given out before its manifest is written. So a backup that seems newer than
        the newest manifest may be the older one: objects that it lists may be missing then, and none of the manifest's.
        """
        cluster = self.settings.node.cluster
        store = self._stores[self.settings.objects.store]
        keys = await manifest_keys(store, cluster)
        parsed = parse_manifest_key(keys[0]) if keys else None
        self._newest_sequence = 0 if parsed is None else parsed.sequence
        backed_up = self._backed_up()
        if backed_up is None:
            key = manifest_key or next(iter(keys), None)
            if key is None:
                raise StorageError(
                    f"the object store {store.name!r} has no manifest of cluster {cluster!r}: without one, the topics "
                    "of the objects are unknown"
                )
            try:
                newest = self._checked(await read_manifest(store, key), key), key
            except ObjectDamage as error:
                older = "".join(f"; --manifest {each} uses an older one" for each in _after(keys, key)[:1])
                raise StorageError(f"{error}{older}") from None
            later = None if manifest_key is not None else await self._later_than(newest[0], store, _after(keys, key))
            # If something is lost by both, the newest counts.
            return [newest] if later is None else [newest, later, newest]
        self._newest_sequence = max(self._newest_sequence, backed_up.sequence)
        found = await self._newest_readable(store, keys)
        if found is None:
            return [(backed_up, BACKUP)]
        manifest, key = found
        if manifest.state.catalog_id != backed_up.state.catalog_id:
            raise StorageError(
                f"the backup is of catalog {backed_up.state.catalog_id.hex()}, and the object store {store.name!r} "
                f"belongs to catalog {manifest.state.catalog_id.hex()} (manifest {key}): they do not belong together"
            )
        if (manifest.sequence, manifest.written_ms) >= (backed_up.sequence, backed_up.written_ms):
            return [(manifest, key)]
        return [(backed_up, BACKUP), (manifest, key)]

    async def _later_than(
        self, newest: Manifest, store: ObjectStore, older_keys: Sequence[str]
    ) -> tuple[Manifest, str] | None:
        """Return the manifest with later ends of streams than the newest one, and its key; None if there is none.

        In that case the catalog had gone back when the newest one was written. The newest is still the one to begin
        with: all uploads are found without a manifest, and nodes that had not noticed may have continued. It is not
        enough if compaction has replaced objects that the catalog had lost.
        """
        best: tuple[Manifest, str] | None = None
        for key in older_keys:
            try:
                found = await read_manifest(store, key)
            except ObjectDamage:
                continue
            if _knows_more(found, newest if best is None else best[0]):
                best = found, key
        return best

    async def _with_last_owners(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the last owners of its streams that other manifests and marks name.

        Raises StoreError, and StorageError for a damaged mark.
        """
        store, state = self._stores[self.settings.objects.store], manifest.state
        place = MarkPlace(store, manifest.cluster, state.catalog_id)
        try:
            marks = await read_owner_marks(place)
        except CorruptObject as error:
            raise StorageError(
                f"{error}. It names the nodes whose logs have the newest records of partitions. To go on without it, "
                "which may lose them, delete it"
            ) from None
        # Afterwards: a mark that is not there any more is in a manifest. One at a time: they may be large, and many.
        for key in await manifest_keys(store, manifest.cluster):
            with suppress(ObjectDamage):
                other = (await read_manifest(store, key)).state
                if other.catalog_id == state.catalog_id:
                    state = with_last_owners(state, [other], [])
        return replace(manifest, state=with_last_owners(state, [], marks))

    async def _newest_readable(self, store: ObjectStore, keys: Sequence[str]) -> tuple[Manifest, str] | None:
        """Return the newest manifest that can be read, with its key; None if there is none."""
        for key in keys:
            try:
                return self._checked(await read_manifest(store, key), key), key
            except ObjectDamage as error:
                self.manifest_errors.append(str(error))
        return None

    def _backed_up(self) -> Manifest | None:
        """Return the state in the backup, as a manifest."""
        if self.backup is None:
            return None
        header, node_id = self.backup.header, self.settings.node.node_id
        epoch = self.backup.state.nodes.get(node_id, 0)
        return Manifest(
            header.manifest, header.cluster, NodeIdentity(node_id, epoch), header.written_ms, self.backup.state
        )

    def _checked(self, manifest: Manifest, key: str) -> Manifest:
        cluster = self.settings.node.cluster
        if manifest.cluster != cluster:
            raise StorageError(f"manifest {key} is of cluster {manifest.cluster!r}, not of {cluster!r}")
        if manifest.state.schema_version > MIGRATIONS[-1][0]:
            raise StorageError(
                f"manifest {key} is of a catalog of schema version {manifest.state.schema_version}, newer than "
                f"this program's {MIGRATIONS[-1][0]}: use the version of the node"
            )
        return manifest

    async def _find_log(self) -> LocalLog | None:
        if self._node_log is None:
            return await self._find_object_log()
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

    async def _find_object_log(self) -> LocalLog | None:
        settings = self.settings
        if settings.wal_store not in self._stores:
            raise StorageError(
                f"wal.store: no object store {settings.wal_store!r}, expected one of {', '.join(self._stores)}"
            )
        store = ObjectLogStore(self._stores[settings.wal_store], "")  # for reading only
        name = LogName(settings.node.cluster, settings.node.node_id, self.manifest.state.catalog_id)
        found = await find_stopped(store, name)
        if found is None:
            return None
        wal = WalInfo(
            name.wal_id(store.name),
            name.node_id,
            found.newest.position.epoch,
            f"{store.name}:{name.prefix}",
            WalState.DRAINED if found.is_empty else WalState.OPEN,
            self._entropy.now_ms(),
            Takeover.SHARED,
            kind=ObjectStartLog.kind,
        )
        streams = {decode_record(record.offset, record.body).batch.stream_id async for record in found.records()}
        return LocalLog(wal, frozenset(streams))

    def _known_streams(self) -> Mapping[int, BackupStream]:
        """Return the streams whose state in the backup is a state that they have had."""
        if self.backup is None:
            return {}
        epochs = {info.stream_id: info.epoch for info in self.manifest.state.streams}
        return {
            stream_id: known
            for stream_id, known in self.backup.streams.items()
            if (chain := self.plan.chains.get(stream_id)) is not None
            and is_continued(known, chain)
            # After a rebuild, or after `anabranch catalog advance`, other records may have the offsets.
            and epochs.get(stream_id, known.epoch) < known.epoch + EPOCHS_SKIPPED
        }

    async def execute(
        self, *, accept_loss: bool, keep_ms: int, on_progress: Callable[[ReadReport], None]
    ) -> RebuildReader:
        """Read all records and fill the catalog. Raises StorageError; the catalog is still empty then."""
        settings, now_ms = self.settings, self._entropy.now_ms()
        unused_since_ms = now_ms - settings.topic.producer_id_expiration_ms
        known = self._known_streams()
        reader = RebuildReader(
            stores=self._stores,
            cluster=self.manifest.cluster,
            objects=self.stored.objects,
            new_replay=lambda stream_id: KafkaReplay(stream_id, unused_since_ms, known.get(stream_id)),
            replayed={stream_id: stream.end_offset for stream_id, stream in known.items()},
            accept_loss=accept_loss,
            on_progress=on_progress,
        )
        await self.check_blank()
        await reader.read(self.plan.chains.values())
        store, state = self._stores[settings.objects.store], self.manifest.state
        marks = MarkPlace(store, self.manifest.cluster, state.catalog_id)
        catalog = Catalog(settings.catalog_url)
        try:
            filling = assemble(
                self.manifest,
                self.plan,
                self.stored,
                reader,
                node_id=settings.node.node_id,
                log=self.log,
                newest=StoreNumbers(self._newest_sequence, await marks.read()),
                new_topic_id=self._entropy.new_topic_id,
                now_ms=now_ms,
                keep_ms=keep_ms,
            )
            await catalog.open(cluster=self.manifest.cluster, new_id=state.catalog_id)
            await catalog.restore(self._with_preferred(filling))
            self.live_logs = [wal for wal in filling.wals if wal.is_live]
        finally:
            await catalog.close()
        return reader

    def _with_preferred(self, contents: CatalogContents) -> CatalogContents:
        """Add preferred leaders and replicas, which no manifest has."""
        if self.backup is None:
            return contents
        known = self.backup.streams
        return replace(
            contents,
            streams=[
                each._replace(preferred=known[each.stream_id].preferred, replicas=known[each.stream_id].replicas)
                if each.stream_id in known
                else each
                for each in contents.streams
            ],
        )
