"""Iceberg tables of a pipeline.

A micro-batch is staged under a name made of query and number (write, audit, publish), and then published: Iceberg
publishes a name only once. The same commit writes the number into a property of the table. Iceberg forgets a name when
its snapshot expires; the property stays. So a driver that was suspended for that long either finds the number in the
property after it has staged, or finds that what it had staged has expired.

A merge is staged likewise. Iceberg publishes it only on top of the snapshot that it was made for, so if another writer
has committed in between, the merge is done again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from anabranch.spark.pipeline.changes import DELETED, HAS_ROW, UNIQUE, check_mode, unique_columns
from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError, SettingError, java_classes, unfit
from anabranch.spark.pipeline.history import HistoryMerge
from anabranch.spark.pipeline.iceberg_layout import (
    LayoutChange,
    apply_change,
    check_layout,
    java_schema,
    partition_spec,
    partitions_of,
    plan_change,
    sort_order,
)
from anabranch.spark.pipeline.layout import TableLayout
from anabranch.spark.pipeline.merge import (
    CHANGE,
    CHANGES,
    MERGE_TRIES,
    BucketFunction,
    Merge,
    Newer,
    TableMerge,
    fitted_rows,
    has_new_fields,
    java_of,
    newer,
    overtaken,
    row_of,
    same_place,
    session_settings,
)
from anabranch.spark.pipeline.names import quoted
from anabranch.spark.pipeline.retention import Retention
from anabranch.spark.pipeline.sections import KeyedRows
from anabranch.spark.pipeline.settings import PipelineSettings

QUERY_ID = "anabranch.query-id"
BATCH_ID = "anabranch.batch-id"
PROGRESS = "anabranch.progress."
"""Property of a table, with the query's id: number of the query's last micro-batch."""
SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
"""Beginning of the names of settings that become properties of a snapshot."""
STAGE_ID = "spark.wap.id"
"""Setting of a session. An append gets this name and is not published."""
PROPERTIES = {
    # Appends of sessions with a stage id are staged.
    "write.wap.enabled": "true",
    # Or Spark plans neither UPDATE nor MERGE, ours and the users'.
    "write.spark.accept-any-schema": "false",
    # Each commit writes a metadata file with all snapshots. Two are written per micro-batch.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties that a table needs."""
STAGING = "write.wap.enabled"
ENFORCED = frozenset({STAGING, "write.spark.accept-any-schema"})
"""Those of them that do not stay if a table has them in another value."""
PUBLISHED_BEFORE = frozenset({"DuplicateWAPCommitException", "CherrypickAncestorCommitException"})
"""Iceberg's errors for the second of two snapshots of one name, and for the same one again."""
KEYED_PROPERTIES = {
    # A merge writes positions of replaced rows instead of rewriting their files.
    "write.merge.mode": "merge-on-read",
}
OVERTAKEN = "ValidationException"
"""Iceberg's error for a merge during which, or after which, another writer has committed."""
ISOLATION = "write.merge.isolation-level"
"""Property: what counts as a conflict for a merge; by default also rows that others have appended in the meantime."""
MANIFESTS_MAX = 50
"""Manifests of the current snapshot, from which on they are rewritten. Each is read when a query is planned."""
DISTRIBUTION = "write.distribution-mode"
"""Property: how rows are distributed over the tasks that write them."""


