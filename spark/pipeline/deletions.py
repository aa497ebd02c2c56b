"""Deletions of a table with keys, remembered for as long as an older record of their key may still be read.

The partitions of a topic are read side by side, and after a topic has grown a key's older record may be in another
partition than the one that deletes it. Read after the deletion, it would be the row of a key that is gone.

A deletion is forgotten when each partition of its topic has passed its time: with a later record, or with nothing to
read in a later micro-batch (Spark reads something of each partition that has something).

The deletions are files next to the checkpoint's own, and complete before the table's commit. A micro-batch begins with
those of the one before it, and so does its repetition.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from secrets import token_hex
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.checkpoint_format import source_offsets
from anabranch.spark.checkpoints import OffsetFiles
from anabranch.spark.pipeline.changes import DELETED, IDENTITY_COLUMNS, newest_of_each_key
from anabranch.spark.pipeline.files import HadoopFolder
from anabranch.spark.pipeline.merge import fitted_rows, newer, row_of

FOLDER = "anabranch-deletions"
BATCH = "batch"
"""Column of a deletion: number of the micro-batch that it was read in."""
CLOCKS_US = 300_000_000
"""Difference of the clocks of producers: a record may be so much older than the one before it in its partition."""
PENDING_US = 1_200_000_000
"""Time for which a record may be in a partition that seems to have nothing to read.

It is part of an open transaction (brokers allow 15 minutes by default), or not in an object yet.
"""

Newest = Mapping[str, Mapping[str, int]]
"""Newest timestamps in microseconds, by topic and partition, of the records read since the first deletion."""


@dataclass(frozen=True, slots=True)
class DeletionStore:
    """Deletions of one table in a checkpoint, in any file system that Hadoop supports."""

    spark: SparkSession
    checkpoint: str
    topic: str | None = None
    """With a table for each topic: the topic."""

    def without_older(self, changes: DataFrame, batch_id: int) -> DataFrame:
        """Return the changes of a micro-batch without those that are older than the deletion of their key."""
        if (known := self._rows(changes, batch_id - 1)) is None:
            return changes
        old, new = row_of("deletion"), row_of("change")
        is_older = [*(old(name) == new(name) for name in IDENTITY_COLUMNS), ~newer(old, new)]
        return changes.alias("change").join(known.alias("deletion"), is_older, "left_anti")

    def write(self, changes: DataFrame, records: DataFrame, batch_id: int, *, deletes: bool) -> None:
        """Store the deletions up to this micro-batch that may still be needed.

        `changes` has the newest record of each key, `records` are all of the micro-batch, and `deletes` says whether
        any of them deletes its row.
        """
        known = self._rows(changes, batch_id - 1)
        name, newest = None, None
        if deletes or known is not None:
            rows = _deletions(changes, batch_id)
            rows = rows if known is None else newest_of_each_key(known.unionByName(rows))
            newest = self._newest(records, batch_id)
            name = f"{batch_id}-{token_hex(8)}"
            rows.filter(~self._is_passed(newest, batch_id)).coalesce(1).write.parquet(self._path(name))
            if changes.sparkSession.read.parquet(self._path(name)).isEmpty():
                self._folder.remove(name)
                name = None
        self._keep(batch_id, name, newest)

    def skip(self, batch_id: int) -> None:
        """Take a micro-batch without records for the table."""
        if (known := self._known(batch_id - 1)) is not None:
            self._keep(batch_id, known["rows"], known["newest"])
        else:
            self._keep(batch_id, None, None)

    def _newest(self, records: DataFrame, batch_id: int) -> Newest:
        """Return the newest timestamps up to a micro-batch."""
        known = self._known(batch_id - 1)
        newest: dict[str, dict[str, int]] = {} if known is None else known["newest"]
        found = records.groupBy("topic", "partition").agg(f.max(f.unix_micros("timestamp")).alias("newest"))
        for row in found.collect():
            of_topic, partition = newest.setdefault(row["topic"], {}), str(row["partition"])
            of_topic[partition] = max(of_topic.get(partition, row["newest"]), row["newest"])
        return newest

    def _is_passed(self, newest: Newest, batch_id: int) -> Column:
        """Return the condition for a deletion that no older record can follow."""
        time = f.unix_micros("timestamp")
        now_us = int(datetime.now(UTC).timestamp() * 1_000_000)
        may_be_still = (f.col(BATCH) < batch_id) & (time < now_us - PENDING_US)
        before, after = self._offsets(batch_id - 1), self._offsets(batch_id)
        passed = ~f.col("topic").isin(list(after))
        for topic, ends in after.items():
            times = {partition: newest.get(topic, {}).get(partition, -inf) - CLOCKS_US for partition in ends}
            moving = [times[partition] for partition in ends if before.get(topic, {}).get(partition) != ends[partition]]
            of_all, of_moving = min(times.values(), default=inf), min(moving, default=inf)
            is_passed = (time < of_all) | (may_be_still & (time < of_moving))
            passed |= (f.col("topic") == topic) & is_passed
        return passed

    def _offsets(self, batch_id: int) -> dict[str, dict[str, int]]:
        """Return the ends of a micro-batch, by topic and partition."""
        files = OffsetFiles(self.spark, self.checkpoint)
        found = (source_offsets(files.read(batch_id)) if batch_id in files.numbers() else None) or {}
        return {
            topic: {partition: int(end) for partition, end in ends.items() if partition.isdigit()}
            for topic, ends in found.items()
        }

    def _rows(self, changes: DataFrame, batch_id: int) -> DataFrame | None:
        """Return the deletions after a micro-batch, with keys like those of the changes; None without any."""
        if (known := self._known(batch_id)) is None:
            return None
        rows = changes.sparkSession.read.parquet(self._path(known["rows"]))
        return fitted_rows(rows, _deletions(changes, batch_id).schema)

    def _known(self, batch_id: int) -> Any:
        """Return the name of the rows after a micro-batch, and the newest timestamps; None without deletions."""
        text = self._folder.read(str(batch_id))
        return None if text is None else json.loads(text)

    def _keep(self, batch_id: int, rows: str | None, newest: Newest | None) -> None:
        """Store what is known after a micro-batch, and delete what no repetition needs."""
        former, before, old = (self._known(number) for number in (batch_id, batch_id - 1, batch_id - 2))
        if rows is None:
            self._folder.remove(str(batch_id))
        else:
            self._folder.write(str(batch_id), json.dumps({"rows": rows, "newest": newest}))
        self._folder.remove(str(batch_id - 2))
        unused = {known["rows"] for known in (former, old) if known is not None}
        for name in unused - {rows, None if before is None else before["rows"]}:
            self._folder.remove(name)

    def _path(self, name: str) -> str:
        return f"{self._folder.place}/{name}"

    @property
    def _folder(self) -> HadoopFolder:
        folder = f"{self.checkpoint.rstrip('/')}/{FOLDER}"
        return HadoopFolder(self.spark, folder if self.topic is None else f"{folder}/{self.topic}")


def _deletions(changes: DataFrame, batch_id: int) -> DataFrame:
    """Return the changes of a micro-batch that delete their row."""
    columns = ["topic", "partition", "offset", "timestamp", "key"]
    return changes.filter(f.col(DELETED)).select(*columns, f.lit(batch_id).alias(BATCH))
