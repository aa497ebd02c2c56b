"""A pipeline that reads its records directly from objects."""

from pathlib import Path

import pytest

from spark.pipeline.tables import open_tables
from tests.spark.direct.conftest import Lake
from tests.spark.pipeline.support import every_offset_once, make_pipeline, numbered, offsets, run
from tests.support.events import create_topic, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def test_a_pipeline_takes_what_is_in_objects_and_goes_on(lake: Lake, tmp_path: Path) -> None:
    topic = "direct-pipeline"
    create_topic(lake.servers, topic, 3)
    source = {"kind": "direct", "options": {"dataDir": str(lake.data_dir)}}
    pipeline = make_pipeline("", tmp_path, topic, source=source, table={"partition_by": "none"})
    table, _ = open_tables(lake.spark, pipeline)
    for start, end in ((0, 90), (90, 150)):
        send(lake.servers, topic, numbered(start, end))
        lake.wait_committed(topic)
        run(lake.spark, pipeline)
        assert offsets(table.read()) == every_offset_once(end)
    assert table.read().agg({"data.n": "sum"}).collect()[0][0] == sum(range(150))
