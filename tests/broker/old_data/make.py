"""Make a data directory with an older version of the node, for `test_old_data.py`.

    git archive VERSION | tar -x -C OLD
    python tests/broker/old_data/make.py OLD tests/broker/old_data/NAME [WAL_KIND]

`OLD` is the older version's source; if its admin port has other paths, take this file as it was then. Writes
`NAME.tar.xz`, the data directory (a WAL of the least size, which is mostly zeros, a SQLite catalog, a local object
store), and `NAME.json`, the records and offsets that a node must find in it. `WAL_KIND` is `device`, the default, or
`object`: the log is then in the object store.

The directory has: records in objects and, after `kill -9`, in the WAL alone; a plain topic of two partitions; a topic
that was compacted by key, with tombstones; transactions that were committed and aborted, and one left open in the WAL;
offsets of a consumer group in objects and in the WAL. Compaction has run, so that writer ids say age and cleanedness.
"""

import atexit
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WORK: Final = Path("/tmp/anabranch-old-data")  # stored in the catalog, as the place of the WAL
TIMEOUT_S: Final = 60
FOREVER_MS: Final = 100 * 365 * 86_400_000
SETTINGS: Final[dict[str, object]] = {
    "--data-dir": WORK / "data",
    "--port": 0,
    "--admin-port": 0,
    "--wal-capacity-bytes": 8 << 20,
    "--wal-allow-volatile": "true",
    "--catalog-lease-ms": 1_000,
    "--storage-gc-period-ms": 200,
    "--storage-delete-delay-ms": 200,
    "--compaction-enabled": "false",
    "--group-offsets-partitions": 1,
    "--group-offsets-retention-ms": FOREVER_MS,
    "--transaction-state-partitions": 1,
    "--transaction-id-expiration-ms": FOREVER_MS,
    "--log-format": "json",
}
TOPICS: Final = {
    "plain": (2, {"retention.ms": "-1"}),
    "compacted": (
        1,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(FOREVER_MS),
        },
    ),
    "money": (1, {"retention.ms": "-1"}),
}


class OldNode:
    """A process of the older version."""

    def __init__(self, source: Path, **settings: object) -> None:
        flags = SETTINGS | {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "anabranch", "serve", *(str(each) for pair in flags.items() for each in pair)]
        environment = os.environ | {"PYTHONPATH": str(source / "src"), "ANABRANCH_NATIVE": "off"}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=source)
        atexit.register(self._process.kill)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if '"event": "serving"' in line:
                self.bootstrap, self._admin = (json.loads(line)[name] for name in ("address", "admin"))
                break
            sys.stderr.write(line)
        else:
            raise SystemExit("the node does not serve")

    def ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"http://{self._admin}/api/v1{path}", method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def wait_uploaded(self) -> None:
        def is_uploaded() -> bool:
            topics = self.ask("GET", "/status")["topics"].values()
            parts = [part for topic in topics for part in topic["partitions"]]
            return all(part["committed_offset"] == part["high_watermark"] for part in parts)

        wait_until(is_uploaded)

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(TIMEOUT_S)


def wait_until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_done():
        if time.monotonic() > end:
            raise SystemExit("not done in time")
        time.sleep(0.05)


class Writer:
    """Sends records and records the acknowledgements."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def send(self, producer: Producer, topic: str, rows: Iterable[tuple[int, str, str | None]], fate: str) -> None:
        """Send (partition, key, value). `fate` is "plain", or the outcome of the records' transaction."""
        before, sent = len(self.records), 0
        for partition, key, value in rows:
            headers = {"number": str(before + sent)}
            record = {"topic": topic, "partition": partition, "key": key, "value": value, "headers": headers}
            producer.produce(
                topic,
                None if value is None else value.encode(),
                key.encode(),
                partition,
                headers={name: each.encode() for name, each in headers.items()},
                on_delivery=partial(self._note, record | {"fate": fate}),
            )
            sent += 1
        if producer.flush(TIMEOUT_S) or len(self.records) != before + sent:
            raise SystemExit("not everything was acknowledged")

    def _note(self, record: dict[str, Any], error: object, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"not acknowledged: {error}")
        self.records.append(record | {"offset": message.offset(), "timestamp_ms": message.timestamp()[1]})