@dataclass(slots=True)
class IcebergTable:
    """A table in an Iceberg catalog."""

    spark: SparkSession
    name: str
    layout: TableLayout
    target_file_bytes: int
    files_min: int
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the writer."""
    keyed: KeyedRows | None = None
    """Rows of each topic and key, if it has keys."""
    _is_there: bool = False

    @property
    def place(self) -> str:
        """Name of the table."""
        return self.name

    @property
    def is_keyed(self) -> bool:
        """True if it is merged into."""
        return self.keyed is not None

    def exists(self) -> bool:
        """Return whether the first micro-batch has created the table."""
        self._is_there = self._is_there or self.spark.catalog.tableExists(self.name)
        return self._is_there

    def committed(self, query_id: str) -> int:
        """Return the number of the last micro-batch of a query in the table, or -1."""
        return _committed(self.load(), query_id) if self.exists() else -1

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Append one snapshot with the identifiers in its summary. Raises AnotherDriver."""
        if not self.exists():
            self._create(rows)
        found = self._ensure_properties()
        columns = self._add_columns(rows.schema)
        options = {
            **self.options,
            # A range, the default of sorted tables, needs samples: the micro-batch would be read and counted twice.
            "distribution-mode": "none" if found.get(DISTRIBUTION) == "none" else "hash",
            f"snapshot-property.{QUERY_ID}": query_id,
            f"snapshot-property.{BATCH_ID}": str(batch_id),
        }
        writer = fitted_rows(rows, columns).writeTo(self.name).options(**options)
        with session_settings(rows.sparkSession, {STAGE_ID: _stage_id(query_id, batch_id)}):
            writer.append()
        self.publish(query_id, batch_id)

    def merge(self, rows: DataFrame, query_id: str, batch_id: int, newer: Newer = newer) -> None:
        """Merge changes as one snapshot with the identifiers in its summary. Raises AnotherDriver and PipelineError."""
        if not self.exists():
            self._create(rows.drop(DELETED, HAS_ROW))
        self._ensure_properties()
        columns = self._add_columns(rows.drop(DELETED, HAS_ROW).schema)
        settings = {
            STAGE_ID: _stage_id(query_id, batch_id),
            f"{SNAPSHOT_PROPERTY}{QUERY_ID}": query_id,
            f"{SNAPSHOT_PROPERTY}{BATCH_ID}": str(batch_id),
        }
        name, buckets = quoted(self.name), self.bucket_functions()
        for _ in range(MERGE_TRIES):
            merge: TableMerge
            base = None
            if self.keyed is KeyedRows.HISTORY:
                base = _snapshot_id(self.load())
                merge = HistoryMerge.of(rows, columns, self._as_of(base), buckets)
            else:
                merge = Merge.of(rows, columns, newer, buckets)
            try:
                with session_settings(rows.sparkSession, settings):
                    merge.run(lambda changes, on: changes.mergeInto(name, on), "merge", row_of(name))
            except Exception as error:
                if OVERTAKEN in java_classes(error):
                    continue
                raise
            if self.publish(query_id, batch_id, base):
                return
        raise PipelineError(overtaken(self.name, batch_id))

    def remove(self, records: DataFrame) -> None:
        """Delete rows as one snapshot, which appends of others do not hinder. Raises what Spark raises."""
        if self._ensure_properties().get(ISOLATION) is None:
            self.load().updateProperties().set(ISOLATION, "snapshot").commit()
        name = quoted(self.name)
        same = java_of(same_place(row_of(name), CHANGE))
        java_of(records.alias(CHANGES)).mergeInto(name, same).whenMatched().delete().merge()

    def publish(self, query_id: str, batch_id: int, base: int | None = None) -> bool:
        """Make the staged micro-batch current. Raises AnotherDriver if another driver's is.

        Returns False if it was a merge, and another writer has committed since it was staged, or since the snapshot
        `base`, which it was made of.
        """
        table, stage_id = self.load(), _stage_id(query_id, batch_id)
        if _committed(table, query_id) >= batch_id:
            raise self._another_driver(batch_id)
        # Newest first: a snapshot that a dead driver staged but did not publish has the same name.
        staged = next((each for each in reversed(table.snapshots()) if each.summary().get("wap.id") == stage_id), None)
        if staged is None:
            raise PipelineError(
                f"{self.name}: micro-batch {batch_id} was not staged; was the table's property {STAGING} unset, or the "
                f"driver suspended until it expired?"
            )
        current = _snapshot_id(table)
        if self.is_keyed and (staged.parentId() != current or base not in (None, current)):
            # Iceberg itself refuses only those that replace rows. One that only adds may add a key twice.
            return False
        transaction = table.newTransaction()
        try:
            transaction.manageSnapshots().cherrypick(staged.snapshotId()).commit()
            transaction.updateProperties().set(PROGRESS + query_id, str(batch_id)).commit()
            transaction.commitTransaction()
        except Exception as error:
            names = java_classes(error)
            if not PUBLISHED_BEFORE.isdisjoint(names):
                raise self._another_driver(batch_id) from None
            if OVERTAKEN in names and self.is_keyed:
                return False
            raise
        if _committed(self.load(), query_id) < batch_id:
            raise PipelineError(
                f"{self.name}: micro-batch {batch_id} was committed and is not there: another process has written at "
                f"the same moment, which a catalog of type hadoop does not notice in a folder; let one process write, "
                f"or use another type of catalog"
            )
        return True

    def layout_changes(self, columns: StructType) -> list[str]:
        """Return what `apply_layout` would change. Raises SettingError."""
        return list(self._plan_layout(columns).lines)

    def apply_layout(self, columns: StructType) -> list[str]:
        """Change partition spec, sort order and properties in one commit. Raises SettingError."""
        change = self._plan_layout(columns)
        if change.lines:
            apply_change(self._jvm(), self.load(), change, columns)
        return list(change.lines)

    def compact(self) -> int:
        """Rewrite data files with Iceberg's action, sorted if the table is."""
        if not self.exists():
            return 0
        table = self.load()
        action = self._actions().rewriteDataFiles(table)
        if table.sortOrder().isSorted():
            action = action.sort()
        options = {
            "target-file-size-bytes": str(self.target_file_bytes),
            "min-input-files": str(self.files_min),
            # Only small files: those near the target are not rewritten.
            "min-file-size-bytes": str(self.target_file_bytes * 3 // 4),
        }
        if self.is_keyed:
            options["remove-dangling-deletes"] = "true"
        for key, value in options.items():
            action = action.option(key, value)
        return int(action.execute().rewrittenDataFilesCount())

    def expire(self, retention: Retention, query_id: str | None) -> str:
        """Expire snapshots, published or not, and rewrite manifests when there are many."""
        if not self.exists():
            return "nothing to do"
        self._ensure_properties()
        table = self.load()
        if query_id is not None and PROGRESS + query_id not in table.properties():
            # A table of an earlier version has the number in its snapshots only.
            table.updateProperties().set(PROGRESS + query_id, str(_committed(table, query_id))).commit()
            table.refresh()
        snapshots, oldest_ms = table.snapshots(), _before(retention.snapshot_age)
        before = snapshots.size()
        if before > retention.snapshots_max:
            oldest_ms = max(oldest_ms, snapshots.get(before - retention.snapshots_max).timestampMillis())
        expiry = table.expireSnapshots().expireOlderThan(oldest_ms)
        expiry.retainLast(retention.snapshots_min).commit()
        table.refresh()
        done = f"{before - table.snapshots().size():,} snapshots expired"
        current = table.currentSnapshot()
        manifests = 0 if current is None else current.allManifests(table.io()).size()
        if manifests > MANIFESTS_MAX:
            self._actions().rewriteManifests(table).execute()
            done += f", {manifests:,} manifests rewritten"
        return done

    def remove_orphans(self, retention: Retention) -> str:
        """Delete files with Iceberg's action."""
        if not self.exists():
            return "nothing to do"
        action = self._actions().deleteOrphanFiles(self.load()).olderThan(_before(retention.orphan_age))
        return f"{int(action.execute().orphanFilesCount()):,} orphan files deleted"

    def read(self) -> DataFrame:
        """Return the current snapshot."""
        return self.spark.table(self.name)

    def frozen(self) -> DataFrame:
        """Return the snapshot that is the current one now."""
        return self._as_of(_snapshot_id(self.load()))

    def _as_of(self, snapshot_id: int | None) -> DataFrame:
        if snapshot_id is None:
            return self.read().limit(0)
        return self.spark.read.option("versionAsOf", snapshot_id).table(self.name)

    def bucket_functions(self) -> tuple[BucketFunction, ...]:
        """Return the functions of the key that the table is partitioned by."""
        function = f"{quoted(self.name.partition('.')[0])}.system.bucket"
        return tuple(
            BucketFunction(function, each.width, each.column)
            for each in partitions_of(self.load()).values()
            if each.width is not None and each.transform == "bucket" and each.column.partition(".")[0] == "key"
        )

    def load(self) -> Any:
        """Load the table from its catalog, as it is now."""
        table = self._jvm().org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._session(), self.name)
        table.refresh()
        return table

    def _create(self, rows: DataFrame) -> None:
        namespace = self.name.rpartition(".")[0]
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(namespace)}")
        jvm = self._jvm()
        spark_utils = jvm.org.apache.iceberg.spark.Spark3Util
        place = spark_utils.catalogAndIdentifier(self._session(), self.name)
        schema = java_schema(jvm, rows.schema)
        order = sort_order(jvm, jvm.org.apache.iceberg.SortOrder.builderFor(schema), self.layout.order).build()
        builder = (
            place.catalog()
            .icebergCatalog()
            .buildTable(spark_utils.identifierToTableIdentifier(place.identifier()), schema)
        )
        builder = builder.withPartitionSpec(partition_spec(jvm, schema, self.layout.partitions)).withSortOrder(order)
        properties = {
            **PROPERTIES,
            "write.target-file-size-bytes": str(self.target_file_bytes),
            **(self._keyed_properties() if self.is_keyed else {}),
            **self.layout.properties,
        }
        for key, value in properties.items():
            builder = builder.withProperty(key, value)
        try:
            builder.create()
        except Exception:
            # Another process may have created it. The append reports what is missing in it.
            if not self.exists():
                raise

    def _ensure_properties(self) -> Mapping[str, str]:
        """Set missing properties of a table that another writer, or an earlier version, has created.

        Returns the properties that it had.
        """
        table = self.load()
        found: Mapping[str, str] = table.properties()
        missing = {
            key: value
            for key, value in PROPERTIES.items()
            if found.get(key) is None or (key in ENFORCED and found.get(key) != value)
        }
        if self.is_keyed and found.get(UNIQUE) is None:
            missing |= self._keyed_properties()
        if missing:
            update = table.updateProperties()
            for key, value in missing.items():
                update = update.set(key, value)
            update.commit()
        return found

    def _keyed_properties(self) -> dict[str, str]:
        return {**KEYED_PROPERTIES, UNIQUE: unique_columns(self.keyed) or ""}

    def _plan_layout(self, columns: StructType) -> LayoutChange:
        """Return what gives an existing table the layout of the file. Raises SettingError."""
        jvm = self._jvm()
        check_layout(jvm, self.layout, columns)
        if not self.exists():
            return LayoutChange((), (), (), None, {})
        self._check_mode()
        table = self.load()
        try:
            table.updateSchema().unionByNameWith(java_schema(jvm, columns)).apply()  # which commits nothing
        except Exception as error:  # Iceberg's errors have no common class
            raise SettingError("table.name", unfit(self.name, error)) from error
        return plan_change(jvm, table, self.layout)

    def _check_mode(self) -> None:
        """Raise SettingError if the table, which exists, has rows that another mode has written."""
        table = self.load()
        if table.currentSnapshot() is not None:
            check_mode(self.name, self.keyed, table.properties().get(UNIQUE))

    def _add_columns(self, columns: StructType) -> StructType:
        """Add the columns and fields that the table lacks. Returns all that it has then."""
        found = self.read().schema
        if not has_new_fields(columns, found):
            return found
        self.load().updateSchema().unionByNameWith(java_schema(self._jvm(), columns)).commit()
        return self.read().schema

    def _another_driver(self, batch_id: int) -> AnotherDriver:
        return AnotherDriver(
            f"{self.name}: micro-batch {batch_id} was committed by another driver; only one at a time "
            f"may run on a checkpoint"
        )

    def _actions(self) -> Any:
        """Return Iceberg's actions."""
        sessions = self._jvm().org.apache.spark.sql.classic.SparkSession
        if not sessions.getActiveSession().isDefined():
            # Iceberg's threads use the settings of this JVM thread's session, or none if it has no session.
            sessions.setActiveSession(self._session())
        return self._jvm().org.apache.iceberg.spark.actions.SparkActions.get(self._session())

    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm  # noqa: SLF001 - Iceberg's actions and snapshots have no Python interface

    def _session(self) -> Any:
        return self.spark._jsparkSession  # noqa: SLF001 - as above


