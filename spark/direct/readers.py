"""Readers of the data source. They plan on the driver, and read in tasks.

Everything that a task needs is pickled with it: the location of the stores, without secrets, its slices, and their
aborted transactions.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from anabranch.spark.checkpoint_format import TOPIC_ID, JsonOffsets
from anabranch.spark.direct.offsets import (
    Offsets,
    OpenedStorage,
    PartitionState,
    TopicPartition,
    check_bounds,
    find_partitions,
    find_slices,
    resolve_bound,
)
from anabranch.spark.direct.options import COLUMNS, DataLossError, OptionError, ReadOptions
from anabranch.spark.direct.plan import INT64_MAX, TASK_BYTES_MIN, ReadTask, plan_tasks
from anabranch.spark.direct.worker import freeze_worker
from anabranch.spark.storage import StorageLocation, opened_catalog, opened_stores
from anabranch.tables.blocks import COLUMN_TYPES

Result = TypeVar("Result")

HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""True if this Spark (4.2 and newer) can limit the micro-batches of a Python source."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TaskPartition(InputPartition):
    """A task as Spark's input partition."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the columns. Raises OptionError for an unknown column, or one of another type."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise OptionError(f"unknown column {field.name}; expected {', '.join(COLUMNS)}")
        expected, found = (
            COLUMNS[field.name].lower().replace(", ", ",").replace(": ", ":"),
            field.dataType.simpleString(),
        )
        if expected != found:
            raise OptionError(f"column {field.name}: expected type {expected}, found {found}")
    return pa.schema([pa.field(field.name, COLUMN_TYPES[field.name], field.nullable) for field in schema.fields])


@dataclass(slots=True)
class PushedFilters:
    """Limits that the pushed filters put on topics, partitions, offsets and times. Spark applies the filters again."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int = INT64_MAX
    timestamp_ms_min: int = -INT64_MAX

    def add(self, each: Filter) -> None:
        """Add the limits of a filter, if it has any."""
        match each:
            case EqualTo(attribute=("topic",), value=str(name)):
                self._limit_topics({name})
            case In(attribute=("topic",), value=names):
                self._limit_topics({str(name) for name in names})
            case EqualTo(attribute=("partition",), value=int(number)):
                self._limit_partitions({number})
            case In(attribute=("partition",), value=numbers):
                self._limit_partitions({number for number in numbers if isinstance(number, int)})
            case EqualTo(attribute=("offset",), value=int(number)):
                self.offset_min = max(self.offset_min, number)
                self.offset_end = min(self.offset_end, number + 1)
            case GreaterThanOrEqual(attribute=("offset",), value=int(number)):
                self.offset_min = max(self.offset_min, number)
            case GreaterThan(attribute=("offset",), value=int(number)):
                self.offset_min = max(self.offset_min, number + 1)
            case LessThan(attribute=("offset",), value=int(number)):
                self.offset_end = min(self.offset_end, number)
            case LessThanOrEqual(attribute=("offset",), value=int(number)):
                self.offset_end = min(self.offset_end, number + 1)
            case (
                EqualTo(attribute=("timestamp",), value=datetime() as moment)
                | GreaterThan(attribute=("timestamp",), value=datetime() as moment)
                | GreaterThanOrEqual(attribute=("timestamp",), value=datetime() as moment)
            ) if moment.tzinfo is not None:
                since_ms = (moment - _EPOCH) // (_EPOCH.resolution * 1000)
                self.timestamp_ms_min = max(self.timestamp_ms_min, since_ms)
            case _:
                pass

    def bounds(self, partition: TopicPartition, start: int, end: int) -> tuple[int, int]:
        """Return the part of [start, end) that can contain a matching record.

        It is empty if its start is not before its end.
        """
        if (self.topics is not None and partition.topic not in self.topics) or (
            self.partitions is not None and partition.partition not in self.partitions
        ):
            return end, end
        return max(start, self.offset_min), min(end, self.offset_end)

    def _limit_topics(self, names: Iterable[str]) -> None:
        wanted = frozenset(names)
        self.topics = wanted if self.topics is None else self.topics & wanted

    def _limit_partitions(self, numbers: Iterable[int]) -> None:
        wanted = frozenset(numbers)
        self.partitions = wanted if self.partitions is None else self.partitions & wanted


class _SourceReader:
    """Common part of both readers: planning on the driver, and reading in tasks."""

    def __init__(self, location: StorageLocation, options: ReadOptions, schema: StructType, parallelism: int) -> None:
        self._location: StorageLocation | None = location
        self._options: ReadOptions | None = options
        self._parallelism = parallelism
        self._schema = arrow_schema(schema)
        self._pushed = PushedFilters()
        self._task_location = location.without_password()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks."""
        return {**self.__dict__, "_location": None, "_options": None}

    @property
    def location(self) -> StorageLocation:
        """Location of the storage; on the driver only."""
        assert self._location is not None, "planning happens on the driver"
        return self._location

    @property
    def options(self) -> ReadOptions:
        """Options of the read; on the driver only."""
        assert self._options is not None, "planning happens on the driver"
        return self._options

    async def plan(
        self, storage: OpenedStorage, states: Mapping[TopicPartition, PartitionState], start: Offsets, end: Offsets
    ) -> list[InputPartition]:
        """Return the tasks for [start, end) of each partition."""
        options, pushed = self.options, self._pushed
        bounds = check_bounds(states, start, end, fail_on_data_loss=options.fail_on_data_loss)
        narrowed = {each: pushed.bounds(each, *span) for each, span in bounds.items()}
        ranges, slices = await find_slices(
            storage,
            states,
            {each: span for each, span in narrowed.items() if span[0] < span[1]},
            options=options,
            timestamp_ms_min=pushed.timestamp_ms_min,
        )
        # With an explicit minPartitions, small tasks are intended.
        bytes_min = TASK_BYTES_MIN if options.tasks_min is None else 1
        tasks = plan_tasks(slices, parallelism=options.tasks_min or self._parallelism, bytes_min=bytes_min)
        made: list[InputPartition] = []
        for some in tasks:
            own = {
                number: ranges[number]._replace(aborted=_relevant(ranges[number].aborted, some, number))
                for number in {part.range_index for part in some}
            }
            made.append(TaskPartition(ReadTask(some, own)))
        return made

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        from anabranch.spark.direct.read import read_task  # saves planning, a separate process, 0.1 s of CPU

        if isinstance(partition, TaskPartition):
            yield from read_task(
                self._task_location, partition.task, self._schema, timestamp_ms_min=self._pushed.timestamp_ms_min
            )
        freeze_worker()


