"""A topic that is made anew between two micro-batches of the Kafka source is not taken for the old one."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.checkpoints import drop_topic_ids
from anabranch.spark.pipeline.check import RECORDS, check_pipeline
from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.tables import open_tables
from anabranch.spark.pipeline.topic_ids import TopicIds
from tests.spark.pipeline.support import WAIT_S, make_pipeline, numbered, run
from tests.support.events import create_topic, delete_topic, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def make_anew(servers: str, topic: str, records: int) -> None:
    delete_topic(servers, topic)
    create_topic(servers, topic, 2)  # one partition less
    send(servers, topic, numbered(1000, 1000 + records, 2))


@pytest.mark.parametrize("table_format", ["iceberg", "parquet"])
def test_a_new_topic_of_the_same_name_is_refused_or_read_from_its_start(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = make_pipeline(servers, tmp_path, topic, table_format)
    send(servers, topic, numbered(0, 50))
    running = start_pipeline(spark, pipeline)
    assert running.query.awaitTermination(WAIT_S)
    # It is longer than the old one was, so that Spark itself sees nothing amiss.
    make_anew(servers, topic, 80)
    said = f"topic {topic} was deleted and made anew"
    if running.batches is not None:
        with pytest.raises(PipelineError, match=said):
            running.batches(spark.createDataFrame([], RECORDS), 1)
    running.stop()
    for use in (check_pipeline, start_pipeline):
        with pytest.raises(PipelineError, match=f"{said} since it was read: start again with a new checkpoint"):
            use(spark, pipeline)
    lines: list[str] = []
    lossy = make_pipeline(servers, tmp_path, topic, table_format, source={"fail_on_data_loss": False})
    assert f"{said}: it is read from its start" in check_pipeline(spark, lossy)
    running = start_pipeline(spark, lossy, tell=lines.append)
    try:
        for query in running.queries:
            assert query.awaitTermination(WAIT_S)
    finally:
        running.stop()
    assert lines == [f"{said}: it is read from its start"]
    run(spark, pipeline)  # the new one is known now
    location = pipeline.table.location
    table = open_tables(spark, pipeline)[0].read() if location is None else spark.read.parquet(location)
    found = Counter(row["n"] for row in table.select("data.n").collect())
    assert found == Counter([*range(50), *range(1000, 1080)])


def test_what_the_direct_source_knew_is_compared_as_well(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text(f"v1\n{{}}\n{json.dumps({topic: {'0': 5, 'id': '0123' * 8}})}")
    pipeline = make_pipeline(servers, tmp_path, topic)
    with pytest.raises(PipelineError, match=f"topic {topic} was deleted and made anew since it was read"):
        start_pipeline(spark, pipeline)
    # What is known is stored before the ids are dropped from the offsets.
    with closing(TopicIds(spark, pipeline, {"gone": "0123" * 8, topic: "4567" * 8}, {})) as ids:
        with pytest.raises(PipelineError, match="was deleted and made anew"):
            ids.check()
        ids.known = {}
        assert ids.start([]) == []
        now = ids.known[topic]
    drop_topic_ids(spark, pipeline.checkpoint)
    assert TopicIds.of(spark, pipeline).known == {topic: now}
