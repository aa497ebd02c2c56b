"""The catalog on a SQL database: each method hands the body of one transaction to `Database`."""
# ruff: noqa: D102 - the methods are documented by the protocol `Catalog`, word for word what they do here

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from s3stream.catalog import configs, moves, nodes, objects, rows, state_rows, topics
from s3stream.catalog.database import Database
from s3stream.catalog.fill import Advance, Filling, advance, fill
from s3stream.catalog.interface import (
    UNKNOWN_HOLDER,
    CompactionCommit,
    DetachedTopic,
    NewTopic,
    NodeHolder,
    NodeInfo,
    OpenStream,
    TopicInfo,
    UploadCommit,
    WalInfo,
)
from s3stream.catalog.state import CatalogState
from s3stream.errors import AlreadyExists, CatalogError
from s3stream.model import ObjectInfo, RangeLocation, StreamInfo

Result = TypeVar("Result")


class SqlCatalog:
    """`Catalog` on SQLite (`sqlite:///PATH`, one node) or PostgreSQL (`postgresql://...`, many nodes)."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._database = Database(url, read_only=read_only)
        self._read_only = read_only
        self._identity = nodes.UNKNOWN_ID
        self._watchers: list[Callable[[], None]] = []

    @property
    def where(self) -> str:
        return self._database.where

    async def is_blank(self) -> bool:
        return await self._database.look(nodes.is_blank, absent=True)

    async def open(self, *, cluster: str, new_id: bytes | None = None) -> None:
        await self._database.open()
        if self._read_only:
            self._identity = await self._database.read(lambda c: nodes.check_cluster(c, cluster))
        else:
            self._identity = await self._database.write(lambda c: nodes.adopt_cluster(c, cluster, new_id))

    def identity(self) -> bytes:
        return self._identity

    async def close(self) -> None:
        await self._database.close()

    async def _change(self, command: Callable[[Connection], Result]) -> Result:
        """Write, and tell who watches the shape: also of a failure, behind which a change may stand."""
        try:
            return await self._database.write(command)
        finally:
            for callback in self._watchers:
                callback()

    # nodes

    async def register_node(
        self,
        node_id: int,
        host: str,
        port: int,
        *,
        now_ms: int,
        lease_ms: int,
        holder: NodeHolder = UNKNOWN_HOLDER,
        after_epoch: int | None = None,
    ) -> NodeInfo:
        wanted = NodeInfo(node_id, 0, host, port, now_ms + lease_ms, lease_ms, holder)
        return await self._change(lambda c: nodes.register_node(c, wanted, after_epoch))

    async def renew_lease(self, node_id: int, node_epoch: int, *, now_ms: int, lease_ms: int) -> None:
        await self._database.write(lambda c: nodes.renew_lease(c, node_id, node_epoch, now_ms + lease_ms))

    async def stop_node(self, node_id: int, node_epoch: int, *, drained_wal: str | None, now_ms: int) -> None:
        await self._database.write(lambda c: nodes.stop_node(c, node_id, node_epoch, drained_wal, now_ms))

    async def remove_node(self, node_id: int, *, now_ms: int) -> None:
        await self._database.write(lambda c: nodes.remove_node(c, node_id, now_ms))

    async def list_nodes(self) -> Sequence[NodeInfo]:
        return await self._database.read(nodes.list_nodes)

    async def get_node(self, node_id: int) -> NodeInfo | None:
        return await self._database.read(lambda c: nodes.get_node(c, node_id))

    # logs

    async def list_wals(self, node_id: int) -> Sequence[WalInfo]:
        return await self._database.read(lambda c: nodes.list_wals(c, node_id))

    async def open_wal(self, wal_id: str, *, node_id: int, node_epoch: int, location: str, now_ms: int) -> None:
        await self._change(lambda c: nodes.open_wal(c, wal_id, node_id, node_epoch, location, now_ms))

    async def give_up_wal(self, wal_id: str, *, seen: NodeInfo, now_ms: int) -> None:
        await self._change(lambda c: nodes.give_up_wal(c, wal_id, seen, now_ms))

    async def count_open_streams(self, node_id: int) -> int:
        return await self._database.read(lambda c: nodes.count_open_streams(c, node_id))

    # topics

    async def create_topic(
        self, name: str, topic_id: bytes, *, partitions: int, configs: Mapping[str, str], leader: int, internal: bool
    ) -> TopicInfo:
        (created,) = await self.create_topics([NewTopic(name, topic_id, partitions, configs, internal)], leader=leader)
        if isinstance(created, AlreadyExists):
            raise created
        return created

    async def create_topics(self, wanted: Sequence[NewTopic], *, leader: int) -> Sequence[TopicInfo | AlreadyExists]:
        return await self._change(lambda c: topics.create_topics(c, wanted, leader))

    async def add_partitions(self, topic_id: bytes, total: int, *, leader: int) -> TopicInfo:
        return await self._change(lambda c: topics.add_partitions(c, topic_id, total, leader))

    async def delete_topics(self, topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
        _check_moment(now_ms, delete_after_ms)
        await self._change(lambda c: topics.delete_topics(c, topic_ids, delete_after_ms))

    async def alter_topic(self, topic_id: bytes, *, set_configs: Mapping[str, str], unset: Sequence[str]) -> TopicInfo:
        return await self._change(lambda c: topics.alter_topic(c, topic_id, set_configs, unset))

    async def detach_topic(
        self, name: str, topic_id: bytes, *, ends: Mapping[int, int], node_id: int, node_epoch: int, now_ms: int
    ) -> None:
        await self._change(
            lambda c: moves.detach_topic(
                c, name, topic_id, ends=ends, node_id=node_id, node_epoch=node_epoch, now_ms=now_ms
            )
        )

    async def attach_topic(self, topic_id: bytes, name: str, *, node_id: int, node_epoch: int) -> TopicInfo:
        return await self._change(lambda c: moves.attach_topic(c, topic_id, name, node_id, node_epoch))

    async def clone_topic(
        self,
        name: str,
        new_name: str,
        topic_id: bytes,
        *,
        ends: Mapping[int, int],
        node_id: int,
        node_epoch: int,
    ) -> TopicInfo:
        return await self._change(
            lambda c: moves.clone_topic(c, name, new_name, topic_id, ends=ends, node_id=node_id, node_epoch=node_epoch)
        )

    async def list_detached(self) -> Sequence[DetachedTopic]:
        return await self._database.read(moves.list_detached)

    async def list_topics(self) -> Sequence[TopicInfo]:
        return await self._database.read(topics.list_topics)

    async def list_topic_configs(self) -> Mapping[bytes, Mapping[str, str]]:
        return await self._database.read(topics.list_topic_configs)

    # streams

    async def open_streams(self, stream_ids: Sequence[int], *, node_id: int, node_epoch: int) -> Sequence[OpenStream]:
        return await self._change(lambda c: topics.open_streams(c, stream_ids, node_id, node_epoch))

    async def get_streams(self, stream_ids: Sequence[int]) -> Mapping[int, StreamInfo]:
        return await self._database.read(lambda c: rows.find_streams(c, stream_ids))

    async def list_streams(self, *, after: int, limit: int) -> Sequence[StreamInfo]:
        return await self._database.read(lambda c: topics.list_streams(c, after, limit))

    async def next_stream_id(self) -> int:
        return await self._database.read(nodes.next_stream_id)

    async def trim_stream(
        self, stream_id: int, epoch: int, new_start: int, *, now_ms: int, delete_after_ms: int
    ) -> StreamInfo:
        _check_moment(now_ms, delete_after_ms)
        return await self._database.write(lambda c: topics.trim_stream(c, stream_id, epoch, new_start, delete_after_ms))

    async def find_ranges(
        self, stream_id: int, start_offset: int, end_offset: int, *, limit: int
    ) -> Sequence[RangeLocation]:
        return await self._database.read(lambda c: objects.find_ranges(c, stream_id, start_offset, end_offset, limit))

    async def stream_bytes(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        return await self._database.read(lambda c: objects.stream_bytes(c, stream_ids))

    async def find_time(self, stream_id: int, timestamp_ms: int) -> RangeLocation | None:
        return await self._database.read(lambda c: objects.find_time(c, stream_id, timestamp_ms))

    # objects

    async def prepare_objects(
        self,
        count: int,
        *,
        node_id: int,
        node_epoch: int,
        writer_id: str,
        store: str,
        now_ms: int,
        deadline_ms: int,
    ) -> Sequence[int]:
        _check_moment(now_ms, deadline_ms)
        return await self._database.write(
            lambda c: objects.prepare_objects(
                c,
                count,
                node_id=node_id,
                node_epoch=node_epoch,
                writer_id=writer_id,
                store=store,
                deadline_ms=deadline_ms,
            )
        )

    async def note_multipart(self, object_id: int, upload_id: str) -> None:
        await self._database.write(lambda c: objects.note_multipart(c, object_id, upload_id))

    async def commit_upload(self, commit: UploadCommit) -> None:
        await self._database.write(lambda c: objects.commit_upload(c, commit))

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        _check_moment(commit.now_ms, commit.delete_after_ms)
        await self._database.write(lambda c: objects.commit_compaction(c, commit))

    async def get_objects(self, object_ids: Sequence[int]) -> Mapping[int, ObjectInfo]:
        return await self._database.read(lambda c: rows.find_objects(c, object_ids))

    async def list_objects(self, *, after: int, limit: int) -> Sequence[ObjectInfo]:
        return await self._database.read(lambda c: objects.list_objects(c, after, limit))

    async def list_node_ssos(self, node_id: int, *, limit: int) -> Sequence[ObjectInfo]:
        return await self._database.read(lambda c: objects.list_node_ssos(c, node_id, limit))

    async def list_stream_objects(self, stream_id: int) -> Sequence[RangeLocation]:
        return await self._database.read(lambda c: objects.list_stream_objects(c, stream_id))

    async def list_compactable_streams(self, node_id: int, *, objects_min: int, limit: int) -> Sequence[int]:
        return await self._database.read(lambda c: objects.list_compactable_streams(c, node_id, objects_min, limit))

    async def shared_objects(self) -> frozenset[int]:
        return await self._database.read(objects.shared_objects)

    async def object_ranges(self, object_ids: Sequence[int]) -> Mapping[int, Sequence[RangeLocation]]:
        return await self._database.read(lambda c: objects.object_ranges(c, object_ids))

    async def list_reapable(self, *, now_ms: int, limit: int) -> Sequence[tuple[ObjectInfo, str]]:
        return await self._database.read(lambda c: objects.list_reapable(c, now_ms, limit))

    async def condemn_objects(self, object_ids: Sequence[int], *, now_ms: int) -> Sequence[int]:
        return await self._database.write(lambda c: objects.condemn_objects(c, object_ids, now_ms))

    async def discard_objects(self, object_ids: Sequence[int], *, now_ms: int, delete_after_ms: int) -> None:
        _check_moment(now_ms, delete_after_ms)
        await self._database.write(lambda c: objects.discard_objects(c, object_ids, delete_after_ms))

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        await self._database.write(lambda c: objects.forget_objects(c, object_ids))

    async def count_committed(self) -> Mapping[str, int]:
        return await self._database.read(objects.count_committed)

    async def count_objects(self) -> Mapping[str, tuple[int, int]]:
        return await self._database.read(objects.count_objects)

    # small things

    async def alter_config(
        self, kind: str, name: str, *, set_configs: Mapping[str, str], unset: Sequence[str]
    ) -> Mapping[str, str]:
        return await self._change(lambda c: configs.alter_config(c, kind, name, set_configs, unset))

    async def list_configs(self) -> Mapping[tuple[str, str], Mapping[str, str]]:
        return await self._database.read(configs.list_configs)

    async def read_state(self) -> tuple[int, CatalogState]:
        return await self._database.read(state_rows.read_state)

    async def next_manifest(self, above: int) -> int:
        return await self._database.write(lambda c: state_rows.next_number(c, above))

    async def fill(self, wanted: Filling) -> None:
        await self._database.write(lambda c: fill(c, wanted))

    async def advance(self, wanted: Advance) -> None:
        await self._database.write(lambda c: advance(c, wanted))

    def watch_shape(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    async def next_producer_ids(self, count: int) -> int:
        return await self._database.write(lambda c: rows.take_ids(c, "producer", count))


def _check_moment(now_ms: int, later_ms: int) -> None:
    if later_ms < now_ms:
        raise CatalogError(f"a deadline is a time at or after now ({now_ms} ms), found {later_ms} ms")
