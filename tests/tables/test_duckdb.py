"""Files of a table as an engine that does not know Arrow's writer reads them."""

from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.table import StaticTable

from tests.tables.versions import TableFolder, kafka_rows


def test_the_planned_files_have_the_rows(tmp_path: Path) -> None:
    table = TableFolder(tmp_path)
    first = table.add_rows(kafka_rows(table.schema, 0, range(5), n=[5, None, 7, -1, 9], s=["é", "", None, "x", "y"]))
    table.commit([first])
    table.evolve(pa.field("n", pa.int64()), pa.field("in", pa.struct([pa.field("d", pa.decimal128(9, 2))])))
    second = table.add_rows(kafka_rows(table.schema, 1, [0, 3], n=[1 << 40, 2], **{"in": [{"d": 5}, None]}))
    table.commit([second])
    scan = StaticTable.from_metadata(f"file://{table.metadata}").scan()
    files = [str(table.path(task.file.file_path)) for task in scan.plan_files()]
    with duckdb.connect() as engine:
        query = (
            "SELECT n, s, struct_extract(\"in\", 'd') AS d, _kafka.partition AS p, _kafka.offset AS o "
            "FROM read_parquet(?, union_by_name := true) ORDER BY p, o"
        )
        found = [*map(tuple, engine.execute(query, [files]).fetchall())]
    rows = sorted(scan.to_arrow().to_pylist(), key=lambda row: (row["_kafka"]["partition"], row["_kafka"]["offset"]))
    expected = [
        (row["n"], row["s"], row["in"] and row["in"]["d"], row["_kafka"]["partition"], row["_kafka"]["offset"])
        for row in rows
    ]
    assert found == expected
    assert len(found) == 7
