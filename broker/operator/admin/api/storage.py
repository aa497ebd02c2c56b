"""Storage of the node that is asked, and of single partitions: which part is in the log, in memory, in which object."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Literal

from anabranch.broker.api.handlers.internal import describe_runs
from anabranch.broker.api.handlers.leadership import NO_LEADER
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.compaction import CompactionWithLast, compaction_with_last
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, check
from anabranch.broker.operator.admin.api.followers import ReplicaRow, replicas_of
from anabranch.broker.operator.admin.api.topics import partition_index, topic_named
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.protocol.messages.internal.describe_runs import CachedRun, DescribeRunsRequest, DescribeRunsResponse
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import RangeLocation, object_key
from anabranch.s3stream.outages import CATALOG

CATALOG_TIMEOUT_S: Final = 2.0
"""Time for the numbers of objects: the rest of an answer matters most while the catalog is away."""
RUNS_MAX: Final = 1000
PRODUCERS_MAX: Final = 1000
_OFFSET_MAX: Final = 2**63 - 1


class Wal(Model):
    """The write-ahead log."""

    kind: str
    description: str
    capacity_bytes: int
    used_bytes: int
    write_position: int
    """Bytes from the start of the ring to the place of the next record; 0 for a log that is no ring."""
    writes_in_flight: int
    queued_bytes: int
    """Appended, and not durable yet."""
    unwritten_bytes: int
    """Part of a new file that is still to be written with zeros."""
    records: int
    blocks: int
    append_p50_us: int
    append_p99_us: int


class LogCacheState(Model):
    """The log cache."""

    bytes: int
    capacity_bytes: int
    uncommitted_bytes: int
    """Data that is in no committed object yet."""
    hits: int


class BlockCacheState(Model):
    """The cache of blocks of objects."""

    bytes: int
    capacity_bytes: int
    hits: int
    misses: int


class ObjectCount(Model):
    """Objects of a kind and state, in the whole cluster."""

    count: int
    bytes: int


class Uploads(Model):
    """Uploads since the start."""

    count: int
    bytes: int
    retries: int
    threshold_bytes: int
    """Size of the data at which the next one starts."""
    age_ms: int
    """Age of the oldest data at which it starts, whatever the size."""


class StorageState(Model):
    """Storage of a node."""

    node_id: int
    wal: Wal
    log_cache: LogCacheState
    block_cache: BlockCacheState
    objects: dict[str, ObjectCount] | None
    """By kind and state; null if the catalog has not answered."""
    uploads: Uploads
    compaction: CompactionWithLast
    store_calls: dict[str, int]
    damaged_objects: int
    stopped_streams: int


class Run(Model):
    """A contiguous part of a partition, in one place."""

    kind: Literal["wal", "log_cache", "sso", "so"]
    base_offset: int
    end_offset: int
    """One past the last offset."""
    bytes: int
    object_id: int | None = None
    key: str | None = None
    store: str | None = None
    committed_ms: int | None = None


class PartitionStorage(Model):
    """Places of a partition's records."""

    leader: int | None
    replicas: list[ReplicaRow]
    start_offset: int
    end_offset: int
    committed_offset: int
    """End of the data in committed objects."""
    wal: list[Run]
    """Parts that are in no committed object yet. They are in memory, too."""
    log_cache: list[Run]
    """Parts that are in the leader's memory."""
    objects: list[Run]
    more: bool
    """True if there are more objects than are shown."""
    unreachable: list[int]
    """The leader, if it has not answered: `wal` and `log_cache` are empty then."""


