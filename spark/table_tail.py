"""Tables of topics together with the records that are not in them yet: each record of the topic once.

    spark = build_session("orders", settings=catalog_settings("http://kafka:9644"), table_formats=["iceberg"])
    orders = table_and_tail(
        spark, "anabranch.default.orders", {"kafka.bootstrap.servers": "kafka:9092"},
        registry="http://kafka:9644/schema-registry",  # for keys and values whose schemas are in one
    )

The summary of a snapshot says which offset of each partition it ends at. The rest is read from there on by Spark's
Kafka source, up to the last stable offsets of now, and becomes rows by the rules of the table: `tables.rows`, in the
tasks.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.client.configs import Resource, describe_configs
from anabranch.protocol.ids import uuid_text
from anabranch.spark.kafka_sink import connecting
from anabranch.spark.pipeline.arrow_values import arrow_type, spark_type
from anabranch.tables.parts import answer, decoder_of
from anabranch.tables.registry import SchemaRegistry
from anabranch.tables.requests import Finding, Question, Registry
from anabranch.tables.rows import RECORD_SCHEMA, RowMaker
from anabranch.tables.schema import decode_schema, encode_schema, numbered
from anabranch.tables.snapshots import OFFSETS, OFFSETS_OF, TOPIC_ID
from anabranch.tables.upkeep.options import DEFAULTS, ENABLE, TableOptions

EARLIEST: Final = -2


def catalog_settings(admin: str, token: str = "", *, name: str = "anabranch") -> dict[str, str]:
    """Return the settings of a session for a catalog of a name: the one at the admin port with this URL."""
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": f"{admin.rstrip('/')}/iceberg"}
    if token:
        settings[".token"] = token
    return {f"spark.sql.catalog.{name}{key}": value for key, value in settings.items()}


class TailError(ValueError):
    """A table cannot be read with its tail. The text is the one line to show."""


class _Snapshot(NamedTuple):
    """A table's current snapshot."""

    snapshot_id: int
    """0: there is none."""
    ends: Mapping[str, int]
    """End offset of each partition in it."""
    topic_id: str


class _Topic(NamedTuple):
    """A topic as the cluster describes it."""

    topic_id: str
    partitions: list[int]
    options: TableOptions


def table_and_tail(
    spark: SparkSession,
    table: str,
    options: Mapping[str, str],
    *,
    topic: str = "",
    registry: str = "",
    registry_credentials: str | None = None,
) -> DataFrame:
    """Return the rows of a table's current snapshot, and those of the topic's records since, committed until now.

    `table` is its name in SQL, `options` are those of Spark's Kafka source, with `kafka.` before the properties of the
    client. `topic` is the last part of the table's name if it is not given. `registry` is a URL, `registry_credentials`
    `user:password`. Raises TailError, ClientError, SchemaError, UnknownSchemaError and RegistryError.
    """
    name = topic or table.rpartition(".")[2].strip("`")
    snapshot = _snapshot(spark, table)
    # Without a snapshot the table is empty, and one that comes now has what the tail has.
    if snapshot.snapshot_id:
        rows = spark.read.option("versionAsOf", snapshot.snapshot_id).table(table)
    else:
        rows = spark.read.table(table).limit(0)
    described = _describe(options, name)
    if snapshot.snapshot_id and snapshot.topic_id != described.topic_id:
        raise TailError(
            f"{table} has records of another topic than {name} is now, with the id {snapshot.topic_id} and not "
            f"{described.topic_id}: read table and topic apart"
        )
    found = _decoding(rows, name, described.options, Registry(registry, registry_credentials) if registry else None)
    starting = {str(index): snapshot.ends.get(str(index), EARLIEST) for index in described.partitions}
    records = (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({name: described.partitions}))
        .option("startingOffsets", json.dumps({name: starting}))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    columns = [part.name for part in RECORD_SCHEMA if part.name != "error"]
    schema = spark_type(pa.struct(list(decode_schema(found.schema))))
    tail = records.select(*columns).mapInArrow(_row_maker(found), schema)
    return rows.unionByName(tail, allowMissingColumns=True)


def _snapshot(spark: SparkSession, table: str) -> _Snapshot:
    """Return the current snapshot. Raises TailError."""
    newest = spark.read.table(f"{table}.snapshots").orderBy(f.desc("committed_at")).limit(1)
    for snapshot_id, summary in newest.select("snapshot_id", "summary").collect():
        noted = summary if OFFSETS in summary else _properties(spark, table)
        for name in (OFFSETS, TOPIC_ID):
            if name not in noted:
                raise TailError(f"{table} is not the table of a topic: its snapshot has no {name}")
        if noted.get(OFFSETS_OF, str(snapshot_id)) != str(snapshot_id):
            raise TailError(f"{table} has changed meanwhile: try again")
        return _Snapshot(snapshot_id, json.loads(noted[OFFSETS]), noted[TOPIC_ID])
    return _Snapshot(0, {}, "")


def _properties(spark: SparkSession, table: str) -> Mapping[str, str]:
    """Return the properties of a table: in another REST catalog they say what the snapshot says in ours."""
    return {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}


def _describe(options: Mapping[str, str], topic: str) -> _Topic:
    with connecting(options)() as cluster:
        (found,) = cluster.topics([topic])
        configs = {each.name: each.value for each in describe_configs(cluster, Resource("topic", topic))}
    # A table that is no longer kept can still be read.
    parsed = TableOptions.parse(lambda name: "true" if name == ENABLE else configs.get(name) or DEFAULTS[name])
    assert parsed is not None, "it is enabled"
    indexes = sorted(each.partition_index for each in found.partitions)
    return _Topic(uuid_text(found.topic_id), indexes, parsed)


def _decoding(rows: DataFrame, topic: str, options: TableOptions, registry: Registry | None) -> Finding:
    """Return how the records of the tail become rows: as the node will do, unless a schema changes before."""
    columns = pa.schema([pa.field(part.name, arrow_type(part.dataType)) for part in rows.schema.fields])
    value = options.value.asked(f"{topic}-value", registry)
    key = options.key.asked(f"{topic}-key", registry)
    return answer(Question(value, key, encode_schema(numbered(columns))), _clients(value.registry, key.registry))


def _clients(*places: Registry | None) -> Mapping[Registry, SchemaRegistry]:
    return {place: SchemaRegistry(place.url, place.credentials) for place in places if place is not None}


def _row_maker(found: Finding) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the function that tasks call: rows from records of the Kafka source."""
    plain = found.to_json()

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoding = Finding.from_json(plain)
        clients = _clients(decoding.value.registry, decoding.key.registry)
        value, key = (
            decoder_of(part, None if part.registry is None else clients[part.registry])
            for part in (decoding.value, decoding.key)
        )
        maker = RowMaker(decode_schema(decoding.schema), value, key)
        for batch in batches:
            yield maker.rows(_records(batch))

    return make


def _records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records of the Kafka source as those that rows are made of."""
    columns: list[Any] = [
        pa.nulls(len(batch), part.type) if part.name == "error" else batch[part.name].cast(part.type)
        for part in RECORD_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
