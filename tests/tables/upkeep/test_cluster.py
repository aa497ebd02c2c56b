"""Tables of topics whose partitions several nodes lead, and nodes that are killed while they commit."""

import json
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.events import QUIET, committed_records
from tests.support.node import NodeProcess
from tests.support.node_processes import bootstrap_of, node_processes
from tests.support.postgres import PostgresServer
from tests.support.tables import create_table, read_table, records_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
PARTITIONS = 4
KILLS = 2


def describe(node: NodeProcess, topic: str) -> dict[str, Any]:
    """Return the table as a node's admin API describes it; empty while it cannot."""
    try:
        found: dict[str, Any] = json.loads(node.ask(f"/api/v1/tables/{topic}"))
    except urllib.error.URLError:
        return {}
    return found


def wait_complete(node: NodeProcess, topic: str) -> dict[str, Any]:
    """Return the table when it has all that is readable in the topic."""
    wait_until(lambda: describe(node, topic).get("lag") == 0, "the table has all records of the topic")
    return describe(node, topic)


@contextmanager
def producing(servers: str, topic: str) -> Iterator[Callable[[], int]]:
    """Send transactions to all partitions, every third of which is aborted; yields how many ended so far."""
    stop = Flag()
    ended: list[int] = []

    def produce() -> None:
        producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 0, **QUIET})
        producer.init_transactions(100)
        number = 0
        while not stop.is_set():
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(topic, b"%d %d" % (number, partition), b"key", partition)
            producer.flush(100)
            if number % 3:
                producer.commit_transaction(100)
            else:
                producer.abort_transaction(100)
            number += 1
            ended.append(number)

    thread = Thread(target=produce)
    thread.start()
    try:
        yield lambda: len(ended)
    finally:
        stop.set()
        thread.join(300)
    assert not thread.is_alive()


def check(nodes: Sequence[NodeProcess], topic: str, location: str) -> None:
    """Compare the rows of a snapshot with what a consumer sees."""
    wanted = committed_records(bootstrap_of(nodes), topic)
    assert wanted
    assert records_of(read_table(location)) == wanted


def test_a_node_that_is_killed_again_and_again(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        create_table(node.bootstrap, "orders", PARTITIONS)
        with producing(node.bootstrap, "orders") as ended:
            for _ in range(KILLS):
                version = describe(node, "orders").get("version", 0)
                wait_until(
                    lambda version=version: describe(node, "orders").get("version", 0) > version,  # type: ignore[misc]
                    "a commit",
                )
                node.kill9()
                node.start()
            before = ended()
            wait_until(lambda: ended() > before + 3, "further transactions")
        found = wait_complete(node, "orders")
        check([node], "orders", found["metadata_location"])
        assert not list((node.data_dir / "tables").rglob("*.parquet")), "nothing is left of those that were killed"


@pytest.mark.server
def test_the_committer_is_killed_and_another_node_goes_on(postgres: PostgresServer, tmp_path: Path) -> None:
    with node_processes(tmp_path, 3, postgres.new_database()) as nodes:
        create_table(bootstrap_of(nodes), "orders", PARTITIONS)
        with producing(bootstrap_of(nodes), "orders") as ended:
            wait_until(lambda: describe(nodes[0], "orders").get("version", 0) > 1, "the table has commits")
            first = describe(nodes[0], "orders")["committer"]
            nodes[first - 1].kill9()
            alive = [node for node in nodes if node.running]
            wait_until(lambda: describe(alive[0], "orders").get("committer") not in {None, first}, "another committer")
            version, before = describe(alive[0], "orders")["version"], ended()
            wait_until(lambda: ended() > before + 3, "further transactions")
            wait_until(lambda: describe(alive[0], "orders").get("version", 0) > version, "its commit")
        found = wait_complete(alive[0], "orders")
        check(alive, "orders", found["metadata_location"])
