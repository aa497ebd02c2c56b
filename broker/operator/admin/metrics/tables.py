"""Metrics of the tables that a node commits: those of topics whose first partition it leads."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics.definitions import Definition, counter, definitions_in, gauge, of_stats
from anabranch.tables.upkeep.status import UpkeepStats

LAG = gauge("anabranch_table_lag_offsets", "Offsets that a topic has in objects, and its table not yet.", "table")
LAG_SECONDS = gauge(
    "anabranch_table_lag_seconds",
    "Time for which the oldest of them has waited, at most; missing before the table was complete once.",
    "table",
)
FAILING = gauge("anabranch_table_failing", "1 while a table waits because its last round has failed.", "table")
PUBLISH_LAG = gauge(
    "anabranch_table_publish_lag_seconds",
    "Time for which the catalog that a table is published in has lacked a version.",
    "table",
)
PUBLISH_FAILING = gauge(
    "anabranch_table_publish_failing", "1 while the last attempt to publish a table has failed.", "table"
)
ROWS = gauge("anabranch_table_rows", "Rows of a table.", "table")
FILES = gauge("anabranch_table_files", "Data files of a table.", "table")
BYTES = gauge("anabranch_table_bytes", "Bytes of a table's data files.", "table")
SNAPSHOTS = gauge("anabranch_table_snapshots", "Snapshots of a table that can be read.", "table")


def _work(name: str, text: str) -> Definition:
    return counter(f"anabranch_tables_{name}_total", text)


UPKEEP: Mapping[str, Definition] = {
    "rows": _work("rows", "Rows appended to tables."),
    "errors": _work("error_rows", "Those of them whose key or value could not be decoded."),
    "files": _work("written_files", "Data files written."),
    "bytes": _work("written_bytes", "Bytes of these files."),
    "commits": _work("commits", "Commits of tables."),
    "conflicts": _work("conflicts", "Commits that another one was before, so that they were made anew."),
    "failed_rounds": _work("rounds_failed", "Rounds of a table ended by an error, to be repeated."),
    "joined_files": _work("joined_files", "Data files joined to larger ones."),
    "remade_files": _work("remade_files", "Data files made anew after log compaction."),
    "cut_files": _work("cut_files", "Data files cut, since the topic has lost their first records."),
    "published": _work("published", "Versions of tables that other catalogs were given."),
    "failed_publications": _work("publications_failed", "Attempts at this that failed, to be repeated."),
    "dropped_files": _work("dropped_files", "Data files dropped, since the topic has lost their records."),
}
CPU = counter("anabranch_tables_worker_cpu_seconds_total", "CPU time of the process that makes columns.")

DEFINITIONS = definitions_in(globals())
OF_STATS = ((UPKEEP, UpkeepStats()),)
"""Tables of fields, with an example of the described object."""


def collect(node: Node) -> Iterator[Metric]:
    """Yield the metrics of this area."""
    tables, now_ms = node.upkeep.tables, node.serving.now_ms()
    statuses = list(tables.statuses())
    yield from LAG.pieces(((each.name,), each.lag) for each in statuses)
    waited = [(each.name, each.lag_ms(now_ms)) for each in statuses]
    yield from LAG_SECONDS.pieces(((name,), waited_ms / 1000) for name, waited_ms in waited if waited_ms >= 0)
    yield from FAILING.pieces(((each.name,), bool(each.last_error)) for each in statuses)
    published = [(each.name, each.publication) for each in statuses if each.publication is not None]
    yield from PUBLISH_LAG.pieces(((name,), there.lag_ms(now_ms) / 1000) for name, there in published)
    yield from PUBLISH_FAILING.pieces(((name,), bool(there.error)) for name, there in published)
    yield from ROWS.pieces(((each.name,), each.rows) for each in statuses)
    yield from FILES.pieces(((each.name,), each.files) for each in statuses)
    yield from BYTES.pieces(((each.name,), each.bytes) for each in statuses)
    yield from SNAPSHOTS.pieces(((each.name,), each.snapshots) for each in statuses)
    upkeep = tables.upkeep
    yield from of_stats(UPKEEP, UpkeepStats() if upkeep is None else upkeep.stats)
    yield CPU.single(0.0 if upkeep is None else upkeep.cpu_s)
