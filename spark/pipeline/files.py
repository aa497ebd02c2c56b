"""Small files in any file system that Hadoop supports. Spark has no Python interface to them."""

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

CREATE_IF_ABSENT = "fs.option.create.conditional.overwrite"
"""Hadoop's option by which an object store decides at the end of a write whether the file is new (HADOOP-19256)."""


@dataclass(frozen=True, slots=True)
class HadoopFolder:
    """A folder or URL."""

    spark: SparkSession
    place: str

    def read(self, name: str) -> str | None:
        """Return a file's text, or None if it does not exist."""
        system, path = self._at(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, replacing an older one."""
        system, path = self._at(name)
        self._fill(system.create(path, True), text)

    def write_new(self, name: str, text: str) -> bool:
        """Write a file unless one exists. Of several writers one succeeds. Returns whether it was written."""
        system, path = self._at(name)
        try:
            if system.hasPathCapability(path, CREATE_IF_ABSENT):
                # In S3 `create` would look first and write later.
                self._fill(system.createFile(path).must(CREATE_IF_ABSENT, True).build(), text)
            else:
                self._fill(system.create(path, False), text)
        except Exception:
            # An exception of Java; its class depends on the file system.
            if not self.has(name):
                raise
            return False
        return True

    def has(self, name: str) -> bool:
        """Return whether a file or folder exists."""
        system, path = self._at(name)
        return bool(system.exists(path))

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it, if it exists."""
        system, path = self._at(name)
        system.delete(path, True)

    def _fill(self, stream: Any, text: str) -> None:
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _at(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.place.rstrip('/')}/{name}")
        return path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()), path  # noqa: SLF001 - see above

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm  # noqa: SLF001 - see above


def query_id_of(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query whose checkpoint it is; None before its first start."""
    metadata = HadoopFolder(spark, checkpoint).read("metadata")
    return None if metadata is None else str(json.loads(metadata)["id"])
