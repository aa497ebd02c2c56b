"""A table of a topic as tests read it: rows as Arrow, pandas or Python have them."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anabranch.extras import MissingExtra, needed
from anabranch.testing.process import BrokerError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a topic as it was when it was asked for. Later records are in another one."""

    metadata_location: str
    """URI of Iceberg's metadata, for an engine."""

    def to_arrow(self) -> "pa.Table":
        """Return all rows, ordered by partition and offset. Raises BrokerError without the extra `tables`."""
        try:
            with needed("a table of the test broker"):
                import pyarrow as pa
                import pyarrow.compute as pc
                from pyiceberg.table import StaticTable
        except MissingExtra as error:
            raise BrokerError(str(error)) from None
        found = StaticTable.from_metadata(self.metadata_location).scan().to_arrow()
        places = pa.table({name: pc.struct_field(found["_kafka"], name) for name in ("partition", "offset")})
        order = pc.sort_indices(places, [("partition", "ascending"), ("offset", "ascending")])
        return found.take(order)

    def to_pandas(self) -> "pd.DataFrame":
        """Return all rows, as `to_arrow`. Raises BrokerError also without pandas."""
        if find_spec("pandas") is None:
            raise BrokerError("to_pandas needs pandas: pip install pandas")
        return self.to_arrow().to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all rows as dicts, as `to_arrow`."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows
