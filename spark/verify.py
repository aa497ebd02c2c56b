"""Reads every object of a cluster on Spark, and proves that bytes, index, catalog and partitions agree.

The driver lists stores and catalog, and checks the partitions for gaps. Tasks read the objects whole: checksums of
index, blocks and record batches, contiguous offsets, record counts against index and catalog. A suspicious object is
looked up in the catalog again before it is reported: one that was compacted or collected in the meantime is not a
finding. The report is a table with a row for each object and each finding.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.protocol.batch import check_crc, parse_batch
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CorruptObject, ObjectNotFound, StoreError
from anabranch.s3stream.maintain.findings import Finding, FindingKind, VerifyReport
from anabranch.s3stream.maintain.verify import find_range_problem, read_runs
from anabranch.s3stream.maintain.verify import verify as verify_catalog
from anabranch.s3stream.model import ObjectInfo, ObjectState, RangeLocation, StreamBatch, object_key
from anabranch.s3stream.object.format import IndexEntry, decode_block
from anabranch.s3stream.object.reader import expect_object, index_tail_bytes, read_index
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.spark.storage import StorageLocation, opened_catalog, opened_stores

PAGE: Final = 500
OBJECTS_IN_FLIGHT: Final = 2
SLICE_BYTES: Final = 128 << 20
"""Size of the objects of one task."""
FINDINGS_MAX: Final = 1_000
FINDINGS_OF_OBJECT_MAX: Final = 20
REPORT_SCHEMA: Final = """
subject STRING, place STRING, object_id BIGINT, kind STRING, store STRING, size_bytes BIGINT, ranges BIGINT,
blocks BIGINT, batches BIGINT, records BIGINT, trouble STRING, detail STRING
"""
TRANSIENT_TROUBLES: Final = (FindingKind.MISSING.name, FindingKind.UNREADABLE.name)
"""Troubles of objects that may have been collected while they were read."""


class ReportRow(NamedTuple):
    """A row of the report: an object with its contents, or a finding."""

    subject: str
    place: str
    object_id: int | None = None
    kind: str | None = None
    store: str | None = None
    size_bytes: int | None = None
    ranges: int | None = None
    blocks: int | None = None
    batches: int | None = None
    records: int | None = None
    trouble: str | None = None
    detail: str | None = None


class ObjectCheck(NamedTuple):
    """A committed object, and its contents according to the catalog."""

    info: ObjectInfo
    locations: Sequence[RangeLocation]


@dataclass(slots=True)
class VerifySummary:
    """Totals and findings of a verification."""

    objects: int = 0
    size_bytes: int = 0
    blocks: int = 0
    batches: int = 0
    records: int = 0
    streams: int = 0
    findings: int = 0
    shown: list[Finding] = field(default_factory=list)
    """The first findings."""

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings


# in tasks


def check_objects(location: StorageLocation, checks: Iterable[ObjectCheck]) -> Iterator[ReportRow]:
    """Read objects whole. Yields a row for each, and for each finding."""
    yield from asyncio.run(_check_all(location, list(checks)))


async def _check_all(location: StorageLocation, checks: Sequence[ObjectCheck]) -> list[ReportRow]:
    slots = asyncio.Semaphore(OBJECTS_IN_FLIGHT)
    async with opened_stores(location) as stores, asyncio.TaskGroup() as group:

        async def check(each: ObjectCheck) -> list[ReportRow]:
            async with slots:
                return await _check_object(stores.get(each.info.store), location.cluster, each)

        tasks = [group.create_task(check(each)) for each in checks]
    return [row for task in tasks for row in task.result()]


@dataclass(slots=True)
class _Contents:
    """Contents of an object, as far as it was read."""

    where: str
    blocks: int = 0
    batches: int = 0
    records: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, trouble: FindingKind, detail: str) -> None:
        if len(self.findings) < FINDINGS_OF_OBJECT_MAX:
            self.findings.append(Finding(trouble, self.where, detail))


async def _check_object(store: ObjectStore | None, cluster: str, check: ObjectCheck) -> list[ReportRow]:
    info = check.info
    key = object_key(cluster, info.object_id)
    found = _Contents(f"{info.store}:{key}")
    if store is not None:  # the driver reports an unknown store
        try:
            await _read_object(store, key, check, found)
        except ObjectNotFound as error:
            found.add(FindingKind.MISSING, str(error))
        except CorruptObject as error:
            found.add(FindingKind.CORRUPT, str(error))
        except StoreError as error:
            found.add(FindingKind.UNREADABLE, str(error))
    whole = ReportRow(
        "object",
        found.where,
        info.object_id,
        info.kind.name,
        info.store,
        info.size_bytes,
        len(check.locations),
        found.blocks,
        found.batches,
        found.records,
    )
    return [whole, *(_finding_row("object", each, info.object_id) for each in found.findings)]


def _finding_row(subject: str, finding: Finding, object_id: int | None = None) -> ReportRow:
    return ReportRow(subject, finding.where, object_id, trouble=finding.kind.name, detail=finding.detail)


async def _read_object(store: ObjectStore, key: str, check: ObjectCheck, found: _Contents) -> None:
    info = check.info
    index = await read_index(store, key, index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes)
    expect_object(index, info.object_id)
    if index.kind is not info.kind:
        found.add(FindingKind.CORRUPT, f"kind: expected {info.kind.name}, found {index.kind.name}")
    for location in check.locations:
        if detail := find_range_problem(location, index):
            found.add(FindingKind.RANGE, detail)
    for run in read_runs(index):
        data = await store.get(key, run[0].position, run[-1].end_position)
        for entry in run:
            start = entry.position - run[0].position
            try:
                batches = decode_block(data[start : start + entry.size_bytes], entry, where=found.where)
            except CorruptObject as error:
                found.add(FindingKind.CORRUPT, str(error))
                continue
            found.blocks += 1
            _check_batches(entry, batches, found)


def _check_batches(entry: IndexEntry, batches: Sequence[StreamBatch], found: _Contents) -> None:
    """Check that a block contains valid record batches, and as many records as the index says."""
    records = sum(batch.record_count for batch in batches)
    found.batches += len(batches)
    found.records += records
    where = f"block at position {entry.position}"
    if records != entry.record_count:
        found.add(FindingKind.CORRUPT, f"{where}: expected {entry.record_count} records, found {records}")
    for batch in batches:
        try:
            header = parse_batch(batch.payload)
            check_crc(batch.payload, header)
        except KafkaError as error:
            found.add(FindingKind.CORRUPT, f"{where}, batch at offset {batch.base_offset}: {error}")
            continue
        if header.record_count != batch.record_count or header.next_offset > batch.end_offset:
            found.add(
                FindingKind.CORRUPT,
                f"{where}, batch at offset {batch.base_offset}: expected {batch.record_count} records up to offset "
                f"{batch.end_offset}, found {header.record_count} up to {header.next_offset}",
            )


# on the driver


def verify(
    spark: SparkSession, location: StorageLocation, *, report: str | None, report_format: str = "parquet"
) -> VerifySummary:
    """Check a cluster, and write the report, replacing an older one, unless it is None.

    Raises CatalogError, StoreError, and what Spark raises.
    """
    looked, checks = asyncio.run(_list(location))
    total = sum(each.info.size_bytes for each in checks)
    slices = min(len(checks), max(2 * spark.sparkContext.defaultParallelism, total // SLICE_BYTES)) or 1
    task_location = location.without_password()
    rows = spark.sparkContext.parallelize(_spread(checks, slices), slices).mapPartitions(
        lambda some: check_objects(task_location, some)
    )
    others = [_finding_row("catalog", each) for each in looked.findings]
    table = spark.createDataFrame(rows, REPORT_SCHEMA).persist()
    try:
        table = _without_collected(table, location)
        if others:
            table = table.unionByName(spark.createDataFrame(others, REPORT_SCHEMA))
        if report is not None:
            table.write.format(report_format).mode("overwrite").save(report)
        return _summarise(table, looked.streams)
    finally:
        table.unpersist()


def _spread(checks: Sequence[ObjectCheck], slices: int) -> list[ObjectCheck]:
    """Deal out objects in order of size, so that slices have similar sizes."""
    order = sorted(checks, key=lambda each: -each.info.size_bytes)
    return [each for at in range(slices) for each in order[at::slices]]


async def _list(location: StorageLocation) -> tuple[VerifyReport, list[ObjectCheck]]:
    async with AsyncExitStack() as stack:
        catalog = await stack.enter_async_context(opened_catalog(location))
        stores = await stack.enter_async_context(opened_stores(location))
        looked = await verify_catalog(catalog=catalog, stores=stores, cluster=location.cluster, read_objects=False)
        return looked, await _list_checks(catalog)


async def _list_checks(catalog: Catalog) -> list[ObjectCheck]:
    checks: list[ObjectCheck] = []
    after = 0
    while page := await catalog.list_objects(after=after, limit=PAGE):
        after = page[-1].object_id
        committed = [info for info in page if info.state is ObjectState.COMMITTED]
        located = await catalog.object_ranges([info.object_id for info in committed])
        checks += [ObjectCheck(info, located.get(info.object_id, ())) for info in committed]
    return checks


def _without_collected(table: DataFrame, location: StorageLocation) -> DataFrame:
    """Return the report without findings of objects that are no longer committed."""
    suspects = (
        table.where(f.col("trouble").isin(*TRANSIENT_TROUBLES)).select("object_id").distinct().limit(100_000).collect()
    )
    ids = [row["object_id"] for row in suspects]
    if not ids:
        return table

    async def still_committed() -> list[int]:
        async with opened_catalog(location) as catalog:
            infos = await catalog.get_objects(ids)
        return [each for each in ids if each in infos and infos[each].state is ObjectState.COMMITTED]

    committed = asyncio.run(still_committed())
    gone = [each for each in ids if each not in set(committed)]
    return table.where(f.col("trouble").isNull() | ~f.col("object_id").isin(gone)) if gone else table


def _summarise(table: DataFrame, streams: int) -> VerifySummary:
    whole = table.where("trouble IS NULL")
    names = ("size_bytes", "blocks", "batches", "records")
    (sums,) = whole.agg(f.count("*").alias("objects"), *(f.sum(name).alias(name) for name in names)).collect()
    bad = table.where("trouble IS NOT NULL")
    shown = [
        Finding(FindingKind[row["trouble"]], row["place"], row["detail"])
        for row in bad.orderBy("place").limit(FINDINGS_MAX).collect()
    ]
    size_bytes, blocks, batches, records = (int(sums[name] or 0) for name in names)
    return VerifySummary(sums["objects"], size_bytes, blocks, batches, records, streams, bad.count(), shown)