def _relevant(aborted: Sequence[Any], slices: Iterable[Any], number: int) -> tuple[Any, ...]:
    """Return the aborted transactions that overlap a task's slices of a partition."""
    spans = [(part.start_offset, part.end_offset) for part in slices if part.range_index == number]
    low, high = min(start for start, _ in spans), max(end for _, end in spans)
    return tuple(each for each in aborted if each.first_offset < high and each.end_offset > low)


class BatchSourceReader(_SourceReader, DataSourceReader):
    """Reads the data that exists when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read. Raises OptionError, DataLossError, StorageError."""
        tasks = asyncio.run(self._plan())
        freeze_worker()
        return tasks

    async def _plan(self) -> list[InputPartition]:
        async with opened_catalog(self.location) as catalog, opened_stores(self.location) as stores:
            storage = OpenedStorage(catalog, stores, self.location.cluster)
            states = await find_partitions(storage, self.options)
            start = await resolve_bound(storage, states, self.options.starting, name="starting")
            end = await resolve_bound(storage, states, self.options.ending, name="ending")
            return await self.plan(storage, states, start, end)


class FilteredSourceReader(BatchSourceReader):
    """A reader that Spark gives its filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note filters that reduce the read. All filters also stay with Spark."""
        for each in filters:
            self._pushed.add(each)
            yield each


def to_json(offsets: Offsets, states: Mapping[TopicPartition, PartitionState]) -> JsonOffsets:
    """Return offsets in the format that Spark's Kafka source has in checkpoints and progress reports.

    Each topic also has its id, because a recreated topic of the same name has other offsets.
    """
    found: JsonOffsets = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    for partition in offsets:
        if partition in states:
            found[partition.topic][TOPIC_ID] = states[partition].topic_id
    return found


