"""Requests and answers of tables' versions come out of JSON as they went in."""

import json

from anabranch.tables.ranges import AbortedTransaction, PartitionRange
from anabranch.tables.snapshots import DataFile, Join, SnapshotReport, SnapshotRequest, Target, Written


def test_a_request_comes_out_of_json_as_it_went_in() -> None:
    request = SnapshotRequest(
        "0f" * 16, "file:///t", ["schema"], {"a": "b"}, 2, 5, "/m", "file:///t/m", 7, "/l", {"file:///t/1": "/1"},
        [DataFile("file:///t/2", 8, {"record_count": 1})], ["file:///t/3"], {"x": "y"}, [6], "/target",
        Target("/5", "file:///t/5"), None,
    )  # fmt: skip
    assert SnapshotRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_a_report_comes_out_of_json_as_it_went_in() -> None:
    report = SnapshotReport(Written(1, 2), None, Written(3, 4), ["file:///t/1"], 1, 2, 3, 4, 5)
    found = SnapshotReport.from_json(json.loads(json.dumps(report.to_json())))
    assert found == report
    assert found.metadata.crc32c == 4


def test_a_join_comes_out_of_json_as_it_went_in() -> None:
    join = Join(["/a", "/b"], "schema", PartitionRange("t", 1, 2, 3, (AbortedTransaction(4, 5, 6),)), "/target")
    assert Join.from_json(json.loads(json.dumps(join.to_json()))) == join
