"""History of each key (a slowly changing dimension of type 2): a row for each record, and when it was the newest.

A record is a version of its key's row, and so is a deletion, without fields. The versions of a key are ordered by
offset within a partition, and between partitions by the newest timestamp up to each. A version is valid from its time
to that of the next one. Times do not go back within a partition: a record with an earlier timestamp than one before it
has the time of that.

A merge orders all versions of the keys that have changed, those in the table and the new ones. It inserts the new, and
changes the times of others where they differ. So it does not matter in which order records come, or whether they come
again: a version is known by its topic, key, partition, offset and timestamp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from anabranch.spark.pipeline.changes import (
    DELETED,
    IDENTITY_COLUMNS,
    IS_CURRENT,
    VALID_FROM,
    VALID_TO,
    VERSION_COLUMNS,
)
from anabranch.spark.pipeline.merge import (
    CHANGE,
    CHANGES,
    BucketFunction,
    Row,
    assigned,
    bounds_of,
    fitted_rows,
    java_of,
)
from anabranch.spark.pipeline.names import quoted

IS_NEW = "_anabranch_is_new"
"""Column of changes: true for a version that the table does not have."""
TIMES = (VALID_FROM, VALID_TO, IS_CURRENT)
_AT = "_anabranch_at"


@dataclass(frozen=True, slots=True)
class HistoryMerge:
    """A merge of versions into a table of the same columns."""

    rows: DataFrame
    """New versions, and those whose times have changed, of which the other columns are not needed."""
    buckets: tuple[BucketFunction, ...]

    @classmethod
    def of(
        cls, rows: DataFrame, columns: StructType, table: DataFrame, buckets: tuple[BucketFunction, ...] = ()
    ) -> "HistoryMerge":
        """Return the merge of records into a table with some columns, whose rows are those of `table`."""
        new = fitted_rows(rows.drop(DELETED), columns).dropDuplicates(list(VERSION_COLUMNS))
        conditions = bounds_of(new, buckets, lambda name: f.col(quoted(name)))
        known = table.filter(reduce(and_, conditions, f.lit(True)))
        known = known.join(new.select(*IDENTITY_COLUMNS).distinct(), list(IDENTITY_COLUMNS), "left_semi")
        return cls(_changed(new, known.select(*VERSION_COLUMNS, *TIMES)), buckets)

    def run(self, begin: Callable[[Any, Any], Any], end: str, old: Row) -> None:
        """Merge into a table, as `TableMerge` says."""
        same_row = [old(name) == CHANGE(name) for name in VERSION_COLUMNS]
        condition = reduce(and_, [*same_row, *bounds_of(self.rows, self.buckets, old)])
        merge = begin(java_of(self.rows.alias(CHANGES)), java_of(condition))
        merge = merge.whenMatched().update(assigned(self.rows.sparkSession, *TIMES))
        getattr(merge.whenNotMatched(java_of(CHANGE(IS_NEW))).insertAll(), end)()


def _changed(new: DataFrame, known: DataFrame) -> DataFrame:
    """Return new versions with their times, and known ones whose times are others now."""
    version = list(VERSION_COLUMNS)
    new = new.drop(*TIMES).join(known.select(*version), version, "left_anti")
    every = known.withColumn(IS_NEW, f.lit(False)).unionByName(
        new.select(*version, f.lit(True).alias(IS_NEW)), allowMissingColumns=True
    )
    before = Window.partitionBy(*IDENTITY_COLUMNS, "partition").orderBy("offset")
    before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    order = Window.partitionBy(*IDENTITY_COLUMNS).orderBy(_AT, "partition", "offset")
    following = f.lead(_AT).over(order)
    times = {VALID_FROM: f.col(_AT), VALID_TO: following, IS_CURRENT: following.isNull()}
    every = every.withColumn(_AT, f.max("timestamp").over(before))
    same = reduce(and_, (column.eqNullSafe(f.col(name)) for name, column in times.items()))
    every = every.select(*version, IS_NEW, same.alias("same"), *(column.alias(name) for name, column in times.items()))
    added = new.join(every.filter(f.col(IS_NEW)).drop("same"), version)
    moved = every.filter(~f.col(IS_NEW) & ~f.col("same")).drop("same")
    return added.unionByName(moved, allowMissingColumns=True)
