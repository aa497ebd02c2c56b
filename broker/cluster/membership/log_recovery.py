"""Recovers the log of a dead node in its place: uploads the records that are in no object, and releases its streams.

The recoverer opens the log as the dead node, in the epoch that the takeover gave it: exactly what a restart of that
node would do, so the same code scans the log, replays the partitions' states, and commits objects with snapshots.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from anabranch.broker.cluster.membership.environment import LogFiles
from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.broker.cluster.membership.object_log import ObjectStartLog
from anabranch.broker.kafka.configs.topic import TopicDefaults, parse_topic_config
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.kafka.partitions.replay import PartitionReplay, replay_recovered
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import object_wal_settings, wal_settings
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, PartitionInfo, Takeover, TopicInfo, WalInfo
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.maintain.manifest_store import check_marks
from anabranch.s3stream.model import NodeIdentity
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tasks import Turns
from anabranch.wal.format import wal_id_of
from anabranch.wal.interface import NodeWal, WalError, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.object.format import LogName
from anabranch.wal.object.log import ObjectWal
from anabranch.wal.owner import read_header
from anabranch.wal.requests import Device
from anabranch.wal.settings import WalSettings

_log = structlog.get_logger("node")


def takeover_of(settings: Settings, wal: NodeWal) -> Takeover:
    """Return which nodes may recover this node's log, open in `wal`, when this node is dead."""
    wanted = settings.wal.takeover
    if not isinstance(wal, DeltaWal):  # objects have no machine
        return Takeover.NONE if wanted == "none" else Takeover.SHARED
    if wanted != "auto":
        return Takeover(wanted)
    return Takeover.SHARED if wal.device.shared and wal.is_strict else Takeover.MACHINE


@dataclass(frozen=True, slots=True)
class DeadLog:
    """The log of a dead node: found, and not claimed yet."""

    open_wal: Callable[[int], NodeWal]
    """Return the log for the dead node in a new epoch. It is not recovered. Its `close` does what `close` does."""
    close: Callable[[], Awaitable[None]]
    """Leave it as it was found."""


async def open_device_of(files: LogFiles, wal: WalInfo, dead: NodeInfo, settings: Settings, host_name: str) -> Device:
    """Open the device of a dead node's log. Raises WalError if it cannot be opened here, or not yet.

    With `Takeover.MACHINE` it is locked, which proves that the process that wrote it has ended.
    """
    path = Path(wal.location)
    # After a rebuild of the catalog no machine is known. The log itself and its lock show whether this is the one.
    if wal.takeover is Takeover.MACHINE and dead.holder.host_name not in ("", host_name):
        raise WalRefused(f"{path}: the log is on {dead.holder.host_name}, this is {host_name}")
    exclusive = wal.takeover is Takeover.MACHINE
    if not await asyncio.to_thread(files.exists, path):
        raise WalRefused(f"{path}: there is no such file or device")
    device = await asyncio.to_thread(files.open, path, _settings_of(wal, settings), create=False, exclusive=exclusive)
    try:
        header = await read_header(device)
        if header is None or wal_id_of(header.log_id) != wal.wal_id or header.node_epoch < wal.node_epoch:
            raise WalRefused(f"{path}: not the log {wal.wal_id} of node {dead.node_id}, or an older copy of it")
    except WalError:
        await device.close()
        raise
    return device


