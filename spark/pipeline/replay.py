"""Puts dead letters back: decodes them again as the file says now, and moves those that fit into the table, each once.

First they are written to the table, in one commit with a number, then deleted from the dead letters. A replay after a
crash, or beside another one, finds them in the table by topic, partition, offset and time. Two replays at once have the
same number, and only one of them commits. A merge into a table with keys changes nothing when it is repeated.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.changes import DELETED, changes_of
from anabranch.spark.pipeline.decode import RecordDecoder, RecordDecoding
from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError, UnusableSchema, reason_of
from anabranch.spark.pipeline.merge import PLACE_COLUMNS, newer_letter
from anabranch.spark.pipeline.run import without_ansi
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import (
    RECORD_COLUMNS,
    dead_letter_columns,
    rows_of,
    table_columns,
)
from anabranch.spark.pipeline.tables import LakehouseTable, MicroBatchSink, open_dead_letters, open_tables
from anabranch.spark.pipeline.topics import known_topics
from anabranch.spark.pipeline.writer import persisted

REPLAYS = "anabranch-replay"
"""Id under which replays commit, as a query does under its own."""
FILTERED = "columns.filter leaves the record out"
FASTER = "{}: another replay was faster; run it again"


@dataclass(frozen=True, slots=True)
class Replayed:
    """Outcome of a replay, in numbers of dead letters."""

    put_back: int
    """Number of records that were written to the table."""
    there_before: int
    """Number of records that the table had already: of a replay that died, or did not finish."""
    reasons: Mapping[str, int]
    """Number of dead letters that stay, by their reason now."""

    @property
    def total(self) -> int:
        """Number of dead letters that were looked at."""
        return self.put_back + self.there_before + sum(self.reasons.values())


def replay(spark: SparkSession, pipeline: PipelineSettings, where: str | None, *, dry_run: bool) -> Replayed:
    """Put back those dead letters that can be decoded now, of those that fit a condition.

    A watermark makes no record late here. A dry run changes nothing. Raises PipelineError, and what Spark raises.
    """
    put_back = there_before = 0
    reasons: Counter[str] = Counter()
    for topic in known_topics(spark, pipeline):
        own = pipeline.for_topic(topic)
        found = _replay_table(spark, own, where, dry_run=dry_run, may_lack_schema=topic is not None)
        put_back += found.put_back
        there_before += found.there_before
        reasons.update(found.reasons)
    return Replayed(put_back, there_before, dict(reasons.most_common()))


def _replay_table(
    spark: SparkSession, pipeline: PipelineSettings, where: str | None, *, dry_run: bool, may_lack_schema: bool
) -> Replayed:
    table, dead_letters = open_tables(spark, pipeline)[0], open_dead_letters(spark, pipeline)
    if not dead_letters.exists():
        return Replayed(0, 0, {})
    # Frozen, so that what is lost of it in memory and read again has no letters of later micro-batches.
    letters = dead_letters.frozen()
    if where is not None:
        try:
            letters = letters.filter(where)
        except AnalysisException as error:
            raise PipelineError(f"--where: {reason_of(error)}") from error
    # The same record may be there twice, if a new checkpoint has read its topic again.
    letters = letters.select(*RECORD_COLUMNS).dropDuplicates(PLACE_COLUMNS)
    try:
        decoding = RecordDecoder(pipeline).current()
    except UnusableSchema as error:
        if not may_lack_schema:
            raise
        count = letters.count()
        return Replayed(0, 0, {str(error): count} if count else {})
    with without_ansi(spark), persisted(rows_of(letters, decoding, pipeline)) as records:
        good = records.filter(f.col("error").isNull())
        if pipeline.table.mode.is_keyed:
            put_back, there_before = good.count(), 0
            if put_back and not dry_run:
                _merge(table, pipeline, good)
                dead_letters.remove(good.select(*PLACE_COLUMNS))
        else:
            put_back, there_before = _append(table, dead_letters, pipeline, good, dry_run=dry_run)
        return Replayed(put_back, there_before, _reasons(records, decoding))


def _append(
    table: LakehouseTable, dead_letters: MicroBatchSink, pipeline: PipelineSettings, good: DataFrame, *, dry_run: bool
) -> tuple[int, int]:
    """Append what the table lacks. Returns the numbers of records appended, and of those that it had."""
    # Before the table is read: a concurrent replay has the same number, or one of the two finds the other's rows.
    number = table.committed(REPLAYS) + 1
    # Without its plan: that reads the table, whose columns the commit may change.
    missing = _without(good, table).localCheckpoint()
    count, total = missing.count(), good.count()
    if dry_run or not total:
        return count, total - count
    if count:
        try:
            table.append(missing.select(*table_columns(missing, pipeline)), REPLAYS, number)
        except AnotherDriver:
            raise AnotherDriver(FASTER.format(table.place)) from None
    stored = good.join(_places_in(table, good), PLACE_COLUMNS, "left_semi").select(*PLACE_COLUMNS)
    with persisted(stored) as places:
        found = places.count()
        dead_letters.remove(places)
    if found < total:
        raise AnotherDriver(FASTER.format(table.place))
    return count, total - count


def _merge(table: LakehouseTable, pipeline: PipelineSettings, good: DataFrame) -> None:
    # A number of its own: a merge that a table skips, because it has the number, would not be noticed.
    number = max(table.committed(REPLAYS) + 1, time.time_ns() // 1_000_000)
    keyed = pipeline.table.keyed_rows
    assert keyed is not None, "or they are appended"
    with persisted(changes_of(good.select(*table_columns(good, pipeline), DELETED), keyed)) as changes:
        table.merge(changes, REPLAYS, number, newer_letter)
    if table.committed(REPLAYS) != number:
        raise AnotherDriver(FASTER.format(table.place))


def _without(records: DataFrame, table: LakehouseTable) -> DataFrame:
    """Return the records that a table lacks."""
    if not table.exists():
        return records
    return records.join(_places_in(table, records), PLACE_COLUMNS, "left_anti")


def _places_in(table: LakehouseTable, records: DataFrame) -> DataFrame:
    """Return the places of the table's rows, of those files that may have some of the records."""
    # As numbers: Python's times of day are ambiguous where clocks are put back.
    time_us = f.unix_micros("timestamp")
    bounds = (f.min(time_us), f.max(time_us), f.min("offset"), f.max("offset"))
    first_us, last_us, first, last = records.agg(*bounds).collect()[0]
    in_time = f.col("timestamp").between(f.timestamp_micros(f.lit(first_us)), f.timestamp_micros(f.lit(last_us)))
    rows = table.read().filter(in_time & f.col("offset").between(first, last))
    return rows.select(*PLACE_COLUMNS)


def _reasons(records: DataFrame, decoding: RecordDecoding) -> Mapping[str, int]:
    """Return how often each reason keeps a record from being put back, the most frequent first."""
    dead = records.filter(f.col("error").isNotNull())
    error = dead_letter_columns(decoding, f.lit(0))[len(RECORD_COLUMNS)]
    counted = dead.select(error).groupBy("error").count().orderBy(f.desc("count"), "error")
    return {row["error"] or FILTERED: row["count"] for row in counted.collect()}
