"""Resolves, on the driver, which offsets to read and in which objects they are. Uses the catalog only.

Only committed data is visible: records in a node's log are not in objects yet. With
`kafka.isolation.level=read_committed` a partition ends at its last stable offset as of that commit.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.s3stream.model import RangeLocation, StreamInfo, object_key
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.spark.direct.options import EARLIEST, LATEST, DataLossError, OffsetBound, OptionError, ReadOptions
from anabranch.spark.direct.plan import ObjectSlice
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.transactions import SnapshotTransactions, read_transactions

if TYPE_CHECKING:  # slow to import, and tasks do not need it
    from anabranch.s3stream.catalog.catalog import Catalog
    from anabranch.s3stream.catalog.values import TopicInfo

RANGES_PAGE: Final = 1000


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of a partition in the catalog."""

    stream: StreamInfo
    transactions: SnapshotTransactions
    start_offset: int
    end_offset: int
    """End of the readable data: the committed end, or the last stable offset."""
    topic_id: str = ""
    """UUID of the topic in hexadecimal digits. It differs for a recreated topic of the same name."""


Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OpenedStorage:
    """Catalog and object stores that planning uses."""

    catalog: "Catalog"
    stores: Mapping[str, ObjectStore]
    cluster: str


async def find_partitions(storage: OpenedStorage, options: ReadOptions) -> dict[TopicPartition, PartitionState]:
    """Return the current state of the partitions that the options select.

    Raises OptionError, CorruptObject, CatalogError.
    """
    found = {topic.name: topic for topic in await storage.catalog.list_topics()}
    streams: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str] = {}
    for topic in _choose_topics(found, options):
        topic_ids[topic.name] = topic.topic_id.hex()
        indexes = [partition.index for partition in topic.partitions]
        if options.assigned is not None:
            indexes = list(options.assigned[topic.name])
        for index in indexes:
            if not 0 <= index < len(topic.partitions):
                raise OptionError(f"assign: topic {topic.name} has no partition {index}")
            streams[TopicPartition(topic.name, index)] = topic.partitions[index].stream_id
    infos = await storage.catalog.get_streams(list(streams.values()))
    states: dict[TopicPartition, PartitionState] = {}
    for partition, stream_id in streams.items():
        info = infos.get(stream_id)
        if info is not None:
            transactions = read_transactions(info)
            end = transactions.stable_offset if options.committed else info.end_offset
            topic_id = topic_ids[partition.topic]
            states[partition] = PartitionState(info, transactions, info.start_offset, end, topic_id)
    return states


