"""The driver's answers, and a run of the client against a node."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab.client import Latency, PerfClient, PythonClient, outcome, parse
from tests.support import tools
from tests.support.node import NodeProcess

RESULT = (
    "== result seconds=2.5 sent.records=1000 requests=40.0 acked.records=1000 ack.p50_us=1500.5 ack.p99_us=2000.0 "
    "ack.p999_us=3000.0 ack.max_us=4000.0 read.records=0 history.bytes=0\n"
)


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], PerfClient]:
    def answer(line: str) -> PerfClient:
        client = PerfClient(tmp_path / "log")
        monkeypatch.setattr(client, "run", lambda *_: parse(line))
        return client

    return answer


def test_a_result_has_figures_and_latencies_in_ms() -> None:
    found = outcome(parse(RESULT))
    assert (found.seconds, found.sent_records, found.requests) == (2.5, 1000, 40)
    assert found.ack == Latency(1.5005, 2.0, 3.0, 4.0)
    assert found.read is None


def test_lost_records_are_no_result(answering: Callable[[str], PerfClient]) -> None:
    lost = RESULT.replace("acked.records=1000", "acked.records=999")
    with pytest.raises(RuntimeError, match="1000 records sent, 999 acknowledged"):
        answering(lost).load(1, "t", options={})
    with pytest.raises(RuntimeError, match="1000 records sent, 1000 acknowledged, 0 read"):
        answering(RESULT).load(1, "t", options={"consumers": 1})
    with pytest.raises(RuntimeError, match="1000 of 1001 records sent"):
        answering(RESULT).produce(1, "t", records=1001, record_bytes=10, batch_bytes=100)


class Meter:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.slow
def test_loads_and_reads_of_a_node(tmp_path: Path) -> None:
    tools.java()
    tools.kafka_class_path()
    with NodeProcess(tmp_path, topic_num_partitions=2) as node, PerfClient(tmp_path / "client.log") as client:
        port = int(node.bootstrap.rpartition(":")[2])
        meter = Meter()
        load: dict[str, str | float] = {"partitions": 2, "record.bytes": 100, "records": 500, "rate": 5000, "prime": 1}
        load |= {"seconds": 60, "consumers": 2}
        found = client.load(port, "both", options=load, meter=meter)
        assert (found.sent_records, found.read_records) == (500, 500)
        assert found.requests > 0
        assert found.ack is not None
        assert found.read is not None
        assert 0 < found.ack.p50_ms <= found.ack.p99_ms <= found.ack.p999_ms <= found.ack.max_ms
        assert meter.calls == ["start", "stop"]
        assert client.read(port, "both", partitions=2, passes=3).read_bytes == 3 * 502 * 100

        with pytest.raises(RuntimeError, match="unknown command"):
            client.run("jump", {}, None)
        history: dict[str, str | float] = {"history": "both", "history.partitions": 2, "history.rate": 1e8, "rate": 500}
        history["consumer.fetch.max.wait.ms"] = 5
        assert client.load(port, "beside", options={**load, "consumers": 0, **history}).history_bytes > 0


@pytest.mark.parametrize("library", ["librdkafka", "aiokafka"])
def test_pythons_producers_send_to_a_node(tmp_path: Path, library: str) -> None:
    with NodeProcess(tmp_path, topic_num_partitions=2) as node, PythonClient(tmp_path / "client.log") as client:
        port = int(node.bootstrap.rpartition(":")[2])
        meter = Meter()
        load: dict[str, str | float] = {"library": library, "partitions": 2, "record.bytes": 100, "records": 500}
        load |= {"seconds": 60, "prime": 1}
        found = client.load(port, "topic", options=load, meter=meter)
        assert found.sent_records == 500
        assert found.ack is not None
        assert 0 < found.ack.p50_ms <= found.ack.p99_ms <= found.ack.p999_ms <= found.ack.max_ms
        assert meter.calls == ["start", "stop"]
        assert client.load(port, "topic", options={**load, "records": 0, "seconds": 0.1}).sent_records > 0

        with pytest.raises(RuntimeError, match="unknown command"):
            client.run("read", {}, None)
        with pytest.raises(RuntimeError, match="load failed"):
            client.load(port, "topic", options={**load, "record.bytes": 2 << 20})