def _settings_of(wal: WalInfo, settings: Settings) -> WalSettings:
    fencing = "strict" if wal.takeover is Takeover.SHARED else settings.wal.fencing
    return replace(wal_settings(settings), format=False, fencing=fencing)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecovery:
    """Recovers logs with the catalog, the stores and the settings of this node."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    settings: Settings
    storage_settings: StorageSettings
    files: LogFiles
    host_name: str
    work: RecordWork
    defaults: TopicDefaults
    now_ms: Callable[[], int]
    new_writer_id: Callable[[], str]

    async def check_catalog(self) -> None:
        """Raise CatalogWentBack if the catalog lacks uploads: its ends of streams are wrong then."""
        await check_marks(self.catalog, self.stores[self.settings.objects.store], self.settings.node.cluster)

    async def open(self, wal: WalInfo, dead: NodeInfo) -> DeadLog:
        """Find the log of a dead node. Raises WalError if it cannot be opened here, or not yet."""
        if wal.takeover is Takeover.NONE:
            raise WalRefused(f"{wal.location}: only node {dead.node_id} may open its log (wal.takeover)")
        if wal.kind == ObjectStartLog.kind:
            return self._open_objects(wal, dead)
        device = await open_device_of(self.files, wal, dead, self.settings, self.host_name)

        def open_wal(node_epoch: int) -> NodeWal:
            return DeltaWal(
                device,
                _settings_of(wal, self.settings),
                node_id=dead.node_id,
                node_epoch=node_epoch,
                now_ms=self.now_ms,
                cluster=self.settings.node.cluster,
                catalog_id=self.catalog.identity(),
            )

        return DeadLog(open_wal, device.close)

    def _open_objects(self, wal: WalInfo, dead: NodeInfo) -> DeadLog:
        store_name, _, prefix = wal.location.partition(":")
        name = LogName(self.settings.node.cluster, dead.node_id, self.catalog.identity())
        if store_name not in self.stores:
            raise WalRefused(f"{wal.location}: no object store {store_name!r} is configured here")
        if (prefix, wal.wal_id) != (name.prefix, name.wal_id(store_name)):
            raise WalRefused(f"{wal.location}: not the log {wal.wal_id} of node {dead.node_id}")
        store = ObjectLogStore(self.stores[store_name], self.new_writer_id())

        def open_wal(node_epoch: int) -> NodeWal:
            return ObjectWal(store, name, object_wal_settings(self.settings), node_epoch=node_epoch)

        async def close() -> None:
            """Nothing was opened."""

        return DeadLog(open_wal, close)

    async def run(self, wal: WalInfo, node: NodeIdentity, dead_log: DeadLog) -> None:
        """Claim the log as the dead node in its new epoch, upload its records, and release the node's streams.

        The log is closed afterwards.

        Raises StorageError or WalError; released streams stay released, and the recovery may be repeated.
        """
        began = time.perf_counter()
        log = dead_log.open_wal(node.epoch)
        storage = S3Stream(
            wal=log,
            catalog=self.catalog,
            stores=self.stores,
            default_store=self.settings.objects.store,
            settings=self.storage_settings,
            cluster=self.settings.node.cluster,
            node=node,
            now_ms=self.now_ms,
            new_writer_id=self.new_writer_id,
        )
        try:
            async with storage:
                await storage.recover()
                left = {*storage.recovered_streams, *storage.stopped_streams}
                if left:
                    await self._release(wal, node, left)
                await self._replay(storage)
                await storage.flush()
                await self._release(wal, node, set(storage.stopped_streams))
                if storage.stopped_streams:
                    await self.catalog.return_streams(node)
        finally:
            await log.close()
        _log.info(
            "the log of a dead node is recovered",
            dead_node_id=node.node_id,
            wal=wal.location,
            records=storage.stats.recovered_records,
            bytes=storage.stats.recovered_bytes,
            streams=len(left),
            seconds=round(time.perf_counter() - began, 3),
        )
        for stream_id, stopped in storage.stopped_streams.items():
            _log.error(
                "a partition waits for the return of its dead node", stream_id=stream_id, reason=str(stopped.error)
            )

    async def _release(self, wal: WalInfo, node: NodeIdentity, kept: set[int]) -> None:
        await self.catalog.release_recovered(node, wal.wal_id, kept=kept, now_ms=self.now_ms())

    async def _replay(self, storage: S3Stream) -> None:
        """Build the state of each partition that has records in the log: a commit needs its snapshot."""
        topics = {
            each.stream_id: (topic, each) for topic in await self.catalog.list_topics() for each in topic.partitions
        }
        turns = Turns()
        for stream in await storage.open_recovered():
            if (found := topics.get(stream.stream_id)) is not None:
                self._build(stream, *found, await replay_recovered(stream, turns, self.now_ms))

    def _build(self, stream: Stream, topic: TopicInfo, partition: PartitionInfo, state: PartitionReplay) -> None:
        config = parse_topic_config(topic.configs, self.defaults)
        stream.store, stream.uploads_alone = config.store, config.uploads_alone
        Partition(topic.name, topic.topic_id, partition.index, stream, config, self.work, self.now_ms, state)