def from_json(offsets: JsonOffsets) -> dict[TopicPartition, int]:
    """Parse the format of `to_json`, without the topics' ids."""
    return {
        TopicPartition(topic, int(index)): int(offset)
        for topic, partitions in offsets.items()
        for index, offset in partitions.items()
        if index != TOPIC_ID
    }


def recreated_topics(offsets: JsonOffsets, states: Mapping[TopicPartition, PartitionState]) -> set[str]:
    """Return the topics that were recreated since the offsets were written."""
    return {
        partition.topic
        for partition, state in states.items()
        if offsets.get(partition.topic, {}).get(TOPIC_ID, state.topic_id) != state.topic_id
    }


def refuse_ahead(start: JsonOffsets, states: Mapping[TopicPartition, PartitionState]) -> None:
    """Raise DataLossError if a checkpoint, which the Kafka source has written, is past what is in objects.

    The next micro-batch would end before it begins, and the one after it would repeat what the Kafka source has read.
    """
    for partition, offset in from_json(start).items():
        state = states.get(partition)
        if state is not None and TOPIC_ID not in start[partition.topic] and offset > state.end_offset:
            raise DataLossError(
                f"topic {partition.topic} partition {partition.partition}: the checkpoint, of the Kafka source, is at "
                f"offset {offset}, and the records in objects end at {state.end_offset}; start again when they are "
                "uploaded (storage.upload_age_ms), or with a new checkpoint if the topic was made anew"
            )


def _refuse_backwards(start: JsonOffsets, end: JsonOffsets) -> None:
    """Raise DataLossError for a micro-batch that begins where the Kafka source has ended, and ends before that."""
    for partition, offset in from_json(start).items():
        topic, index = partition.topic, str(partition.partition)
        if TOPIC_ID not in start[topic] and int(end.get(topic, {}).get(index, offset)) < offset:
            raise DataLossError(
                f"topic {topic} partition {index}: the micro-batch begins at offset {offset}, where the Kafka source "
                f"has ended, and ends at {end[topic][index]}; delete the newest file in the folder `offsets` of the "
                "checkpoint, and start again"
            )


async def refuse_checkpoint_ahead(location: StorageLocation, options: ReadOptions, start: JsonOffsets) -> None:
    """Do `refuse_ahead` before a query starts: when it plans a micro-batch, its end is in the checkpoint already."""
    async with opened_catalog(location) as catalog, opened_stores(location) as stores:
        storage = OpenedStorage(catalog, stores, location.cluster)
        refuse_ahead(start, await find_partitions(storage, options))


def drop_topics(offsets: Offsets, topics: set[str]) -> dict[TopicPartition, int]:
    """Return the offsets of all other topics."""
    return {partition: offset for partition, offset in offsets.items() if partition.topic not in topics}


