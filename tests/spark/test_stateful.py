"""Spark's own stateful functions of PySpark over a topic: what a group has seen outlives a restart of its query."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.support.events import Event, send
from tests.support.soak import LONG

pytestmark = [pytest.mark.spark, pytest.mark.interop]

WAIT_S = 400
COLUMNS = "word STRING, seen BIGINT"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def count_with_state(records: DataFrame) -> DataFrame:
    def count(key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        (before,) = state.getOption or (0,)
        seen = before + sum(map(len, frames))
        state.update((seen,))
        yield pd.DataFrame({"word": [key[0]], "seen": [seen]})

    return records.groupBy("word").applyInPandasWithState(
        count, COLUMNS, "seen BIGINT", "update", GroupStateTimeout.NoTimeout
    )


class Counter(StatefulProcessor):
    """Counts the rows of a word."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "seen BIGINT")

    def add(self, count: int) -> int:
        (before,) = self.seen.get() or (0,)
        self.seen.update((before + count,))
        return int(before) + count

    def close(self) -> None:
        pass


class PandasCounter(Counter):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield pd.DataFrame({"word": [key[0]], "seen": [self.add(sum(map(len, rows)))]})


class RowCounter(Counter):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(word=key[0], seen=self.add(sum(1 for _ in rows)))


def transform_in_pandas(records: DataFrame) -> DataFrame:
    return records.groupBy("word").transformWithStateInPandas(PandasCounter(), COLUMNS, "Update", "None")


def transform_rows(records: DataFrame) -> DataFrame:
    return records.groupBy("word").transformWithState(RowCounter(), COLUMNS, "Update", "None")


@pytest.mark.parametrize(
    "count", [count_with_state, *(pytest.param(each, marks=LONG) for each in (transform_in_pandas, transform_rows))]
)
def test_a_group_remembers_what_it_has_seen(
    spark: SparkSession,
    servers: str,
    topic: str,
    tmp_path: Path,
    count: Callable[[DataFrame], DataFrame],
) -> None:
    found: dict[str, int] = {}

    def run(words: list[bytes]) -> dict[str, int]:
        send(servers, topic, [Event(at % 3, word) for at, word in enumerate(words)])
        records = (
            spark.readStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"})
            .load()
            .selectExpr("CAST(value AS STRING) AS word")
        )
        query = (
            count(records)
            .writeStream.outputMode("update")
            .foreachBatch(lambda rows, _: found.update((row["word"], row["seen"]) for row in rows.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        return found

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)  # that of transformWithState
    try:
        assert run([b"a", b"b", b"a", b"a"]) == {"a": 3, "b": 1}
        assert run([b"b", b"c"]) == {"a": 3, "b": 2, "c": 1}
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
