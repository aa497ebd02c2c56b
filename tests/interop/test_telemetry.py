"""Real clients push their metrics (KIP-714): Java's and librdkafka's. Kafka's own tool sets the subscription."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from tests.interop.test_java import run
from tests.support.kafka_tools import TOOLS
from tests.support.node import NodeProcess
from tests.support.waiting import WAIT_S, expect_before

pytestmark = pytest.mark.interop

CLIENT_METRICS = f"{TOOLS}.ClientMetricsCommand"
PERFORMANCE = f"{TOOLS}.ProducerPerformance"
INTERVAL_MS = "100"
SAMPLE = re.compile(r"^anabranch_(client_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("telemetry"), telemetry_enabled=True) as running:
        subscribe = ["--alter", "--name", "all", "--metrics", "*", "--interval", INTERVAL_MS]
        run(running.bootstrap, CLIENT_METRICS, *subscribe, "--match", "client_id=(java|rdkafka)-.*")
        yield running
        assert running.terminate() == 0


def series(node: NodeProcess, client_id: str) -> dict[str, float]:
    """The series of a client by name: the largest value of each."""
    found: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(node.ask("/metrics").decode()):
        if f'client_id="{client_id}"' in labels:
            found[name] = max(found.get(name, 0.0), float(value))
    return found


def series_while(node: NodeProcess, client_id: str, step: Callable[[], object]) -> dict[str, float]:
    """Repeat a step until the client's metrics have arrived."""
    deadline = time.monotonic() + WAIT_S
    while not (found := series(node, client_id)):
        expect_before(deadline, "metrics of the client")
        step()
    return found


def test_kafkas_tool_describes_and_lists_subscriptions(node: NodeProcess) -> None:
    assert run(node.bootstrap, CLIENT_METRICS, "--list").split() == ["all"]
    described = run(node.bootstrap, CLIENT_METRICS, "--describe", "--name", "all")
    assert f"interval.ms={INTERVAL_MS}" in described
    assert "match=client_id=(java|rdkafka)-.*" in described


def test_librdkafka_pushes(node: NodeProcess) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "client.id": "rdkafka-one", "log_level": 3})

    def step() -> None:
        producer.produce("t", b"x")
        producer.poll(0.1)

    found = series_while(node, "rdkafka-one", step)
    assert any("producer" in name for name in found), sorted(found)
    assert producer.flush(WAIT_S) == 0


def test_a_java_producer_pushes_and_says_its_last(node: NodeProcess) -> None:
    arguments = ["--topic", "t", "--num-records", "300", "--record-size", "10", "--throughput", "100"]
    run(node.bootstrap, PERFORMANCE, *arguments, "--command-property", "client.id=java-one")
    found = series(node, "java-one")
    # Increments of many pushes, added up. The client leaves some of its first or last ones out.
    assert 0 < found["client_producer_record_send_total"] <= 300, sorted(found)
    assert series(node, "nobody") == {}
