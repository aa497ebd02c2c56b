"""Keys, values and names with everything that means something in SQL, JSON or a file's name, through every mode."""

import ast
import json
from collections.abc import Iterator
from datetime import date
from functools import reduce
from operator import and_
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.merge import bounds_of
from anabranch.spark.pipeline.replay import replay
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import FORMATS, JANUARY_MS, make_pipeline, run
from tests.support.events import Event, send
from tests.support.soak import LONG
from tests.support.wheel import ROOT

slow = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

POISON = (
    "${env:HOME}",
    "${spark.app.name}",
    "${system:user.name}",
    "'",
    "'; DROP TABLE t --",
    '"',
    "`",
    "\\",
    "\\'",
    "\\u0041",
    "%_",
    "\n",
    "\0",
    "{topic}",
    "äöü\U0001f600\u202e",
    "",
    " ",
    "x" * 5_000,
)


def event(text: str, content: bytes | None) -> Event:
    return Event(len(text.encode()) % 3, content, text.encode(), JANUARY_MS)


def poisoned(servers: str, folder: Path, topic: str, table_format: str, mode: str) -> PipelineSettings:
    key = {"format": "text"}
    return make_pipeline(servers, folder, topic, table_format, table={"mode": mode}, key=key)


def table_of(spark: SparkSession, pipeline: PipelineSettings) -> list[tuple[str, int, str]]:
    rows = open_tables(spark, pipeline)[0].read().select("key", "data.n", "data.name").collect()
    return sorted((row["key"], row["n"], row["name"]) for row in rows)


class TestPoison:
    pytestmark = slow

    @pytest.mark.parametrize(
        ("mode", "table_format"), [("upsert", "iceberg"), pytest.param("changelog", "delta", marks=LONG)]
    )
    def test_a_key_has_one_row_whatever_it_is(
        self, spark: SparkSession, servers: str, topic: str, tmp_path: Path, mode: str, table_format: str
    ) -> None:
        pipeline = poisoned(servers, tmp_path, topic, table_format, mode)
        row = "n INT, name STRING"
        (tmp_path / "values.ddl").write_text(row if mode == "upsert" else f"after STRUCT<{row}>, op STRING")

        def change(text: str, n: int) -> Event:
            content = {"n": n, "name": text}
            return event(text, json.dumps(content if mode == "upsert" else {"op": "u", "after": content}).encode())

        send(servers, topic, [change(text, 1) for text in POISON])
        run(spark, pipeline)
        # Alone in its micro-batch, a key is both of its bounds.
        send(servers, topic, [change(POISON[0], 2)])
        run(spark, pipeline)
        send(servers, topic, [*(change(text, 3) for text in POISON[:9]), *(event(text, None) for text in POISON[9:])])
        run(spark, pipeline)
        assert table_of(spark, pipeline) == sorted((text, 3, text) for text in POISON[:9])

    @FORMATS
    def test_appended_rows_and_dead_letters_are_as_they_were_sent(
        self, spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
    ) -> None:
        pipeline = poisoned(servers, tmp_path, topic, table_format, "append")
        (tmp_path / "values.ddl").write_text("n INT, name STRING, m INT")
        dead = [json.dumps({"n": 2, "name": text, "m": True}).encode() for text in POISON]
        send(servers, topic, [event(text, content) for text, content in zip(POISON, dead, strict=True)])
        send(servers, topic, [event(text, json.dumps({"n": 1, "name": text}).encode()) for text in POISON])
        run(spark, pipeline)
        assert table_of(spark, pipeline) == sorted((text, 1, text) for text in POISON)
        letters = open_tables(spark, pipeline)[1]
        found = {(bytes(row["key"]).decode(), bytes(row["value"])) for row in letters.read().collect()}
        assert found == set(zip(POISON, dead, strict=True))
        (tmp_path / "values.ddl").write_text("n INT, name STRING")
        assert replay(spark, pipeline, "string(key) = '${env:HOME}'", dry_run=True).put_back == 1
        assert replay(spark, pipeline, None, dry_run=False).put_back == len(POISON)
        assert letters.read().isEmpty()
        assert table_of(spark, pipeline) == sorted((text, n, text) for text in POISON for n in (1, 2))


@pytest.mark.spark
@pytest.mark.slow
def test_bounds_hold_for_every_key(spark: SparkSession) -> None:
    kind = "topic STRING, key STRUCT<text: STRING, raw: BINARY, `a.b`: STRING, `a``b`: INT, day: DATE>"
    days = [None, date(1, 1, 1), date(9999, 12, 31)]
    keys = [(text, bytearray(text.encode()), text, n, days[n % 3]) for n, text in enumerate(POISON)]
    for key in keys:
        rows = spark.createDataFrame([("t", key)], kind)
        (found,) = rows.filter(reduce(and_, bounds_of(rows, (), f.col))).collect()
        assert found["key"]["text"] == key[0]


def texts_of_sql(tree: ast.AST) -> Iterator[ast.expr]:
    """Arguments of calls that take SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"sql", "expr", "selectExpr", "parseExpression"}:
                yield from node.args
            elif node.func.attr in {"filter", "where"} and ast.unparse(node.func.value) not in {"np", "pc"}:
                yield from (arg for arg in node.args if isinstance(arg, ast.JoinedStr | ast.Name))


def is_constant(text: ast.expr) -> bool:
    """True for a text that has nothing in it but what is written there, and quoted names."""
    if isinstance(text, ast.JoinedStr):
        parts = [part.value for part in text.values if isinstance(part, ast.FormattedValue)]
        return all(ast.unparse(part).startswith("quoted(") or ast.unparse(part) == "self._sql_name" for part in parts)
    return isinstance(text, ast.Constant)


def test_no_value_becomes_text_of_sql() -> None:
    found = {
        (path.stem, ast.unparse(text))
        for path in (ROOT / "spark").rglob("*.py")
        for text in texts_of_sql(ast.parse(path.read_text()))
        if not is_constant(text)
    }
    # What the pipeline's file and the command line give as SQL, a condition that is a column, and the name of a table
    # that a program gives as SQL.
    assert found == {
        ("table_tail", "f'SHOW TBLPROPERTIES {table}'"),
        ("source", "expression"), ("columns", "condition"), ("replay", "where"), ("dead_letter_topic", "is_own"),
    }  # fmt: skip
