"""Metrics that a listener derives from Spark's progress reports, without Spark."""

import json
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

import pytest

from anabranch.spark.freshness import Offsets
from anabranch.spark.listener import PipelineListener, PipelineMetrics, parse_progress, prometheus_text, serve_metrics

PROGRESS = {
    "id": "aa", "name": "flights", "batchId": 3, "numInputRows": 150, "inputRowsPerSecond": 12.5,
    "processedRowsPerSecond": 75.0, "batchDuration": 2000, "durationMs": {"addBatch": 1500, "walCommit": 20},
    "sources": [{
        "description": "KafkaV2[Subscribe[t]]",
        "startOffset": {"t": {"0": 0, "1": 0}},
        "endOffset": {"t": {"0": 100, "1": 50}},
        "latestOffset": {"t": {"0": 130, "1": 50}},
    }],
}  # fmt: skip


def event(**changes: Any) -> Any:
    values = {**PROGRESS, **changes}
    return SimpleNamespace(progress=SimpleNamespace(name=values["name"], json=json.dumps(values)))


def test_progress_is_read() -> None:
    progress = parse_progress(json.dumps(PROGRESS))
    assert (progress.query, progress.batch_id, progress.rows, progress.batch_ms) == ("flights", 3, 150, 2000)
    assert progress.consumed == {("t", 0): 100, ("t", 1): 50}
    assert progress.lag == {("t", 0): 30, ("t", 1): 0}


@pytest.mark.parametrize("offset", [None, "17", '"x"', 5, {"version": 1}, "not json", {"t": {"x": 1}}])
def test_offsets_of_other_sources_are_left_aside(offset: object) -> None:
    progress = parse_progress(json.dumps({**PROGRESS, "sources": [{"endOffset": offset, "latestOffset": None}]}))
    assert progress.consumed == {}


def test_metrics_as_prometheus_reads_them() -> None:
    listener = PipelineListener("flights")
    listener.onQueryProgress(event())
    listener.onQueryProgress(event(batchId=4, numInputRows=50, batchDuration=500))
    listener.onQueryProgress(event(name="another"))
    lines = prometheus_text(listener.metrics).splitlines()
    for line in (
        'anabranch_pipeline_rows_total{query="flights"} 200',
        'anabranch_pipeline_batches_total{query="flights"} 2',
        'anabranch_pipeline_busy_seconds_total{query="flights"} 2.5',
        'anabranch_pipeline_batch_id{query="flights"} 4',
        'anabranch_pipeline_batch_seconds{query="flights"} 0.5',
        'anabranch_pipeline_phase_seconds{query="flights",phase="addBatch"} 1.5',
        'anabranch_pipeline_offset{query="flights",topic="t",partition="0"} 100',
        'anabranch_pipeline_latest_offset{query="flights",topic="t",partition="0"} 130',
        'anabranch_pipeline_lag{query="flights",topic="t",partition="0"} 30',
        'anabranch_pipeline_lag{query="flights",topic="t",partition="1"} 0',
        "anabranch_pipeline_group_commits_total 0",
    ):
        assert line in lines
    assert not any("another" in line for line in lines)


def test_rows_that_were_counted_go_before_sparks() -> None:
    counted: dict[int, int] = {}
    listener = PipelineListener("flights", counted=counted)
    counted[3] = 75
    listener.onQueryProgress(event())
    listener.onQueryProgress(event(batchId=4, numInputRows=5))
    listener.onQueryProgress(event(batchId=3, numInputRows=0))
    assert listener.metrics.queries["flights"].rows == 80


def test_labels_are_escaped() -> None:
    observed = PipelineMetrics()
    observed.add(parse_progress(json.dumps({**PROGRESS, "name": 'a"b\\c\nd'})))
    assert 'rows_total{query="a\\"b\\\\c\\nd"} 150' in prometheus_text(observed)


def test_offsets_are_committed_once_and_a_failure_is_told_and_tried_again() -> None:
    committed: list[Offsets] = []
    failures = [RuntimeError("the group is not there\nat line 1")]

    def commit(offsets: Offsets) -> None:
        if failures:
            raise failures.pop()
        committed.append(offsets)

    listener = PipelineListener("flights", commit)
    for _ in range(3):
        listener.onQueryProgress(event())
    assert committed == [{("t", 0): 100, ("t", 1): 50}]
    assert (listener.metrics.commits, listener.metrics.commit_failures) == (1, 1)
    assert listener.metrics.last_failure == "the group is not there"


def test_the_end_of_another_query_is_not_ours() -> None:
    ours, other = uuid4(), uuid4()
    listener = PipelineListener("flights")
    started: Any = SimpleNamespace(name="flights", runId=ours)
    listener.onQueryStarted(started)
    for run_id, is_over in ((other, False), (ours, True)):
        ended: Any = SimpleNamespace(runId=run_id)
        listener.onQueryTerminated(ended)
        assert listener.terminated.is_set() == is_over


def test_metrics_over_http() -> None:
    observed = PipelineMetrics()
    observed.add(parse_progress(json.dumps(PROGRESS)))
    with serve_metrics("127.0.0.1", 0, observed) as port:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            assert response.read().decode() == prometheus_text(observed)
        with pytest.raises(HTTPError) as caught:
            urlopen(f"http://127.0.0.1:{port}/other", timeout=30)
        with caught.value as error:
            assert error.code == 404
        with pytest.raises(OSError, match="in use"), serve_metrics("127.0.0.1", port, observed):
            pass