def idempotent(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 900_000})
    producer.init_transactions(TIMEOUT_S)
    return producer


def transact(writer: Writer, bootstrap: str, begin: int, fates: Iterable[str]) -> None:
    producer = transactional(bootstrap, "payments")
    for number, fate in enumerate(fates, begin):
        producer.begin_transaction()
        writer.send(producer, "money", [(0, f"k{at}", f"transaction {number} record {at}") for at in range(4)], fate)
        if fate == "committed":
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def commit_offsets(bootstrap: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "workers"})
    places = [TopicPartition("plain", partition, offset) for partition, offset in offsets.items()]
    for done in consumer.commit(offsets=places, asynchronous=False) or ():
        if done.error is not None:
            raise SystemExit(f"offsets were not committed: {done.error}")
    consumer.close()


def plain(begin: int, end: int) -> list[tuple[int, str, str]]:
    return [(number % 2, f"k{number % 5}", f"plain {number}") for number in range(begin, end)]


def keyed(begin: int, end: int) -> list[tuple[int, str, str | None]]:
    """Values of ten keys; every seventh record is a tombstone."""
    return [(0, f"k{number % 10}", None if number % 7 == 6 else f"value {number}") for number in range(begin, end)]


def fill(source: Path, writer: Writer) -> dict[str, int]:
    """Run two nodes on the same data directory, one after the other; returns the committed offsets."""
    node = OldNode(source, storage_upload_age_ms=100)
    topics = [NewTopic(name, count, 1, config=configs) for name, (count, configs) in TOPICS.items()]
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for created in admin.create_topics(topics).values():
        created.result(TIMEOUT_S)
    for round_ in range(4):
        producer = idempotent(node.bootstrap)
        writer.send(producer, "plain", plain(20 * round_, 20 * (round_ + 1)), "plain")
        writer.send(producer, "compacted", keyed(15 * round_, 15 * (round_ + 1)), "plain")
        transact(writer, node.bootstrap, 2 * round_, ("committed", "aborted"))
        node.wait_uploaded()
        if round_ in {1, 2}:
            node.ask("POST", "/compaction")
    commit_offsets(node.bootstrap, {0: 11, 1: 12})
    node.end(signal.SIGTERM)

    # From here on everything stays in the WAL.
    node = OldNode(source, storage_upload_age_ms=3_600_000)
    producer = idempotent(node.bootstrap)
    writer.send(producer, "plain", plain(80, 110), "plain")
    writer.send(producer, "compacted", keyed(60, 75), "plain")
    transact(writer, node.bootstrap, 8, ("committed", "aborted"))
    commit_offsets(node.bootstrap, {0: 35})
    open_one = transactional(node.bootstrap, "left-open")
    open_one.begin_transaction()
    writer.send(open_one, "money", [(0, "open", f"open {at}") for at in range(3)], "open")
    node.end(signal.SIGKILL)
    return {"0": 35, "1": 12}


def check(data_dir: Path) -> None:
    """Check that the directory has everything that its test needs."""
    with closing(sqlite3.connect(data_dir / "catalog.db")) as catalog:
        found = [row[0] for row in catalog.execute("SELECT writer_id FROM objects WHERE state = 2")]
        for suffix in (".cleaned", ".born-", ".upload-"):
            if not any(suffix in writer_id for writer_id in found):
                raise SystemExit(f"no object with the writer id {suffix}: {found}")
        # Nothing of the machine that made it is kept.
        catalog.execute("UPDATE nodes SET host_name = 'elsewhere'")
        catalog.commit()
        catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def main() -> None:
    source, target = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    if len(sys.argv) > 3:
        SETTINGS["--wal-kind"] = sys.argv[3]
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    writer = Writer()
    offsets = fill(source, writer)
    data_dir = WORK / "data"
    check(data_dir)
    with tarfile.open(target.with_suffix(".tar.xz"), "w:xz", preset=9) as archive:
        archive.add(data_dir, "data", filter=_anonymous)
    records = ",\n".join(map(json.dumps, writer.records))
    target.with_suffix(".json").write_text(
        f'{{"committed_offsets": {json.dumps(offsets)}, "records": [\n{records}\n]}}\n'
    )
    shutil.rmtree(WORK)


def _anonymous(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = 0
    item.uname = item.gname = ""
    return item


if __name__ == "__main__":
    main()
