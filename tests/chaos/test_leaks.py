"""Topics, groups, transactions and connections that come and go leave nothing behind in a running node."""

import re
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from anabranch.s3stream.maintain.manifest import PREFIX
from anabranch.s3stream.object.marks import MARK_KEYS
from tests.support.events import create_topic, delete_topic
from tests.support.metrics import Samples
from tests.support.node import NodeProcess
from tests.support.soak import SOAK
from tests.support.waiting import WAIT_S, wait_until

ROUNDS = 60 if SOAK else 5
WARM = 2
"""Rounds after which everything has been used and has its size."""
TOPICS = 3
RECORDS = 200
GROUP = "churn"
MEMORY_GROWTH_MAX_KIB = 16 * 1024
"""The node collects reference cycles seldom."""
POOL_THREADS_MAX = 5
"""A pool starts its threads when they are first needed at the same time."""
LOOKS = 3
"""Periodic work may be under way when the node is looked at; what leaked stays."""
TASKS = re.compile(r"^(\d+) task\(s\):$")
SETTINGS: dict[str, object] = {
    "storage_upload_age_ms": 100,
    "storage_gc_period_ms": 100,
    "storage_delete_delay_ms": 0,
    "storage_prepare_ttl_ms": 4_000,
    "storage_block_cache_bytes": "8MiB",
    "compaction_enabled": "false",  # each round compacts when it has ended
    "group_offsets_partitions": 2,
    "transaction_state_partitions": 2,
}


@dataclass(frozen=True, slots=True)
class Held:
    """Resources that a node holds while no client is there."""

    descriptors: int
    threads: int
    tasks: int
    topics: int
    files: int
    rows: dict[str, int]
    """Of the catalog, by table."""
    memory_kib: int


def churn(node: NodeProcess) -> None:
    """Use everything that a client can create, and remove it."""
    names = [f"churn-{number}" for number in range(TOPICS)]
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "churn", "log_level": 0})
    producer.init_transactions(30)
    for index, name in enumerate(names):
        create_topic(node.bootstrap, name, 2)
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(name, b"%d" % number, partition=number % 2)
        producer.flush(30)
        if index == 0:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    consume(node, names, (TOPICS - 1) * RECORDS)
    node.wait_uploaded()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.delete_consumer_groups([GROUP])[GROUP].result(30)
    for name in names:
        delete_topic(node.bootstrap, name)


def consume(node: NodeProcess, names: list[str], count: int) -> None:
    """Read so many committed records as a group, and commit its offsets."""
    settings = {"bootstrap.servers": node.bootstrap, "group.id": GROUP, "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe(names)
        for _ in range(count):
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None, message.error()
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def held(node: NodeProcess) -> Held:
    """Count what a node holds, when it has come to rest."""
    node.wait_uploaded()
    node.compact()
    wait_until(lambda: all(kind.endswith(" committed") for kind in node.status()["objects"]), "the rest was collected")
    process = Path(f"/proc/{node.pid}")
    wait_until(lambda: clients_of(node) == 0, "no client is connected")
    tasks = [int(found[1]) for line in node.stacks().splitlines() if (found := TASKS.match(line))]
    memory = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert memory is not None
    return Held(
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        tasks=sum(tasks),
        topics=len(node.status()["topics"]),
        files=sum(path.is_file() and not {PREFIX, MARK_KEYS[:-1]} & {*path.parts} for path in node.data_dir.rglob("*")),
        rows=rows(node.data_dir / "catalog.db"),
        memory_kib=int(memory[1]),
    )


def rows(catalog: Path) -> dict[str, int]:
    """Return the number of rows of each table."""
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def clients_of(node: NodeProcess) -> int:
    """Return the number of connections of clients."""
    return int(Samples(node.ask("/metrics")).value("anabranch_connections"))


def growth(before: Held, after: Held) -> dict[str, object]:
    """Return what has become more, with both numbers."""
    old, new = ({**asdict(each), **each.rows} for each in (before, after))
    allowed = {"memory_kib": MEMORY_GROWTH_MAX_KIB, "threads": POOL_THREADS_MAX}
    return {
        name: (old[name], new[name]) for name in new.keys() - {"rows"} if new[name] > old[name] + allowed.get(name, 0)
    }


def test_churn_leaves_nothing_behind(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, **SETTINGS) as node:
        for _ in range(WARM):
            churn(node)
        before = held(node)
        for _ in range(ROUNDS - WARM):
            churn(node)
        left: dict[str, object] = {}
        for _ in range(LOOKS):
            if not (left := growth(before, held(node))):
                break
        assert not left
        assert node.terminate() == 0
