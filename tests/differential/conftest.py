"""The two brokers: started once in a run, when the first script asks for them."""

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.lab.processes import ApacheKafka
from tests.differential.peer import Peer
from tests.differential.script import ScriptFunction, Step, run_script
from tests.support import tools
from tests.support.node import NodeProcess

QUICK_JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
KAFKA_SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",  # else an assignment comes a while after what asks for it
    "group.consumer.assignor.offload.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "log.initial.task.delay.ms": "3600000",  # else it drops what scripts have dated back
}
OUR_SETTINGS: dict[str, object] = {"group_offsets_partitions": 1, "wal_capacity_bytes": 64 << 20}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Apache Kafka, broker and controller in one process."""
    tools.java()
    tools.kafka_class_path()
    home = tmp_path_factory.mktemp("apache-kafka") / "home"
    with ApacheKafka(home, properties=KAFKA_SETTINGS, jvm=QUICK_JVM) as broker:
        yield Peer("Apache Kafka", "127.0.0.1", broker.port)


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A node."""
    with NodeProcess(tmp_path_factory.mktemp("node"), **OUR_SETTINGS) as node:
        yield Peer("anabranch", node.host, node.port)
        assert node.terminate() == 0


Transcripts = dict[str, tuple[Sequence[Step], Sequence[Step]]]


class Runner:
    """Runs each script once against both brokers."""

    def __init__(self, kafka: Peer, ours: Peer) -> None:
        self._peers = (kafka, ours)
        self._done: Transcripts = {}

    def run(self, function: ScriptFunction) -> tuple[Sequence[Step], Sequence[Step]]:
        """Both transcripts: Apache Kafka's and ours."""
        name = function.__name__
        if name not in self._done:
            kafka, ours = self._peers
            self._done[name] = (run_script(function, kafka), run_script(function, ours))
        return self._done[name]


@pytest.fixture(scope="session")
def runner(kafka: Peer, ours: Peer) -> Runner:
    """Both brokers, and what they have answered so far."""
    return Runner(kafka, ours)
