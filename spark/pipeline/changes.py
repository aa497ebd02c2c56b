"""Changes of tables with keys: each key of a topic has one row, from its newest record, and some records delete it.

A key stays in one partition as long as the topic does not grow, and there offsets tell what is newer. Between
partitions timestamps do. In mode `changelog` the values are envelopes of Debezium, whose `after` is the row.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from anabranch.spark.pipeline.decode import Decoding
from anabranch.spark.pipeline.errors import SettingError

IDENTITY_COLUMNS = ("topic", "key")
"""Columns whose values only one row of a table with keys has."""
UNIQUE = "anabranch.unique"
"""Property of a table with keys: names of those columns."""
DELETED = "_anabranch_deleted"
"""Column of decoded records: true if the record deletes its row. No field of values may have the name."""
WRITES, DELETE = ("c", "u", "r"), "d"
"""Debezium's operations that give a row (create, update, read), and the one that takes it."""


def without_envelopes(records: DataFrame, decoding: Decoding) -> DataFrame:
    """Replace the envelope in `data` by the row in it, and say which records delete theirs. Raises SettingError.

    Envelopes may have Kafka Connect's own around them, `schema` and `payload`. Those without a row become errors.
    """
    path, kind = "data", decoding.schema
    if isinstance(kind, StructType) and "payload" in kind.names:
        path, kind = "data.payload", kind["payload"].dataType
    names = kind.names if isinstance(kind, StructType) else []
    for name in ("after", "op"):
        if name not in names:
            raise SettingError(
                "table.mode",
                f"changelog needs Debezium's envelope, but the schema has no field {name}: {', '.join(names)}",
            )
    op, after = f.col(f"{path}.op"), f.col(f"{path}.after")
    deleted = f.col(DELETED) | f.coalesce(op == DELETE, f.lit(False))
    error = (
        f.when(f.col("error").isNotNull(), f.col("error"))
        .when(deleted | (op.isin(*WRITES) & after.isNotNull()), f.lit(None))
        .when(op.isNull(), f.lit("op: missing, so this is no envelope of Debezium"))
        .when(op.isin(*WRITES), f.concat(f.lit("after: missing, though op is "), op))
        .otherwise(f.concat(f.lit("op: expected c, u, r or d, found "), op))
    )
    return records.withColumns({"error": error, DELETED: deleted, "data": after})


def check_key(records: DataFrame, decoding: Decoding | None) -> DataFrame:
    """Add an error to records without a key. Raises SettingError for keys that cannot be compared."""
    if decoding is not None and _has_map(decoding.schema):
        raise SettingError("key.format", "keys with a map in them cannot be compared, so they do not name a row")
    missing = f.col("error").isNull() & f.col("key").isNull()
    error = f.when(missing, f.lit("key: missing, so the record belongs to no row")).otherwise(f.col("error"))
    return records.withColumn("error", error)


def newest_of_each_key(rows: DataFrame) -> DataFrame:
    """Return the newest row of each topic and key: by offset within a partition, else by timestamp."""
    whole = f.struct(*rows.columns).alias("row")
    # One shuffle for both steps.
    spread = rows.repartition(*IDENTITY_COLUMNS)
    of_partition = spread.groupBy(*IDENTITY_COLUMNS, "partition").agg(f.max_by(whole, "offset").alias("row"))
    age = f.struct("row.timestamp", "row.offset")
    return of_partition.groupBy(*IDENTITY_COLUMNS).agg(f.max_by("row", age).alias("row")).select("row.*")


def check_mode(place: str, *, is_keyed: bool, was_keyed: bool) -> None:
    """Raise SettingError for a table that has rows of the other kind of mode."""
    if is_keyed and not was_keyed:
        message = "has been appended to, so a key may have several rows already"
    elif was_keyed and not is_keyed:
        message = "has one row for each key, and appended records would end that"
    else:
        return
    raise SettingError("table.mode", f"{place} {message}; use another table, and a new checkpoint")


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(each.dataType) for each in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))