def _choose_topics(found: "Mapping[str, TopicInfo]", options: ReadOptions) -> "list[TopicInfo]":
    if options.pattern is not None:
        try:
            pattern = re.compile(options.pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern: {error}") from None
        return [topic for name, topic in sorted(found.items()) if pattern.fullmatch(name) and not topic.internal]
    missing = [name for name in options.topics if name not in found]
    if missing:
        raise OptionError(f"unknown topic {', '.join(missing)}")
    return [found[name] for name in options.topics]


async def resolve_bound(
    storage: OpenedStorage, states: Mapping[TopicPartition, PartitionState], bound: OffsetBound, *, name: str
) -> dict[TopicPartition, int]:
    """Return the offset that a bound means for each partition. Raises OptionError, StorageError."""
    resolved: dict[TopicPartition, int] = {}
    named = bound.offsets or bound.timestamps_ms or {}
    for topic, partitions in named.items():
        for index in partitions:
            if TopicPartition(topic, index) not in states:
                raise OptionError(f"{name}: {topic} partition {index} is not among the partitions to read")
    for partition, state in states.items():
        timestamp_ms = bound.timestamp_ms
        if bound.timestamps_ms is not None:
            timestamp_ms = bound.timestamps_ms.get(partition.topic, {}).get(partition.partition)
        offset = bound.offset
        if bound.offsets is not None:
            offset = bound.offsets.get(partition.topic, {}).get(partition.partition, offset)
        if timestamp_ms is not None:
            found = await offset_for_time(storage, state, timestamp_ms)
            if found is None and not bound.or_latest:
                raise OptionError(
                    f"{name}: no record of {partition.topic} partition {partition.partition} is of "
                    f"{timestamp_ms} or later; {name.lower()}OffsetsByTimestampStrategy=latest would begin at the end"
                )
            offset = LATEST if found is None else found
        if offset == EARLIEST:
            offset = state.start_offset
        elif offset == LATEST:
            offset = state.end_offset
        resolved[partition] = offset
    return resolved


async def offset_for_time(storage: OpenedStorage, state: PartitionState, timestamp_ms: int) -> int | None:
    """Return the offset of the first committed record at or after a time, or None. Raises StorageError."""
    stream = state.stream
    first = await storage.catalog.find_time(stream.stream_id, timestamp_ms)
    if first is None:
        return None
    start = max(first.range.start_offset, stream.start_offset)
    for location in await find_locations(storage.catalog, stream.stream_id, start, stream.end_offset):
        if location.range.max_timestamp_ms >= timestamp_ms:
            found = await _first_in_range(storage, location, max(start, location.range.start_offset), timestamp_ms)
            if found is not None:
                return min(found, state.end_offset)
    return None


async def _first_in_range(storage: OpenedStorage, location: RangeLocation, start: int, timestamp_ms: int) -> int | None:
    # Most plans name no time. Each is made in a separate process, which saves these imports.
    from anabranch.protocol.errors import KafkaError
    from anabranch.protocol.records import decode_records
    from anabranch.s3stream.object.format import decode_block
    from anabranch.s3stream.object.reader import index_tail_bytes, read_index

    info = location.object
    store = storage.stores[info.store]
    key = object_key(storage.cluster, info.object_id)
    index = await read_index(store, key, index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes)
    for entry in index.find(location.stored_stream_id, start, location.range.end_offset):
        if entry.max_timestamp_ms < timestamp_ms:
            continue
        data = await store.get(key, entry.position, entry.end_position)
        for batch in decode_block(data, entry, where=f"{store.name}:{key}"):
            if batch.max_timestamp_ms < timestamp_ms or batch.end_offset <= start:
                continue
            try:
                records = decode_records(batch.payload)
            except KafkaError:
                return batch.base_offset  # as the node answers: the batch is the best there is
            for record in records:
                if record.timestamp_ms >= timestamp_ms and record.offset >= start:
                    return record.offset
    return None


async def find_locations(catalog: "Catalog", stream_id: int, start: int, end: int) -> list[RangeLocation]:
    """Return all ranges that overlap [start, end), in order."""
    locations: list[RangeLocation] = []
    while start < end:
        page = await catalog.find_ranges(stream_id, start, end, limit=RANGES_PAGE)
        if not page:
            break
        locations += page
        start = page[-1].range.end_offset
    return locations


def check_bounds(
    states: Mapping[TopicPartition, PartitionState],
    start: Offsets,
    end: Offsets,
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return [start, end) of each partition, limited to existing data. Raises DataLossError for lost data.

    A partition without a start was created after reading began, and is read from its beginning.
    """
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for partition, until in {**dict.fromkeys(start, 0), **end}.items():
        state = states.get(partition)
        begin = start.get(partition, 0)
        lost: str | None = None
        if state is None:
            lost = "it does not exist any more"
        elif begin < state.start_offset and begin < until:
            lost = f"it begins at offset {state.start_offset}, wanted from {begin}"
        elif max(begin, until) > state.end_offset:
            lost = f"its committed end is {state.end_offset}, wanted {begin} to {until}"
        if lost is not None and fail_on_data_loss:
            raise DataLossError(
                f"topic {partition.topic} partition {partition.partition}: {lost}. Records expired, the topic was "
                "deleted or made anew, or they are not in objects yet; failOnDataLoss=false reads what there is"
            )
        if state is not None:
            low = max(begin, state.start_offset)
            high = min(until, state.end_offset)
            if low < high:
                bounds[partition] = (low, high)
    return bounds


async def find_slices(
    storage: OpenedStorage,
    states: Mapping[TopicPartition, PartitionState],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    *,
    options: ReadOptions,
    timestamp_ms_min: int,
) -> tuple[list[PartitionRange], list[ObjectSlice]]:
    """Return the ranges to read of each partition, and the slices of objects that contain them.

    Leaves out ranges older than `timestamp_ms_min`. Raises DataLossError for data that expired after the bounds were
    found.
    """
    ranges: list[PartitionRange] = []
    slices: list[ObjectSlice] = []
    for partition, (start, end) in bounds.items():
        state = states[partition]
        aborted = state.transactions.aborted_between(start, end) if options.committed else ()
        number = len(ranges)
        ranges.append(PartitionRange(partition.topic, partition.partition, start, end, aborted))
        locations = await find_locations(storage.catalog, state.stream.stream_id, start, end)
        missing = first_missing(locations, start, end)
        if missing is not None and options.fail_on_data_loss:
            raise DataLossError(
                f"topic {partition.topic} partition {partition.partition}: offset {missing} of [{start}, {end}) is "
                "in no object any more; failOnDataLoss=false reads what there is"
            )
        slices += cut_slices(locations, number, start, end, timestamp_ms_min)
    return ranges, slices


def first_missing(locations: Sequence[RangeLocation], start: int, end: int) -> int | None:
    """Return the first offset of [start, end) that no range contains, or None. The ranges are in order."""
    for location in locations:
        if location.range.start_offset > start:
            break
        start = max(start, location.range.end_offset)
    return start if start < end else None


def cut_slices(
    locations: Sequence[RangeLocation], range_index: int, start: int, end: int, timestamp_ms_min: int
) -> list[ObjectSlice]:
    """Return the part of each range within [start, end).

    Each offset is returned once, even if ranges overlap because compaction replaced some between two pages of the
    catalog's answer.
    """
    slices: list[ObjectSlice] = []
    for location in locations:
        span, info = location.range, location.object
        low, high = max(start, span.start_offset), min(end, span.end_offset)
        start = max(start, high)
        if low < high and span.max_timestamp_ms >= timestamp_ms_min:
            size = max(1, span.size_bytes * (high - low) // (span.end_offset - span.start_offset))
            stored = location.stored_stream_id
            slices.append(
                ObjectSlice(
                    info.object_id, info.size_bytes, info.store, span.stream_id, stored, range_index, low, high, size
                )
            )
    return slices
