"""A pipeline that reads its records directly from objects."""

from pathlib import Path

import pytest

from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.run import start_pipeline
from tests.spark.direct.conftest import Lake
from tests.spark.pipeline.support import (
    every_offset_once,
    forget_last_commit,
    make_pipeline,
    numbered,
    offsets,
    run,
)
from tests.support.events import create_topic, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def test_the_two_sources_take_turns_on_one_checkpoint(lake: Lake, tmp_path: Path) -> None:
    topic = "turns"
    create_topic(lake.servers, topic, 3)
    direct = {"kind": "direct", "options": {"dataDir": str(lake.data_dir)}}
    end = 0
    for number, kind in enumerate(("direct", "kafka", "direct")):
        start, end = end, end + 60
        send(lake.servers, topic, numbered(start, end))
        pipeline = make_pipeline(
            lake.servers if kind == "kafka" else "", tmp_path, topic,
            source=direct if kind == "direct" else {}, table={"partition_by": "none"},
        )  # fmt: skip
        if kind == "direct":
            lake.wait_committed(topic)
        else:
            forget_last_commit(tmp_path / "checkpoint")  # the other source repeats the micro-batch
        run(lake.spark, pipeline)
        table = lake.spark.table(str(pipeline.table.name))
        assert offsets(table) == every_offset_once(end), f"turn {number}, {kind}"
        assert table.agg({"data.n": "sum"}).collect()[0][0] == sum(range(end))


def test_the_direct_source_does_not_go_back_behind_what_the_kafka_source_has_read(lake: Lake, tmp_path: Path) -> None:
    topic = "ahead"
    create_topic(lake.servers, topic, 3)
    send(lake.servers, topic, numbered(0, 90))
    lake.wait_committed(topic)
    run(lake.spark, make_pipeline(lake.servers, tmp_path, topic, table={"partition_by": "none"}))
    offsets_file = tmp_path / "checkpoint" / "offsets" / "0"
    # As if records that it has read were not uploaded yet.
    offsets_file.write_text(offsets_file.read_text().replace('"0":30', '"0":31'))
    (offsets_file.parent / ".0.crc").unlink()
    source = {"kind": "direct", "options": {"dataDir": str(lake.data_dir)}}
    pipeline = make_pipeline("", tmp_path, topic, source=source, table={"partition_by": "none"})
    with pytest.raises(PipelineError, match="is at offset 31, and the records in objects end at 30"):
        start_pipeline(lake.spark, pipeline)
