"""Planted bugs of what becomes of tables while their topics are altered, grown, moved, deleted and made again."""

from collections.abc import Callable, Sequence

from tests.simulation.plan import Plan
from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import (
    TABLE_BEHIND,
    TABLE_BOUNDS,
    TABLE_COLUMNS,
    TABLE_EARLY,
    TABLE_LEFT,
    TABLE_LIFE,
    having,
    without,
)

COMMITTER = "anabranch.tables.upkeep.committer"
CATALOG = "anabranch.s3stream.catalog"


def living(*faults: str, **values: float) -> Callable[[Plan], Plan]:
    """Return a change of plans that adds topics which live as tables, and whose clocks are right."""
    adapt = having(*faults, table_topics=2, goes_back=False, seconds=60.0, **values)
    return lambda plan: without("clock")(adapt(plan))


TABLE_TOPICS: Sequence[Planted] = (
    Planted(
        "table-kept-rows-leave",
        "a table that keeps its rows loses those that the topic has lost",
        [
            Edit(
                COMMITTER,
                "        if view.info.retention is TableRetention.KEEP:\n            return False\n",
                "        if False:\n            return False\n",
            ),
            Edit(f"{CATALOG}.table_plans", "        if self.keeps:\n", "        if False:\n"),
        ],
        found_by=TABLE_BOUNDS,
        seeds=20,
        adapt=living(),
    ),
    Planted(
        "table-rows-leave-early",
        "the first files of a table leave it before the topic has lost their records",
        [
            Edit(
                "anabranch.tables.upkeep.plan",
                "lambda file: file.end_offset <= start, each.files",
                "lambda file: file.end_offset <= start + 40, each.files",
            ),
            Edit(
                f"{CATALOG}.table_plans",
                "        if self.stream is None or dropped[-1].end_offset > self.stream.start_offset:\n",
                "        if self.stream is None:\n",
            ),
        ],
        found_by=TABLE_BOUNDS,
        seeds=10,
        adapt=having(idempotent=2, tables=1),
    ),
    Planted(
        "table-kept-goes-with-topic",
        "a table that outlives its topic is dropped with it",
        [
            Edit(
                f"{CATALOG}.table_rows",
                "query = select(tables.c.table_id).where(tables.c.retention == int(TableRetention.TOPIC))",
                "query = select(tables.c.table_id)",
            )
        ],
        found_by=TABLE_LIFE,
        seeds=10,
        adapt=living(),
    ),
    Planted(
        "table-outlives-topic",
        "a table stays when its topic is deleted",
        [Edit(f"{CATALOG}.topics", "    drop_tables_of(connection, topic_ids, delete_after_ms)\n", "")],
        found_by=TABLE_LIFE,
        seeds=10,
        adapt=living(),
    ),
    Planted(
        "table-gone-when-detached",
        "a table is dropped when its topic is detached",
        [
            Edit(
                f"{CATALOG}.detach",
                "    info = get_topic(connection, name)\n    stream_ids",
                f'    rows = __import__("{CATALOG}.table_rows", fromlist=["drop_tables_of"])\n'
                "    rows.drop_tables_of(connection, [topic_id], now_ms)\n"
                "    info = get_topic(connection, name)\n    stream_ids",
            )
        ],
        found_by=TABLE_LIFE,
        seeds=20,
        adapt=living(nodes=1),
    ),
    Planted(
        "table-retention-altered",
        "the retention of a table follows a config that counts when it is made",
        [
            Edit(
                f"{CATALOG}.topics",
                "    configs = change(dict(topic.configs))\n",
                "    configs = change(dict(topic.configs))\n"
                '    flip = "UPDATE tables SET retention = 3 - retention WHERE topic_id = ?"\n'
                '    was, is_now = (each.get("table.retention") for each in (topic.configs, configs))\n'
                "    if was != is_now: connection.exec_driver_sql(flip, (topic_id,))\n",
            )
        ],
        found_by=TABLE_LIFE,
        seeds=20,
        adapt=living(),
    ),
    Planted(
        "table-made-while-off",
        "a table is made for a topic whose table.enable has become false meanwhile",
        [Edit(f"{CATALOG}.table_rows", "        if configs.get(name) != value:\n", "        if False:\n")],
        found_by=TABLE_LIFE,
        seeds=20,
        adapt=living(),
    ),
    Planted(
        "table-drop-misses-new",
        "a drop misses the table that is made just before table.enable becomes false",
        [
            Edit(
                "anabranch.broker.operator.admin.api.tables",
                "            if query.table_id is None:\n"
                "                info = await self._tables.of_topic(topic.topic_id)\n",
                "",
            )
        ],
        found_by=TABLE_LIFE,
        seeds=40,
        adapt=living(),
    ),
    Planted(
        "table-drop-takes-files",
        "a drop that is to leave the files deletes them",
        [Edit(f"{CATALOG}.table_rows", "        if keep_files:\n", "        if False:\n")],
        found_by=TABLE_LEFT,
        seeds=20,
        adapt=living(),
    ),
    Planted(
        "table-files-deleted-early",
        "files of an expired snapshot are deleted at once",
        [
            Edit(
                "anabranch.tables.upkeep.commit",
                "delete_after_ms=now_ms + self._context.delete_delay_ms",
                "delete_after_ms=now_ms",
            )
        ],
        found_by=TABLE_EARLY,
        seeds=10,
        adapt=living(tables=1, snapshot_retention_ms=1_000, delete_delay_ms=20_000),
    ),
    Planted(
        "table-topic-as-it-was",
        "a committer does not hear of new partitions and configs of its topic",
        [Edit("anabranch.tables.upkeep.service", "        self.committer.topic = topic\n", "")],
        found_by=TABLE_BEHIND,
        seeds=20,
        adapt=living(),
    ),
    Planted(
        "table-schema-as-it-was",
        "a committer does not look for newer schemas",
        [
            Edit(
                "anabranch.tables.upkeep.open_table",
                "        before = self._finding\n",
                "        before = self._finding\n        if before is not None and schema is not None: return before\n",
            )
        ],
        found_by=TABLE_BEHIND,
        seeds=30,
        adapt=living(),
    ),
    Planted(
        "table-join-loses-column",
        "rows that are joined lose the columns that the table did not begin with",
        [
            Edit(
                "anabranch.tables.joins",
                "conform(rows.to_struct_array(), ",
                "conform(rows.select(rows.schema.names[:3]).to_struct_array(), ",
            )
        ],
        found_by=TABLE_COLUMNS,
        seeds=40,
        adapt=living(),
    ),
    Planted(
        "table-error-without-value",
        "the row of a value that cannot be decoded does not have its bytes",
        [
            Edit(
                "anabranch.tables.rows",
                '"value_raw": _where(errors.is_valid(), values),',
                '"value_raw": pa.nulls(len(values), values.type),',
            )
        ],
        found_by=TABLE_COLUMNS,
        seeds=10,
        adapt=living(),
    ),
    Planted(
        "table-clone-by-own-number",
        "the blocks of a clone are looked up under its own stream, not under that which they were stored for",
        [
            Edit(
                "anabranch.tables.upkeep.source",
                "index.find(location.stored_stream_id, low, high)",
                "index.find(location.range.stream_id, low, high)",
            )
        ],
        found_by=TABLE_BEHIND,
        seeds=20,
        adapt=living(nodes=1),
    ),
)
