"""Rows that tables still have of offsets that a rebuild has lost."""

from pathlib import Path

import pytest

from anabranch.s3stream.catalog.manifest_state import CatalogState
from anabranch.s3stream.catalog.table_values import TableRetention
from anabranch.s3stream.maintain.rebuild_plan import Gap, plan_rebuild
from anabranch.s3stream.maintain.rebuild_tables import RowsLeft, rows_left
from tests.support.catalog_node import opened_catalog
from tests.support.table_node import TableNode


async def state_of(tmp_path: Path, retention: TableRetention = TableRetention.TOPIC) -> tuple[CatalogState, int]:
    """State of a catalog with a stream of 100 records, of which a table has the first 60; and the stream's id."""
    async with opened_catalog(f"sqlite:///{tmp_path / 'catalog.db'}") as catalog:
        table = await TableNode.started(catalog, retention=retention)
        await table.grow(1, 100)
        await table.append({1: [(0, 40), (40, 60)]})
        _, state = await catalog.read_state()
    return state, table.node.streams[1]


@pytest.mark.parametrize("retention", TableRetention)
async def test_rows_of_lost_offsets_are_named(tmp_path: Path, retention: TableRetention) -> None:
    state, stream = await state_of(tmp_path, retention)
    gaps = [Gap(stream, 50, 100), Gap(stream, 0, 10), Gap(stream, 60, 70), Gap(stream + 1, 0, 10)]
    keeps = retention is TableRetention.KEEP
    assert rows_left(state, gaps) == [RowsLeft("t", stream, 0, 10, keeps), RowsLeft("t", stream, 50, 60, keeps)]


async def test_no_offset_of_a_table_is_given_to_another_record(tmp_path: Path) -> None:
    """Without any object the stream goes on at the end that the catalog had, past the table's."""
    state, stream = await state_of(tmp_path)
    plan = plan_rebuild(state, [])
    assert plan.gaps == [Gap(stream, 0, 100)]
    assert plan.chains[stream].end_offset == 100


async def test_a_catalog_without_tables_has_none(tmp_path: Path) -> None:
    async with opened_catalog(f"sqlite:///{tmp_path / 'catalog.db'}") as catalog:
        _, state = await catalog.read_state()
    assert rows_left(state, [Gap(1, 0, 10)]) == []
