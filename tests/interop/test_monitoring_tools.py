"""Tools from PyPI that watch the lag of consumers: one asks the broker, the other reads its offsets topic."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple
from urllib.error import URLError

import pytest
from confluent_kafka import Consumer

from benchmarks.lab.processes import free_port
from tests.support.events import Event, create_topic, send
from tests.support.node import NodeProcess
from tests.support.tools import monitoring
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

COMMITTED: Final = 30
RECORDS: Final = 50
TIMEOUT_S: Final = 30


class Shop(NamedTuple):
    """A node, and the only member of the group `shop`."""

    node: NodeProcess
    member: Consumer

    def consume(self, count: int) -> None:
        """Consume records of `orders`, and commit."""
        for _ in range(count):
            message = self.member.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            self.member.commit(message=message, asynchronous=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A node with a group that has consumed a part of a topic."""
    with NodeProcess(tmp_path_factory.mktemp("node"), group_offsets_partitions=4) as node:
        create_topic(node.bootstrap, "orders", 1)
        send(node.bootstrap, "orders", [Event(0, b"%d" % number) for number in range(RECORDS)])
        settings = {"group.id": "shop", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        with closing(Consumer({"bootstrap.servers": node.bootstrap, **settings})) as member:
            member.subscribe(["orders"])
            shop = Shop(node, member)
            shop.consume(COMMITTED)
            yield shop


def test_kafkatop_shows_the_lag_of_a_group(shop: Shop) -> None:
    command: list[str | Path] = [monitoring("kafkatop"), "--kafka-broker", shop.node.bootstrap, "--summary-json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stderr
    topic = json.loads(found.stdout)["shop"]["topics"]["orders"]
    assert topic == {"partitions": 1, "lag_max": RECORDS - COMMITTED, "lag_min": RECORDS - COMMITTED}


def scrape(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as response:
            text: str = response.read().decode()
            return text
    except (URLError, ConnectionError):
        return ""


def test_an_exporter_that_reads_the_offsets_topic_shows_committed_offsets(shop: Shop, tmp_path: Path) -> None:
    port = free_port()
    command: list[str | Path] = [
        monitoring("prometheus-kafka-consumer-group-exporter"),
        "-b",
        shop.node.bootstrap,
        "-p",
        str(port),
    ]
    sample = 'kafka_consumer_group_offset{group="shop",partition="0",topic="orders"} '
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, "-s"], stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: f"{sample}{COMMITTED:.1f}" in scrape(port), "the exporter shows the offset")
            shop.consume(1)
            wait_until(lambda: f"{sample}{COMMITTED + 1:.1f}" in scrape(port), "the exporter shows the next offset")
        finally:
            process.kill()
            process.wait(10)
