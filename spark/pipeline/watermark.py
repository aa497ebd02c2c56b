"""Stores the newest event time after each micro-batch, which gives the watermark of the next one.

The file is next to the checkpoint's own files, and written before Spark commits its micro-batch. When a micro-batch is
repeated, the file of the one before it exists, so the same records are late again. With a table for each topic, each
has a folder of its own, and a file for each micro-batch, even one without records of the topic.
"""

import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from anabranch.spark.pipeline.files import HadoopFolder

FOLDER = "anabranch-watermark"
MARKS_KEPT = 3
UNITS_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}


def duration_us(text: str) -> int:
    """Return the microseconds in a time such as '10 seconds'."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", text.lower())
    assert found is not None, "the settings have checked it"
    return int(found[1]) * UNITS_US[found[2]]


@dataclass(slots=True)
class WatermarkStore:
    """Newest event times in one checkpoint, in any file system that Hadoop supports."""

    spark: SparkSession
    checkpoint: str
    delay: str
    topic: str | None = None
    """With a table for each topic: the topic."""

    def watermark_us(self, batch_id: int) -> int | None:
        """Return the oldest time that is not late in this micro-batch; None before the first file."""
        newest = self._read(batch_id - 1)
        return None if newest is None else newest - duration_us(self.delay)

    def write(self, batch_id: int, newest_us: int | None) -> None:
        """Store the newest time up to this micro-batch. A repeated one writes the same again."""
        known = [mark for mark in (self._read(batch_id - 1), newest_us) if mark is not None]
        if not known:
            return
        self._folder.write(str(batch_id), str(max(known)))
        self._folder.remove(str(batch_id - MARKS_KEPT))

    def _read(self, batch_id: int) -> int | None:
        text = self._folder.read(str(batch_id))
        return None if text is None else int(text)

    @property
    def _folder(self) -> HadoopFolder:
        folder = f"{self.checkpoint.rstrip('/')}/{FOLDER}"
        return HadoopFolder(self.spark, folder if self.topic is None else f"{folder}/{self.topic}")
