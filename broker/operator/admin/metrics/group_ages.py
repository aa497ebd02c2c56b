"""The lag of consumer groups in time: the age of the first record that a group has not committed.

The record is looked for in the log cache, and its timestamp is remembered while the group's offset does not move. A
scrape reads no object. Otherwise it is looked up after the scrape, for the next one: a few offsets at a time, in the
background, each once. So a group that reads old records costs some reads of blocks that it has just read itself, and a
stopped group costs nothing.

It is accurate to a batch: a commit in the middle of one counts from the first record of that batch. Aborted records and
markers count, as they do in the lag in offsets.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import Metric

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.operator.admin.metrics.cluster import OFFSET, group_rows, led_partition
from anabranch.broker.operator.admin.metrics.definitions import Row, definitions_in, gauge
from anabranch.protocol.batch import DELETE_HORIZON_MASK, parse_batch
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import StreamBatch

LAG_SECONDS: Final = gauge(
    "anabranch_consumergroup_lag_seconds",
    "Age of the first record after the committed offset, of partitions that the group's coordinator leads; 0 if there "
    "is none.",
    *OFFSET,
)
DEFINITIONS = definitions_in(globals())
LOOK_UPS_MAX: Final = 20
"""Offsets that are looked up after one scrape."""
LOOK_UP_S: Final = 5.0
"""Time that all these look-ups may take."""


class Position(NamedTuple):
    """A place in a stream, under one leader: another one may have other records there."""

    stream_id: int
    leader_epoch: int
    offset: int


class GroupAges:
    """Timestamps of the first records that groups have not committed. Used from one loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._times_ms: Mapping[Position, int] = {}
        """Those that the last scrape needed, and what was looked up since."""
        self._unknown: Mapping[Position, Partition] = {}
        self._failed: set[Position] = set()
        """Those that could not be read. They come last, so that the others have their turn."""
        self._is_looking_up = False

    def collect(self) -> Iterator[Metric]:
        """Yield the lag of all groups that `/metrics` names; without those that are not known yet."""
        times_ms: dict[Position, int] = {}
        unknown: dict[Position, Partition] = {}
        yield from LAG_SECONDS.pieces(self._rows(times_ms, unknown))
        # A look-up may have ended since their turn.
        self._times_ms = times_ms | {each: self._times_ms[each] for each in unknown if each in self._times_ms}
        self._unknown = unknown
        self._failed &= unknown.keys()

    def look_up(self) -> None:
        """Look up in the background what the last scrape did not know, if that is not under way."""
        if self._unknown and not self._is_looking_up:
            self._is_looking_up = True
            self._node.tasks.spawn(self._look_up())

    def _rows(self, times_ms: dict[Position, int], unknown: dict[Position, Partition]) -> Iterator[Row]:
        now_ms = self._node.serving.now_ms()
        for group in group_rows(self._node.serving):
            for topic, index, committed in group.offsets:
                partition = led_partition(self._node.serving, topic, index)
                if partition is None:
                    continue
                labels = (group.group_id, topic, str(index))
                offset = max(committed.offset, partition.log_start_offset)
                if offset >= partition.high_watermark:
                    yield labels, 0.0
                    continue
                position = Position(partition.stream.stream_id, partition.leader_epoch, offset)
                time_ms = self._known(position, partition)
                if time_ms is None:
                    unknown[position] = partition
                    continue
                times_ms[position] = time_ms
                if time_ms >= 0:
                    yield labels, max(0, now_ms - time_ms) / 1000

    def _known(self, position: Position, partition: Partition) -> int | None:
        found = self._times_ms.get(position)
        if found is None and (batch := partition.stream.cached_batch(position.offset)) is not None:
            found = first_time_ms(batch)
        return found

    async def _look_up(self) -> None:
        wanted, self._unknown = self._unknown, {}
        try:
            async with asyncio.timeout(LOOK_UP_S):
                for position in sorted(wanted, key=self._failed.__contains__)[:LOOK_UPS_MAX]:
                    try:
                        result = await wanted[position].stream.read(position.offset, 1)
                    except StorageError:  # it was deleted or moved meanwhile, or the store does not answer
                        self._failed.add(position)
                        continue
                    if result.batches:
                        self._times_ms = {**self._times_ms, position: first_time_ms(result.batches[0])}
        except TimeoutError:
            pass  # the rest is looked up after the next scrape
        finally:
            self._is_looking_up = False


def first_time_ms(batch: StreamBatch) -> int:
    """Return the timestamp of a batch's first record by its header; -1 if it has none."""
    try:
        header = parse_batch(batch.payload)
    except KafkaError:
        return -1
    # Compaction keeps a time of its own where the first record's was.
    if header.is_log_append_time or header.attributes & DELETE_HORIZON_MASK:
        return header.max_timestamp
    return header.base_timestamp
