"""Small files beside Spark's own, on any file system that Hadoop knows: Spark has no Python interface to them."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class HadoopFolder:
    """A folder or URL."""

    spark: SparkSession
    place: str

    def read(self, name: str) -> str | None:
        """A file's text, or None when it is not there."""
        system, path = self._at(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Put a file there, over an older one."""
        self._write(name, text, over=True)

    def write_new(self, name: str, text: str) -> bool:
        """Put a file there if there is none; whether it is this one."""
        try:
            self._write(name, text, over=False)
        except Exception:
            # Java's; there is one class for each file system's way to say it.
            if not self.has(name):
                raise
            return False
        return True

    def has(self, name: str) -> bool:
        """Whether a file or folder is there."""
        system, path = self._at(name)
        return bool(system.exists(path))

    def remove(self, name: str) -> None:
        """Let a file go, if it is there."""
        system, path = self._at(name)
        system.delete(path, False)

    def _write(self, name: str, text: str, *, over: bool) -> None:
        system, path = self._at(name)
        stream = system.create(path, over)
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
