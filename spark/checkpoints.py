"""Checkpoints that a query of one source continues after the other: the direct source, and Spark's Kafka source.

Both write offsets by topic and partition. The direct source adds the ids of topics, which the Kafka source cannot read;
it takes offsets without ids itself.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from anabranch.spark.checkpoint_format import COMMITS, HEADER_LINES, OFFSETS, TOPIC_ID, JsonOffsets, source_offsets
from anabranch.spark.connect import ConnectError, is_connect


@dataclass(frozen=True, slots=True)
class OffsetFiles:
    """The numbered files of a folder of a checkpoint: of Spark's, one for each of the newest micro-batches."""

    spark: SparkSession
    checkpoint: str
    folder: str = OFFSETS

    def numbers(self) -> Sequence[int]:
        """Return the numbers of the micro-batches, in order."""
        manager, folder = self._manager()
        if not manager.exists(folder):
            return ()
        names = [status.getPath().getName() for status in manager.list(folder)]
        return sorted(int(name) for name in names if name.isdigit())

    def read(self, number: int) -> list[str]:
        """Return the lines of a file."""
        manager, folder = self._manager()
        stream = manager.open(self._jvm.org.apache.hadoop.fs.Path(folder, str(number)))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).split("\n")
        finally:
            stream.close()

    def replace(self, number: int, lines: Sequence[str]) -> None:
        """Replace a file in one step. The folder may be new."""
        manager, folder = self._manager()
        manager.mkdirs(folder)
        output = manager.createAtomic(self._jvm.org.apache.hadoop.fs.Path(folder, str(number)), True)
        output.write("\n".join(lines).encode())
        output.close()

    def _manager(self) -> tuple[Any, Any]:
        folder = self._jvm.org.apache.hadoop.fs.Path(f"{self.checkpoint.rstrip('/')}/{self.folder}")
        settings = self.spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - Spark's files have no other way
        found = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        return found.create(folder, settings), folder

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm  # noqa: SLF001 - as above


def drop_topic_ids(spark: SparkSession, checkpoint: str) -> int:
    """Make a checkpoint of the direct source one of the Kafka source, while no query uses it.

    Returns the number of files that were changed. A checkpoint without ids stays as it is. Raises ConnectError.
    """
    if is_connect(spark):
        raise ConnectError(
            "drop_topic_ids reads and writes files through a JVM of its own process, which Spark Connect has not: "
            "call it with a session of spark.session.build_session"
        )
    return _replace_offsets(spark, checkpoint, _without_ids)


def forget_topics(spark: SparkSession, checkpoint: str, topics: Collection[str]) -> None:
    """Make a stopped query of the Kafka source start some topics from the beginning."""

    def without(found: dict[str, Any]) -> dict[str, Any]:
        return {topic: each for topic, each in found.items() if topic not in topics}

    _replace_offsets(spark, checkpoint, without)


def _replace_offsets(spark: SparkSession, checkpoint: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Change the offsets of each source of each micro-batch. Returns the number of files that were changed."""

    def changed_line(line: str) -> str:
        try:
            found = json.loads(line)
        except ValueError:
            return line
        if not isinstance(found, dict) or (wanted := change(found)) == found:
            return line  # as another source may have written it
        return json.dumps(wanted, separators=(",", ":"))

    files, changed = OffsetFiles(spark, checkpoint), 0
    for number in files.numbers():
        lines = files.read(number)
        wanted = [*lines[:HEADER_LINES], *map(changed_line, lines[HEADER_LINES:])]
        if wanted != lines:
            files.replace(number, wanted)
            changed += 1
    return changed


def newest_offsets(spark: SparkSession, checkpoint: str) -> JsonOffsets | None:
    """Return the offsets of the newest micro-batch of a query with one source; None if there is none."""
    files = OffsetFiles(spark, checkpoint)
    numbers = files.numbers()
    return source_offsets(files.read(numbers[-1])) if numbers else None


def committed_offsets(spark: SparkSession, checkpoint: str) -> JsonOffsets | None:
    """Return the offsets of the newest micro-batch that is done, of a query with one source; None if there is none."""
    files = OffsetFiles(spark, checkpoint)
    done = set(files.numbers()) & set(OffsetFiles(spark, checkpoint, COMMITS).numbers())
    return source_offsets(files.read(max(done))) if done else None


def _without_ids(found: dict[str, Any]) -> dict[str, Any]:
    """Return the offsets of a source without topic ids."""
    return {
        topic: {key: value for key, value in each.items() if key != TOPIC_ID} if isinstance(each, dict) else each
        for topic, each in found.items()
    }
