"""Parsing the output of Apache Kafka's performance tools."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab.client import Consumed, PerfClient, Produced

SENT = (
    "163840 records sent, 80354.6 records/sec (78.47 MB/sec), 365.32 ms avg latency, 706.00 ms max latency, "
    "355 ms 50th, 650 ms 95th, 690 ms 99th, 704 ms 99.9th."
)
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
ROW = "2026-11-21 15:30:00:000, 2026-11-21 15:30:01:000, 160.0, 160.0, 163840, 163840.0, 300, 700, 228.57, 234057.1"


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], PerfClient]:
    def answer(lines: list[str]) -> PerfClient:
        client = PerfClient(tmp_path / "log")
        monkeypatch.setattr(client, "_run", lambda *_: lines)
        return client

    return answer


def test_the_last_line_of_the_producer_counts(answering: Callable[[list[str]], PerfClient]) -> None:
    client = answering(["100 records sent, 20.0 records/sec (0.02 MB/sec), 1.0 ms avg latency, 2.0 ms max", SENT])
    produced = client.produce(1, "t", records=163840, record_bytes=1024, batch_bytes=16384)
    assert produced == Produced(163840, 78.47, 355, 690)


def test_lost_records_are_no_result(answering: Callable[[list[str]], PerfClient]) -> None:
    with pytest.raises(RuntimeError, match="expected 163841 records sent"):
        answering([SENT]).produce(1, "t", records=163841, record_bytes=1024, batch_bytes=16384)
    with pytest.raises(RuntimeError, match="expected 163841 records read, found 163840"):
        answering([HEADER, ROW]).consume(1, "t", records=163841)
    with pytest.raises(RuntimeError, match="printed no result"):
        answering(["WARNING: timed out"]).consume(1, "t", records=1)


def test_the_consumers_rate_is_that_of_fetching(answering: Callable[[list[str]], PerfClient]) -> None:
    assert answering(["note", HEADER, ROW]).consume(1, "t", records=163840) == Consumed(163840, 228.57)
