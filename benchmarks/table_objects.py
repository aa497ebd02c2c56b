"""A topic as a table, by hand: one object with two views, beside a Parquet file next to the object (ADR 39).

Real records become version 1 objects, Parquet files of the same records, and objects that are both: with the columns
before the blocks (as first designed) or after them. Measured are bytes, Kafka's reads, what engines read and which
bytes they ask a store for, and what joining small objects writes. `benchmarks.table_columns` has the CPU of columns,
and `benchmarks.topic_tables` what tables cost a node.

    python -m benchmarks.table_objects [--quick] [--json FILE] [--only PART ...] [--topic NAME ...] [--share N]

Parts: bytes, fetch, engines, spark, joins. DuckDB, Polars and pyiceberg are measured where they are installed.
"""

import argparse
import asyncio
import importlib
import importlib.metadata
import io
import itertools
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from anabranch.compaction.joins.plan import RewriteSegment, plan_groups, plan_segments
from anabranch.compaction.settings import CompactionSettings
from anabranch.protocol.compression import Compression
from anabranch.s3stream.model import ObjectInfo, ObjectKind, ObjectState, RangeLocation, StreamRange
from anabranch.s3stream.object.format import IndexEntry, decode_block
from anabranch.s3stream.object.writer import BLOCK_BYTES
from anabranch.s3stream.store.local import LocalStore
from benchmarks.lab.columns import raw_table, records_of, typed_table
from benchmarks.lab.range_server import BUCKET, RangeServer, range_server
from benchmarks.lab.table_files import (
    GROUP_BYTES,
    TOPICS,
    Made,
    Topic,
    batches_of,
    blocks_at,
    blocks_first,
    columns_first,
    metadata_bytes,
    numbered,
    parquet_bytes,
    read_index_2,
    stored,
    version_1,
)
from benchmarks.support import CONSOLE, Report, middle, p99, parser

MIB = 1 << 20
DAY_S = 86_400
PARTS = ("bytes", "fetch", "engines", "spark", "joins")
CODEC = Compression.LZ4
"""Codec of the batches where one is enough."""
FETCHES = 2_000


def cpu_s() -> float:
    """Return CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Material:
    """A topic's batches and columns, made once."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.batches = batches_of(topic)
        plain = blocks_at(stored(self.batches, Compression.NONE), 0)
        records = pa.Table.from_batches(records_of(b"".join(plain.parts), plain.entries))
        assert len(records) == len(topic.records)
        self.records = records
        self.group_rows = max(1, int(GROUP_BYTES * len(records) / topic.value_bytes))
        self.raw = with_ids(raw_table(records))
        self.typed = with_ids(typed_table(records, topic.columns))

    def layouts(self, table: pa.Table, codec: Compression) -> list[Made]:
        """Return the files that an engine may meet: the separate one, and both orders in one object."""
        batches = stored(self.batches, codec)
        return [
            Made("beside", parquet_bytes(table, self.group_rows)),
            columns_first(batches, table, self.group_rows),
            blocks_first(batches, table, self.group_rows),
        ]


def with_ids(table: pa.Table) -> pa.Table:
    """Return the table with field ids."""
    schema = numbered(table.schema)
    return table.cast(schema)


def measure_bytes(report: Report, material: Material) -> None:
    """Sizes by codec, and those of their parts."""
    topic = material.topic
    name = topic.name
    report.add(f"{name}.rows", len(topic.records), "")
    report.add(f"{name}.value", topic.value_bytes / len(topic.records), "B/row")
    for kind, table in (("raw", material.raw), ("typed", material.typed)):
        file = parquet_bytes(table, material.group_rows)
        report.add(f"{name}.{kind}.parquet", len(file) / 1e6, "MB")
        report.add(f"{name}.{kind}.metadata", metadata_bytes(file) / 1e3, "KB")
        report.add(f"{name}.{kind}.row-groups", pq.ParquetFile(pa.BufferReader(file)).num_row_groups, "")
    for codec in Compression:
        batches = stored(material.batches, codec)
        first = version_1(batches)
        report.add(f"{name}.{codec.name.lower()}.version-1", len(first.data) / 1e6, "MB")
        for kind, table in (("raw", material.raw), ("typed", material.typed)):
            beside = parquet_bytes(table, material.group_rows)
            made = columns_first(batches, table, material.group_rows)
            report.add(f"{name}.{codec.name.lower()}.{kind}.one-object", len(made.data) / len(first.data), "x")
            both = (len(first.data) + len(beside)) / len(first.data)
            report.add(f"{name}.{codec.name.lower()}.{kind}.beside", both, "x")