class ProducerRow(Model):
    """An active producer of a partition."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int | None


class ProducerList(Model):
    """Active producers of a partition."""

    producers: list[ProducerRow]
    more: bool


class StorageEndpoints:
    """Endpoints of storage."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        path = "/topics/{topic}/partitions/{partition}"
        self.endpoints = [
            Endpoint("GET", "/storage", "Storage of this node.", self._storage, StorageState),
            Endpoint("GET", f"{path}/storage", "Places of a partition's records.", self._partition, PartitionStorage),
            Endpoint("GET", f"{path}/producers", "Active producers of a partition.", self._producers, ProducerList),
        ]

    async def _storage(self, _: Call) -> StorageState:
        node, storage, sizes = self._node, self._node.serving.storage, self._node.memory.sizes
        stats = storage.stats
        return StorageState(
            node_id=node.serving.node_id,
            wal=wal_state(node),
            log_cache=LogCacheState(
                bytes=storage.log_cache_bytes,
                capacity_bytes=sizes.log_cache_bytes,
                uncommitted_bytes=storage.uncommitted_bytes,
                hits=stats.log_cache_hits,
            ),
            block_cache=BlockCacheState(
                bytes=storage.block_cache_bytes,
                capacity_bytes=sizes.block_cache_bytes,
                hits=stats.block_cache_hits,
                misses=stats.block_cache_misses,
            ),
            objects=await count_objects(node),
            uploads=upload_state(node),
            compaction=compaction_with_last(node),
            store_calls=store_calls(node),
            damaged_objects=len(storage.damaged),
            stopped_streams=len(storage.stopped_streams),
        )

    async def _partition(self, call: Call) -> PartitionStorage:
        node = self._node
        topic = topic_named(node.serving, call.path["topic"])
        index = partition_index(topic, call.path["partition"])
        stream_id = topic.info.partitions[index].stream_id
        leader = self._calls.leader_of(topic.name, index)
        described = await self._runs(topic.name, index, leader)
        located = await node.serving.catalog.find_ranges(stream_id, 0, _OFFSET_MAX, limit=RUNS_MAX + 1)
        if described is None:
            info = (await node.serving.catalog.get_streams([stream_id]))[stream_id]
            described = DescribeRunsResponse(
                start_offset=info.start_offset, end_offset=info.end_offset, committed_offset=info.end_offset
            )
            unreachable = [] if leader == NO_LEADER else [leader]
        else:
            unreachable = []
        replicas = await replicas_of(self._calls, topic, [index], call.user)
        return PartitionStorage(
            leader=None if leader == NO_LEADER else leader,
            replicas=replicas.get(index, []),
            start_offset=described.start_offset,
            end_offset=described.end_offset,
            committed_offset=described.committed_offset,
            wal=[_cached("wal", run) for run in described.runs if not run.committed],
            log_cache=[_cached("log_cache", run) for run in described.runs],
            objects=[self._stored(each) for each in located[:RUNS_MAX]],
            more=len(located) > RUNS_MAX,
            unreachable=unreachable,
        )

    async def _runs(self, topic: str, index: int, leader: int) -> DescribeRunsResponse | None:
        """Return what the leader has in memory; None if it does not answer."""
        request = DescribeRunsRequest(topic=topic, partition=index)
        answer: DescribeRunsResponse | None
        if leader == self._node.serving.node_id:
            answer = describe_runs(self._node.serving, request)
        else:
            answer = await self._calls.ask_node(leader, request)
        return None if answer is None or answer.error_code else answer

    def _stored(self, location: RangeLocation) -> Run:
        found = location.object
        return Run(
            kind="so" if found.kind.name == "SO" else "sso",
            base_offset=location.range.start_offset,
            end_offset=location.range.end_offset,
            bytes=location.range.size_bytes,
            object_id=found.object_id,
            key=object_key(self._node.serving.settings.node.cluster, found.object_id),
            store=found.store,
            committed_ms=found.committed_ms or None,
        )

    async def _producers(self, call: Call) -> ProducerList:
        topic = topic_named(self._node.serving, call.path["topic"])
        index = partition_index(topic, call.path["partition"])
        request = DescribeProducersRequest(topics=[TopicRequest(name=topic.name, partition_indexes=[index])])
        answer = await self._calls.call(self._calls.needed_leader(topic.name, index), request, call.user)
        (found,) = answer.topics[0].partitions
        check(found.error_code, found.error_message)
        producers: Sequence[Any] = found.active_producers
        return ProducerList(
            producers=[
                ProducerRow(
                    producer_id=each.producer_id,
                    epoch=each.producer_epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp_ms=each.last_timestamp,
                    transaction_start_offset=each.current_txn_start_offset
                    if each.current_txn_start_offset >= 0
                    else None,
                )
                for each in producers[:PRODUCERS_MAX]
            ],
            more=len(producers) > PRODUCERS_MAX,
        )


def _cached(kind: Literal["wal", "log_cache"], run: CachedRun) -> Run:
    return Run(kind=kind, base_offset=run.base_offset, end_offset=run.end_offset, bytes=run.size_bytes)


async def count_objects(node: Node) -> dict[str, ObjectCount] | None:
    """Count objects by kind and state; return None, and note an outage, when the catalog does not answer."""
    outages = node.serving.storage.outages
    try:
        async with asyncio.timeout(CATALOG_TIMEOUT_S):
            found = await node.serving.catalog.count_objects()
    except CatalogError as error:
        outages.note(CATALOG, error)
        return None
    except TimeoutError:
        if all(outage.where != CATALOG for outage in outages.current()):  # noted with a better reason
            outages.note(CATALOG, TimeoutError(f"no answer within {CATALOG_TIMEOUT_S:g} s"))
        return None
    return {kind: ObjectCount(count=count, bytes=size) for kind, (count, size) in found.items()}


def wal_state(node: Node) -> Wal:
    """Describe the node's log."""
    wal = node.wal
    stats = wal.snapshot()
    return Wal(
        kind=node.serving.settings.wal.kind,
        description=wal.description,
        capacity_bytes=wal.capacity_bytes,
        used_bytes=wal.used_bytes,
        write_position=stats.write_position,
        writes_in_flight=stats.in_flight,
        queued_bytes=stats.queued_bytes,
        unwritten_bytes=stats.unwritten_bytes,
        records=stats.records,
        blocks=stats.blocks,
        append_p50_us=stats.latency_us(0.5),
        append_p99_us=stats.latency_us(0.99),
    )


def upload_state(node: Node) -> Uploads:
    """Describe the node's uploads."""
    stats = node.serving.storage.stats
    return Uploads(
        count=stats.uploads,
        bytes=stats.upload_bytes,
        retries=stats.upload_retries,
        threshold_bytes=node.serving.storage.upload_threshold_bytes,
        age_ms=node.serving.settings.storage.upload_age_ms,
    )


def store_calls(node: Node) -> dict[str, int]:
    """Sum the calls to all object stores by kind, including kinds without calls."""
    calls: Counter[str] = Counter()
    for store in node.stores.values():
        calls.update(asdict(store.calls))
    return dict(calls)
