"""Changes of tables with keys: each key of a topic has one row, from its newest record, and some records delete it.

A key stays in one partition as long as the topic does not grow, and there offsets tell what is newer. Between
partitions timestamps do. In mode `changelog` the values are envelopes of Debezium, whose `after` is the row.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from anabranch.spark.pipeline.decode import Decoding
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.sections import KeyedRows

IDENTITY_COLUMNS = ("topic", "key")
"""Columns whose values only one row of a table with keys has."""
VERSION_COLUMNS = (*IDENTITY_COLUMNS, "partition", "offset", "timestamp")
"""The same of a table with history."""
UNIQUE = "anabranch.unique"
"""Property of a table with keys: names of those columns."""
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
"""Columns of a table with history."""
IS_DELETED, DELETED_AT = "deleted", "deleted_at"
"""Columns of a table that marks what is deleted; with history the first only."""
HAS_ROW = "_anabranch_has_row"
"""Column of changes of such a table: true if the change has a row, also if it is deleted since."""
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


def newest_with_last_row(rows: DataFrame) -> DataFrame:
    """Return the newest record of each topic and key, with the fields of the newest one that has a row."""
    whole = f.struct(*rows.columns)
    live = f.when(~f.col(DELETED), whole)
    spread = rows.repartition(*IDENTITY_COLUMNS)
    of_partition = spread.groupBy(*IDENTITY_COLUMNS, "partition").agg(
        f.max_by(whole, "offset").alias("row"), f.max_by(live, f.when(~f.col(DELETED), f.col("offset"))).alias("live")
    )
    ages = {name: f.struct(f"{name}.timestamp", f"{name}.offset") for name in ("row", "live")}
    # A struct of nulls would count as an age.
    ages["live"] = f.when(f.col("live").isNotNull(), ages["live"])
    found = of_partition.groupBy(*IDENTITY_COLUMNS).agg(
        *(f.max_by(name, age).alias(name) for name, age in ages.items())
    )
    has_row = f.col("live").isNotNull()
    own = {*VERSION_COLUMNS, "headers", IS_DELETED, DELETED_AT, DELETED}

    def column(name: str) -> Column:
        of_row = f.col("row").getField(name)
        return of_row if name in own else f.when(has_row, f.col("live").getField(name)).otherwise(of_row)

    return found.select(*(column(name).alias(name) for name in rows.columns), has_row.alias(HAS_ROW))


def changes_of(rows: DataFrame, keyed: KeyedRows) -> DataFrame:
    """Return what is merged into a table of good records."""
    if keyed is KeyedRows.HISTORY:
        return rows
    return newest_with_last_row(rows) if keyed is KeyedRows.MARKED else newest_of_each_key(rows)


def unique_columns(keyed: KeyedRows | None) -> str | None:
    """Return the property `UNIQUE` of a table; None without keys."""
    if keyed is None:
        return None
    return ", ".join(VERSION_COLUMNS if keyed is KeyedRows.HISTORY else IDENTITY_COLUMNS)


def check_mode(place: str, keyed: KeyedRows | None, found: str | None) -> None:
    """Raise SettingError for a table, with the property `UNIQUE` as found, that has rows of another kind of mode."""
    wanted = unique_columns(keyed)
    if wanted == found:
        return
    if found is None:
        message = "has been appended to, so a key may have several rows already"
    elif wanted is None:
        message = "has one row for each key, and appended records would end that"
    elif keyed is KeyedRows.HISTORY:
        message = "has one row for each key, of which the former ones are not known"
    else:
        message = "has the history of each key, and so several rows"
    setting = "table.mode" if None in {found, wanted} else "table.history"
    raise SettingError(setting, f"{place} {message}; use another table, and a new checkpoint")


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(each.dataType) for each in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))