# Kafka's reads


async def measure_fetch(report: Report, material: Material, home: Path, fetches: int) -> None:
    """Reads of blocks at random, each with its check, and of the index; both versions in turn, from one local store."""
    store = LocalStore("local", home / "objects", read_only=False)
    await store.open()
    made = [version_1(stored(material.batches, CODEC)), *material.layouts(material.typed, CODEC)[1:]]
    try:
        for each in made:
            await store.put(each.name, [each.data], writer_id="benchmark")
        indexes = {}
        opened: dict[str, list[float]] = {each.name: [] for each in made}
        for each in made:
            index, gets = await read_index_2(store, each.name, len(each.data))
            indexes[each.name] = index
            report.add(f"{material.topic.name}.{each.name}.index-gets", gets, "GETs")
        random = Random(1)
        count = len(next(iter(indexes.values())))
        taken: dict[str, list[float]] = {each.name: [] for each in made}
        for number in range(fetches):
            entry_number = random.randrange(count)
            for each in made if number % 2 else made[::-1]:
                begin = time.perf_counter()
                entry = indexes[each.name][entry_number]
                data = await store.get(each.name, entry.position, entry.end_position)
                batches = decode_block(data, entry, where=each.name)
                taken[each.name].append(time.perf_counter() - begin)
                assert batches
        for _ in range(fetches // 10):
            for each in made:
                begin = time.perf_counter()
                await read_index_2(store, each.name, len(each.data))
                opened[each.name].append(time.perf_counter() - begin)
        for each in made:
            prefix = f"{material.topic.name}.{each.name}"
            report.add(f"{prefix}.block.p50", middle(taken[each.name]) * 1e6, "us")
            report.add(f"{prefix}.block.p99", p99(taken[each.name]) * 1e6, "us")
            report.add(f"{prefix}.index.p50", middle(opened[each.name]) * 1e6, "us")
            report.add(f"{prefix}.index.p99", p99(opened[each.name]) * 1e6, "us")
        spent: dict[str, list[float]] = {each.name: [] for each in made}
        for number in range(10):
            for each in made if number % 2 else made[::-1]:
                begin = cpu_s()
                for _ in range(max(1, 200 * MIB // len(each.data))):
                    for entry in indexes[each.name]:
                        data = await store.get(each.name, entry.position, entry.end_position)
                        decode_block(data, entry, where=each.name)
                volume = sum(entry.size_bytes for entry in indexes[each.name]) * max(1, 200 * MIB // len(each.data))
                spent[each.name].append((cpu_s() - begin) / volume * 1e9)
        for each in made:
            report.add(f"{material.topic.name}.{each.name}.scan", middle(spent[each.name]), "CPU s/GB")
    finally:
        await store.close()


# engines


def expected_of(material: Material) -> tuple[int, int, int]:
    """Return rows, sum of offsets, and sum of a number of the values."""
    name = number_column(material)
    return (
        len(material.typed),
        pc.sum(material.records["offset"]).as_py(),
        pc.sum(material.typed[name]).as_py(),
    )


def number_column(material: Material) -> str:
    """Return the last column of whole numbers: far back in the file."""
    names: list[str] = [field.name for field in material.topic.columns if field.type == pa.int64()]
    return names[-1]


def by_pyarrow(server: RangeServer, key: str, column: str) -> tuple[int, int, int]:
    store = pafs.S3FileSystem(anonymous=True, endpoint_override=server.endpoint, region="us-east-1", scheme="http")
    table = ds.dataset(f"{BUCKET}/{key}", filesystem=store).to_table(
        columns={"offset": ds.field("_kafka", "offset"), "number": ds.field(column)}
    )
    return len(table), pc.sum(table["offset"]).as_py(), pc.sum(table["number"]).as_py()


def by_polars(server: RangeServer, key: str, column: str) -> tuple[int, int, int]:
    polars: Any = importlib.import_module("polars")
    options = {
        "aws_endpoint_url": server.endpoint,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "aws_skip_signature": "true",
        "aws_virtual_hosted_style_request": "false",
    }
    frame = polars.scan_parquet(f"s3://{BUCKET}/{key}", storage_options=options)
    found = frame.select(
        polars.len().alias("rows"),
        polars.col("_kafka").struct.field("offset").sum().alias("offset"),
        polars.col(column).sum().alias("number"),
    ).collect()
    return tuple(found.row(0))


def by_duckdb(server: RangeServer, key: str, column: str) -> tuple[int, int, int]:
    duckdb: Any = importlib.import_module("duckdb")
    with duckdb.connect() as connection:
        connection.register_filesystem(counted_files(server))
        found = connection.execute(
            f'SELECT count(*), sum(_kafka."offset"), sum("{column}") FROM read_parquet(\'counted://{key}\')'
        ).fetchone()
    return tuple(map(int, found))  # type: ignore[return-value]


def counted_files(server: RangeServer) -> Any:
    """Return the server's files as a file system of Python, for DuckDB without its extension for HTTP."""
    local: Any = importlib.import_module("fsspec.implementations.local")

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            start = self.tell()
            data = super().read(-1 if size is None else size)
            server.ranges.append((Path(str(self.name)).name, start, start + len(data)))
            return data

    class CountedFiles(local.LocalFileSystem):  # type: ignore[misc]
        protocol = "counted"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(server.folder / path.removeprefix("counted://"))

        def _open(self, path: str, _mode: str = "rb", **_options: object) -> Counted:
            return Counted(path)

    return CountedFiles(skip_instance_cache=True)


ENGINES: dict[str, tuple[str, Callable[[RangeServer, str, str], tuple[int, int, int]]]] = {
    "pyarrow": ("pyarrow", by_pyarrow),
    "polars": ("polars", by_polars),
    "duckdb": ("duckdb", by_duckdb),
}


def measure_engines(report: Report, material: Material, home: Path) -> None:
    """Read two columns of each layout from a store, compare the sums, and count the bytes that were asked for."""
    expected, column = expected_of(material), number_column(material)
    layouts = material.layouts(material.typed, CODEC)
    with range_server(home) as server:
        for each in layouts:
            key = f"{material.topic.name}-{each.name.replace(' ', '-')}.parquet"
            (home / key).write_bytes(each.data)
        for name, (package, engine) in ENGINES.items():
            for each in layouts:
                key = f"{material.topic.name}-{each.name.replace(' ', '-')}.parquet"
                server.clear()
                try:
                    found = engine(server, key, column)
                except ImportError:
                    CONSOLE.print(f"{name}: not installed", highlight=False)
                    break
                assert found == expected, f"{name}, {each.name}: {found}, expected {expected}"
                gets, volume, inside = server.read_bytes(key, each.blocks)
                prefix = f"{material.topic.name}.{name} {importlib.metadata.version(package)}.{each.name}"
                report.add(f"{prefix}.gets", gets, "GETs")
                report.add(f"{prefix}.read", volume / 1e6, "MB")
                report.add(f"{prefix}.blocks-read", inside / 1e6, "MB")


# Spark and pyiceberg, by Iceberg's own plans


def iceberg_table(home: Path, material: Material, made: Made, *, split_offsets: bool) -> str:
    """Commit one object as the file of a table; return the location of its metadata."""
    sql: Any = importlib.import_module("pyiceberg.catalog.sql")
    io: Any = importlib.import_module("pyiceberg.io.pyarrow")
    manifest: Any = importlib.import_module("pyiceberg.manifest")
    typedef: Any = importlib.import_module("pyiceberg.typedef")
    place = home / f"{material.topic.name}-{made.name.replace(' ', '-')}-{split_offsets}"
    place.mkdir()
    path = place / "object.parquet"
    path.write_bytes(made.data)
    catalog = sql.SqlCatalog("lab", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=place.as_uri())
    catalog.create_namespace("lab")
    table = catalog.create_table("lab.events", schema=material.typed.schema)
    ids = {field.name: field.field_id for field in table.schema().fields}
    assert ids == {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in material.typed.schema}
    statistics = io.data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(path),
        stats_columns=io.compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=io.parquet_path_to_id_mapping(table.schema()),
    )
    fields = {**statistics.to_serialized_dict()}
    if not split_offsets:
        fields["split_offsets"] = None
    file = manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=path.as_uri(),
        file_format=manifest.FileFormat.PARQUET,
        partition=typedef.Record(),
        file_size_in_bytes=len(made.data),
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
        **fields,
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    scanned = table.refresh().scan().to_arrow()
    assert len(scanned) == len(material.typed)
    assert pc.sum(scanned[number_column(material)]).as_py() == expected_of(material)[2]
    return str(table.refresh().metadata_location)


def measure_spark(report: Report, material: Material, home: Path, rounds: int, spark: Any) -> None:
    """Plans and scans of Iceberg in Spark: tasks, those without rows, rows, CPU."""
    from pyspark.sql import functions

    from benchmarks.spark import spark_cpu_s

    expected, column = expected_of(material), number_column(material)
    tables = {}
    for each in material.layouts(material.typed, Compression.NONE):
        for split_offsets in (True, False):
            name = f"{each.name}{'' if split_offsets else ', no split offsets'}"
            tables[name] = iceberg_table(home, material, each, split_offsets=split_offsets)

    def read(location: str, *, vectorized: bool, split_bytes: int | None = None) -> Any:
        frame = spark.read.format("iceberg").option("vectorization-enabled", str(vectorized).lower())
        if split_bytes:
            frame = frame.option("split-size", str(split_bytes)).option("file-open-cost", "0")
        return frame.load(location)

    for name, location in tables.items():
        for vectorized in (True, False):
            row = (
                read(location, vectorized=vectorized)
                .selectExpr("count(*)", "sum(_kafka.offset)", f"sum(`{column}`)")
                .first()
            )
            assert tuple(row) == expected, f"Spark, {name}: {row}, expected {expected}"
        split = read(location, vectorized=True, split_bytes=8 * MIB)
        tasks = split.rdd.getNumPartitions()
        with_rows = split.groupBy(functions.spark_partition_id()).agg(functions.sum(column)).count()
        report.add(f"{material.topic.name}.{name}.tasks", tasks, "of 8 MiB")
        report.add(f"{material.topic.name}.{name}.tasks-empty", tasks - with_rows, "")
    chosen = [name for name in tables if "no split" not in name]
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    spent: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(2 * rounds + 1):
        for name in chosen if number % 2 else chosen[::-1]:
            cpu, begin = spark_cpu_s(spark), time.perf_counter()
            read(tables[name], vectorized=True).write.format("noop").mode("overwrite").save()
            if number:
                seconds[name].append(time.perf_counter() - begin)
                spent[name].append(spark_cpu_s(spark) - cpu)
    for name in chosen:
        report.add(f"{material.topic.name}.{name}.scan", expected[0] / middle(seconds[name]), "rows/s")
        report.add(f"{material.topic.name}.{name}.scan-cpu", middle(spent[name]) / expected[0] * 1e6, "CPU s/M rows")


# joining


def measure_joins(report: Report) -> None:
    """Add what compaction writes in a day of one partition, by the plans of its second level."""
    for rate, interval in itertools.product((16 * 1024, MIB), (10, 60, 1200)):
        ways = {
            # Blocks are joined at their own pace, up to 10 GiB; columns are joined apart.
            "beside": joined(rate, max(interval, 1200), CompactionSettings()),
            "one object": joined(rate, interval, replace(CompactionSettings(), stream_object_bytes_max=256 * MIB)),
        }
        for way, (written, copied, objects) in ways.items():
            prefix = f"joins.{rate // 1024} KiB/s.{interval} s.{way}"
            report.add(f"{prefix}.through-node", written / (rate * DAY_S), "x")
            report.add(f"{prefix}.copied-in-store", copied / (rate * DAY_S), "x")
            report.add(f"{prefix}.objects", objects, "after a day")


def joined(rate: int, interval_s: int, settings: CompactionSettings) -> tuple[int, int, int]:
    """Return bytes that pass through the node, bytes that a store copies if it can, and objects left, after a day."""
    objects: list[RangeLocation] = []
    written = copied = 0
    for number in range(DAY_S // interval_s):
        objects.append(location(number, number, number + 1, rate * interval_s))
        written += rate * interval_s  # the object itself, by the first level
        if (number + 1) * interval_s % (settings.period_ms // 1000) and interval_s < settings.period_ms // 1000:
            continue
        while groups := plan_groups(objects, 0, settings, full=False):
            group = groups[0]
            at = objects.index(group[0])
            entries = [(each.object.object_id, blocks_of(each)) for each in group]
            for segment in plan_segments(entries):
                if isinstance(segment, RewriteSegment):
                    written += sum(entry.size_bytes for _, entry in segment.blocks)
                else:
                    copied += sum(entry.size_bytes for entry in segment.entries)
            size = sum(each.object.size_bytes for each in group)
            start, end = group[0].range.start_offset, group[-1].range.end_offset
            objects[at : at + len(group)] = [location(-number, start, end, size)]
    return written, copied, len(objects)


def location(object_id: int, start: int, end: int, size: int) -> RangeLocation:
    """Return an object of that size."""
    info = ObjectInfo(object_id, ObjectKind.SO, ObjectState.COMMITTED, "s3", size, 1, "w", 0, 1)
    return RangeLocation(StreamRange(1, start, end, end - start, size, -1), info, 1)


def blocks_of(each: RangeLocation) -> list[IndexEntry]:
    """Return its blocks of 512 KiB; their offsets do not matter to the plan."""
    size = each.object.size_bytes
    return [IndexEntry(1, at, at + 1, 1, at, min(BLOCK_BYTES, size - at), -1, 0) for at in range(0, size, BLOCK_BYTES)]


def run(options: argparse.Namespace, home: Path) -> Report:
    """Run the parts."""
    report = Report("A topic as a table, by hand")
    spark: Any = None
    if "spark" in options.only and find_spec("pyiceberg") is None:
        CONSOLE.print("pyiceberg: not installed, so no plans of Spark", highlight=False)
    elif "spark" in options.only:
        from anabranch.spark.session import build_session

        places = {"spark.local.dir": str(home / "spark"), "spark.sql.warehouse.dir": str(home / "warehouse")}
        spark = build_session("anabranch benchmark", settings=places, table_formats=["iceberg"])
    rounds = 1 if options.quick else 3
    try:
        for name in options.topic:
            material = Material(TOPICS[name](options.share or (16 if options.quick else 1)))
            place = home / name
            place.mkdir()
            if "bytes" in options.only:
                measure_bytes(report, material)
            if "fetch" in options.only:
                asyncio.run(measure_fetch(report, material, place, FETCHES // (10 if options.quick else 1)))
            if "engines" in options.only:
                measure_engines(report, material, place)
            if spark is not None:
                measure_spark(report, material, place, rounds, spark)
    finally:
        if spark is not None:
            spark.stop()
    if "joins" in options.only:
        measure_joins(report)
    return report


def main() -> None:
    """Run the benchmark."""
    made = parser("A topic as a table: one object with two views, beside a Parquet file next to the object.")
    made.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="parts; default all"
    )
    made.add_argument("--topic", nargs="+", choices=list(TOPICS), default=list(TOPICS), metavar="NAME")
    made.add_argument("--share", type=int, metavar="N", help="one record in N; default 1, with --quick 16")
    options = made.parse_args()
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        report = run(options, home)
    finally:
        shutil.rmtree(home)
    report.finish(options)


if __name__ == "__main__":
    main()
