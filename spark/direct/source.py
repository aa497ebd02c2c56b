"""`spark.read.format("anabranch")` and `spark.readStream.format("anabranch")`: a Python data source over objects.

The driver plans from the catalog, and tasks read objects. No node is involved. Options and columns are those of Spark's
Kafka source. Spark asks for name and schema in a separate process for each query, so the readers, which import numpy
and Arrow, are imported only to read.
"""

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from anabranch.spark.direct.options import parse_options, schema_of
from anabranch.spark.direct.worker import freeze_worker

if TYPE_CHECKING:
    from anabranch.spark.direct.readers import BatchSourceReader, StreamSourceReader
    from anabranch.spark.storage import StorageLocation

NAME: Final = "anabranch"


FILTERING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""Module of the process in which Spark gives filters to a reader, and plans a read that has some."""


def _running_workers() -> Collection[str]:
    """Return the names of the modules of this process, with that of its main module."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return [*sys.modules, "" if main is None else main.name]


class AnabranchSource(DataSource):
    """The data source. `spark.direct.register` registers it with a session."""

    default_parallelism = 1
    """Number of tasks that can run concurrently, for reads without `minPartitions`."""

    _planned = False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns, as in the Kafka source, or those of the option `columns`."""
        freeze_worker()
        return schema_of(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> "BatchSourceReader":
        """Return a reader of the data that exists now."""
        from anabranch.spark.direct.readers import BatchSourceReader, FilteredSourceReader

        # Where it has no filters to give, Spark refuses a reader that takes some, if it does not find the setting that
        # allows it. It does not look into the session for that when `df.rdd` is planned, by its scheduler.
        kind = FilteredSourceReader if FILTERING_WORKER in _running_workers() else BatchSourceReader
        reader = kind(self._location(), parse_options(self.options), schema, self.default_parallelism)
        self._planned = True
        return reader

    def streamReader(self, schema: StructType) -> "StreamSourceReader":  # noqa: N802 - Spark's name
        """Return a reader of micro-batches."""
        from anabranch.spark.direct.readers import STREAM_READER

        options = parse_options(self.options, streaming=True)
        reader = STREAM_READER(self._location(), options, schema, self.default_parallelism)
        self._planned = True
        return reader

    def _location(self) -> "StorageLocation":
        from anabranch.spark.storage import find_storage

        return find_storage(self.options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without options once planned.

        Tasks do not need them, and a catalog's URL may contain a password.
        """
        return {**self.__dict__, "options": {}} if self._planned else dict(self.__dict__)
