"""Rows that tables of topics still have of offsets that a rebuild cannot find in any object. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from anabranch.s3stream.catalog.manifest_state import CatalogState, TableRows
from anabranch.s3stream.catalog.table_values import TableRetention
from anabranch.s3stream.maintain.rebuild_plan import Gap


class RowsLeft(NamedTuple):
    """Offsets [start, end) of a stream that are lost, and whose rows a table has."""

    table: str
    stream_id: int
    start_offset: int
    end_offset: int
    keeps: bool
    """False: they leave the table with the next commit, and its snapshots as these expire."""


def rows_left(state: CatalogState, gaps: Iterable[Gap]) -> list[RowsLeft]:
    """Return the rows that tables have of gaps, by stream and offset."""
    topics = [(topic.topic_id, topic.stream_ids) for topic in state.topics]
    topics += [(topic.topic_id, topic.stream_ids) for topic in state.detached]
    streams = {(topic_id, idx): stream_id for topic_id, ids in topics for idx, stream_id in enumerate(ids)}
    tables = {row["table_id"]: row for row in _rows(state.tables, "tables")}
    lost = list(gaps)
    left = []
    for row in _rows(state.tables, "table_partitions"):
        table = tables[row["table_id"]]
        stream_id = streams.get((table["topic_id"], row["idx"]))
        for gap in lost:
            low, high = max(gap.start_offset, row["start_offset"]), min(gap.end_offset, row["end_offset"])
            if gap.stream_id == stream_id and low < high:
                keeps = table["retention"] == TableRetention.KEEP
                left.append(RowsLeft(table["name"], gap.stream_id, low, high, keeps))
    return sorted(left, key=lambda each: each[1:3])


def _rows(tables: Mapping[str, TableRows], name: str) -> Iterator[Mapping[str, Any]]:
    found = tables.get(name)
    return iter(()) if found is None else (dict(zip(found.columns, row, strict=True)) for row in found.rows)