class StreamSourceReader(_SourceReader, DataSourceStreamReader):
    """Reads micro-batches by committed offset. Exists on the driver as long as its query."""

    def __init__(self, location: StorageLocation, options: ReadOptions, schema: StructType, parallelism: int) -> None:
        super().__init__(location, options, schema, parallelism)
        if options.offsets_per_batch_max is not None and not HAS_LIMITS:
            raise OptionError(
                f"maxOffsetsPerTrigger needs Spark 4.2 or newer, this is {pyspark.__version__}: before, a limited "
                "Python source leaves rows unread with Trigger.AvailableNow"
            )
        self._target: Offsets | None = None
        """End of the read with Trigger.AvailableNow on Spark 4.2."""
        self._initial_offsets: JsonOffsets | None = None
        """Start of the read, until a first, empty micro-batch has stored it in the checkpoint."""
        self._runner: asyncio.Runner | None = None
        self._stack: AsyncExitStack | None = None
        self._storage: OpenedStorage | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks."""
        return {**super().__getstate__(), "_runner": None, "_stack": None, "_storage": None}

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint."""
        began = self._run(self._initial())
        if self.options.starting.moves:
            self._initial_offsets = began
        return began

    def latestOffset(  # noqa: N802 - Spark's name; 4.1 gives no arguments, 4.2 two
        self, start: JsonOffsets | None = None, limit: object = None
    ) -> JsonOffsets:
        """Return the end of the next micro-batch: the committed end or last stable offset, or less with a limit.

        Spark 4.2 asks for the initial offset before this call, and does not store it. A first batch that is repeated
        after a crash would begin at a later end, and lose rows. So the first batch is empty. Spark 4.1 makes this call
        first: the end of the first batch is never past a start that moves.
        """
        began, self._initial_offsets = self._initial_offsets, None
        if start is not None and start == began:
            return start
        states = self._run(self._states())
        latest = end_offsets(states)
        if self._target is not None:
            latest = {each: min(latest[each], end) for each, end in self._target.items() if each in latest}
        most = getattr(limit, "max_rows", None)
        if start is not None and most is not None:
            latest = limit_offsets(drop_topics(from_json(start), recreated_topics(start, states)), latest, most)
        return to_json(latest, states)

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        """Plan a micro-batch. Raises OptionError, DataLossError, StorageError."""
        return self._run(self._plan(start, end))

    def commit(self, end: JsonOffsets) -> None:
        """Do nothing: the checkpoint has the offsets."""

    def stop(self) -> None:
        """Close the catalog."""
        if self._runner is not None:
            if self._stack is not None:
                self._runner.run(self._stack.aclose())
            self._runner.close()
            self._runner = self._stack = self._storage = None

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    async def _opened(self) -> OpenedStorage:
        if self._storage is None:
            self._stack = AsyncExitStack()
            catalog = await self._stack.enter_async_context(opened_catalog(self.location))
            stores = await self._stack.enter_async_context(opened_stores(self.location))
            self._storage = OpenedStorage(catalog, stores, self.location.cluster)
        return self._storage

    async def _initial(self) -> JsonOffsets:
        storage = await self._opened()
        states = await find_partitions(storage, self.options)
        return to_json(await resolve_bound(storage, states, self.options.starting, name="starting"), states)

    async def _states(self) -> dict[TopicPartition, PartitionState]:
        return await find_partitions(await self._opened(), self.options)

    async def _plan(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        storage = await self._opened()
        states = await find_partitions(storage, self.options)
        refuse_ahead(start, states)
        _refuse_backwards(start, end)
        before, after = recreated_topics(start, states), recreated_topics(end, states)
        if (before or after) and self.options.fail_on_data_loss:
            raise DataLossError(
                f"topic {', '.join(sorted(before | after))} was deleted and made anew; failOnDataLoss=false reads the "
                "new one from its start"
            )
        return await self.plan(
            storage, states, drop_topics(from_json(start), before), drop_topics(from_json(end), after)
        )


def end_offsets(states: Mapping[TopicPartition, PartitionState]) -> dict[TopicPartition, int]:
    """Return the end of each partition."""
    return {partition: state.end_offset for partition, state in states.items()}


def limit_offsets(start: Offsets, latest: Offsets, most: int) -> dict[TopicPartition, int]:
    """Return an end at most about `most` offsets after the start, in proportion to what each partition has left."""
    left = {each: max(0, offset - start.get(each, 0)) for each, offset in latest.items()}
    total = sum(left.values())
    if total <= most:
        return dict(latest)
    # Rounded up, so that each partition makes progress.
    return {each: latest[each] - left[each] + -(-left[each] * most // total) for each in latest}


if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (  # type: ignore[import-not-found]  # since 4.2
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class LimitedStreamSourceReader(StreamSourceReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # of 4.2
        """Adds what Spark 4.2 supports: limited micro-batches, and an end fixed when the query starts."""

        def getDefaultReadLimit(self) -> object:  # noqa: N802 - Spark's name
            """Return the limit of `maxOffsetsPerTrigger`."""
            most = self.options.offsets_per_batch_max
            return ReadAllAvailable() if most is None else ReadMaxRows(most)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Fix the end of the read."""
            self._target = end_offsets(self._run(self._states()))

        def reportLatestOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's name
            """Return the current end of the topics, for progress reports."""
            states = self._run(self._states())
            return to_json(end_offsets(states), states)

    STREAM_READER: type[StreamSourceReader] = LimitedStreamSourceReader
else:
    STREAM_READER = StreamSourceReader