def _snapshot_id(table: Any) -> int | None:
    """Return the id of a loaded table's current snapshot; None for an empty table."""
    current = table.currentSnapshot()
    return None if current is None else int(current.snapshotId())


def _before(age: timedelta) -> int:
    """Return the time that is `age` ago, in ms."""
    return int((datetime.now(UTC) - age).timestamp() * 1000)


def _committed(table: Any, query_id: str) -> int:
    """Return the number of the query's last micro-batch in a loaded table, or -1.

    Tables of earlier versions have no property: then it is in the newest snapshot of the query.
    """
    if (found := table.properties().get(PROGRESS + query_id)) is not None:
        return int(found)
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        if (batch_id := _batch_of(snapshot.summary(), query_id)) >= 0:
            return batch_id
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    return -1


def _stage_id(query_id: str, batch_id: int) -> str:
    return f"anabranch:{query_id}:{batch_id}"


def _batch_of(summary: Mapping[str, str], query_id: str) -> int:
    """Return the number of the query's micro-batch in a snapshot's summary, or -1."""
    if summary.get(QUERY_ID) == query_id:
        return int(summary[BATCH_ID])
    # A snapshot published on top of another writer's is a copy, which has only the name.
    published = summary.get("published-wap-id") or ""
    return int(published.rpartition(":")[2]) if published.startswith(_stage_id(query_id, 0)[:-1]) else -1


def catalog_settings(pipeline: PipelineSettings) -> dict[str, str]:
    """Return the session settings that define the table's catalog."""
    catalog = pipeline.catalog
    prefix = f"spark.sql.catalog.{pipeline.table.catalog_name}"
    given = {"type": catalog.type, "warehouse": catalog.warehouse, "uri": catalog.uri}
    if catalog.type == "jdbc":
        # Spark asks each catalog for views as well, and version 0 has none. An older schema gets the column for them.
        given["jdbc.schema-version"] = "V1"
    given |= catalog.options
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        # A cached table would not show the newest commits.
        f"{prefix}.cache-enabled": "false",
        **{f"{prefix}.{key}": value for key, value in given.items() if value is not None},
    }
