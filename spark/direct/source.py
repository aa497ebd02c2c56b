"""`spark.read.format("anabranch")` and `spark.readStream.format("anabranch")`: a Python data source over objects.

The driver plans from the catalog, tasks read objects; no node is asked for anything. Options and columns are those of
Spark's Kafka source. Spark asks for name and schema in a process of its own for each query, which is why the readers,
with numpy and Arrow behind them, are imported only where something is read.
"""

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark.direct.options import parse_options, schema_of
from spark.direct.worker import freeze_worker

if TYPE_CHECKING:
    from spark.direct.readers import BatchSourceReader, StreamSourceReader
    from spark.storage import StorageLocation

NAME: Final = "anabranch"


class AnabranchSource(DataSource):
    """The data source; `spark.direct.register` makes it known to a session."""

    default_parallelism = 1
    """Tasks that can run at the same time, for readers that `minPartitions` does not tell."""

    _planned = False

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """Columns as the Kafka source has them; option `columns` names those that are wanted."""
        freeze_worker()
        return schema_of(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> "BatchSourceReader":
        """Read what there is now."""
        from spark.direct.readers import BatchSourceReader

        reader = BatchSourceReader(self._location(), parse_options(self.options), schema, self.default_parallelism)
        self._planned = True
        return reader

    def streamReader(self, schema: StructType) -> "StreamSourceReader":  # noqa: N802 - Spark's name
        """Read on and on."""
        from spark.direct.readers import STREAM_READER

        options = parse_options(self.options, streaming=True)
        reader = STREAM_READER(self._location(), options, schema, self.default_parallelism)
        self._planned = True
        return reader

    def _location(self) -> "StorageLocation":
        from spark.storage import find_storage

        return find_storage(self.options)

    def __getstate__(self) -> dict[str, Any]:
        """Once planned, it goes to tasks, which need no options (a catalog's URL may hold a password)."""
        return {**self.__dict__, "options": {}} if self._planned else dict(self.__dict__)
