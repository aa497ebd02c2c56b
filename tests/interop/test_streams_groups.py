"""Kafka Streams with group.protocol=streams (KIP-1071) and exactly once, over kills of nodes and of itself."""

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.interop.test_java import run
from tests.support.events import create_topic
from tests.support.kafka_tools import CONFIGS, TOOLS
from tests.support.node_processes import bootstrap_of, node_processes
from tests.support.streams_application import CountReader, StreamsApplication
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

STREAMS_GROUPS = f"{TOOLS}.streams.StreamsGroupCommand"
PARTITIONS = 4
WORDS = 1000
"""Sent and counted between two kills, at least."""
VOCABULARY = [b"word-%d" % number for number in range(13)]
PAUSE_S = 0.005
"""Between two rounds of words: the kills must find some in the middle of their way, and not a backlog of seconds."""
TIMEOUT_S = 60
SETTINGS: dict[str, object] = {
    "storage_upload_age_ms": 200,
    "transaction_abort_interval_ms": 100,
    "group_streams_session_timeout_min_ms": 1,
    "group_streams_heartbeat_interval_min_ms": 1,
}
GROUP_CONFIGS = {
    "streams.num.standby.replicas": 1,
    "streams.session.timeout.ms": 3000,
    "streams.heartbeat.interval.ms": 300,
    "streams.initial.rebalance.delay.ms": 0,
}


class Counting:
    """Words that are sent to an application without a pause, and the counts that must come back."""

    def __init__(self, servers: str, instances: Sequence[StreamsApplication]) -> None:
        self._instances = instances
        self._reader = CountReader(servers, "counts", PARTITIONS)
        self._producer = Producer({
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        })  # fmt: skip
        self._sent: Counter[bytes] = Counter()
        self._acknowledged: Counter[bytes] = Counter()
        self._enough = threading.Event()
        self._sender = threading.Thread(target=self._send)
        self._sender.start()

    def _send(self) -> None:
        while not self._enough.wait(PAUSE_S):
            for word in VOCABULARY:
                self._producer.produce("words", word, on_delivery=self._note)
                self._sent[word] += 1
            self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        word = message.value()
        assert word is not None
        self._acknowledged[word] += error is None

    def advance(self) -> None:
        """Return when words that are sent from now on are counted; others are being counted."""
        self._read_until(self._sent.total() + WORDS)

    def finish(self) -> None:
        """Stop sending, and check that each word has each of its counts once, in order."""
        self.close()
        assert self._producer.flush(TIMEOUT_S) == 0
        assert self._acknowledged == self._sent
        self._read_until(self._sent.total())
        for word, count in self._sent.items():
            assert [number for each, number in self._reader.said if each == word] == list(range(1, count + 1))

    def close(self) -> None:
        """Stop sending."""
        self._enough.set()
        self._sender.join()

    def _read_until(self, count: int) -> None:
        self._reader.read_until(count, self._check)

    def _check(self) -> None:
        for each in self._instances:
            each.check()


def assignments(servers: str) -> list[str]:
    """Tasks of the members of the group, as a tool shows them."""
    lines = run(servers, STREAMS_GROUPS, "--describe", "--group", "app", "--members").splitlines()
    return [line.partition("-consumer ")[2] for line in lines if line.startswith("app ")]


def test_two_instances_count_exactly_over_kills_of_nodes_and_of_an_instance(tmp_path: Path) -> None:
    with node_processes(tmp_path, 3, f"sqlite:///{tmp_path}/catalog.db", **SETTINGS) as nodes:
        servers, first = bootstrap_of(nodes), nodes[0]
        for topic in ("words", "counts"):
            create_topic(servers, topic, PARTITIONS)
        configs = ",".join(f"{name}={value}" for name, value in GROUP_CONFIGS.items())
        run(servers, CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", "app", "--add-config", configs)
        one, two = [StreamsApplication(tmp_path / name, servers) for name in ("one", "two")]
        with one, two:
            one.wait_running()
            two.wait_running()
            wait_until(
                lambda: [("ACTIVE" in each, "STANDBY" in each) for each in assignments(servers)] == [(True, True)] * 2,
                "each instance has active tasks, and standby tasks for the other",
            )
            counting = Counting(servers, (one, two))
            with closing(counting):
                counting.advance()
                first.kill9()
                counting.advance()  # the others lead everything
                first.start()
                one.kill9()
                counting.advance()  # the second instance counts everything
                one.start()
                for node in nodes:
                    node.kill9()
                for node in nodes:
                    node.start()
                counting.advance()
                counting.finish()
