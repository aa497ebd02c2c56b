"""Time from the death of a node until its partitions acknowledge again, and what was lost or duplicated.

    python -m benchmarks.failover [--quick] [--kills N] [--machine | --vanish] [--catalog-url URL] [--json FILE]

Three nodes on this machine. An idempotent producer sends to every partition each 10 ms. Each round kills (SIGKILL) one
node, in turn, and starts it again when all partitions acknowledge. The time of a partition is from the kill to the
first acknowledgement of a record that was sent after the kill. With `--machine` the logs are in the object store (here
a directory), and the killed node's data directory is removed, as if its machine were gone. With `--vanish` the node's
connections stay open as well: its process is stopped (SIGSTOP), and killed at the end of the round. At the end all
records are read, and compared with what was acknowledged. Nodes, clients and, with PostgreSQL, the catalog share the
processors of the machine.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support import Report, middle, p99, parser

NODES, PARTITIONS, TOPIC = 3, 6, "failover"
SEND_S = 0.01
QUICK_KILLS, KILLS = 6, 30
TIMEOUT_S = 120.0
CLIENT = {"log_level": 0, "topic.metadata.refresh.interval.ms": 1_000, "reconnect.backoff.max.ms": 200}


class Node:
    """A node that is killed and started again, on the same port."""

    def __init__(self, home: Path, node_id: int, catalog_url: str, *, machine: bool, vanishes: bool = False) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._folder = home / str(node_id)
        self._machine, self._vanishes = machine or vanishes, vanishes
        flags = {
            "--node-id": node_id,
            "--data-dir": self._folder,
            "--port": self.port,
            "--admin-port": 0,
            "--catalog-url": catalog_url,
            "--objects-path": home / "objects",
            "--cluster-internal-port": 0,
            "--wal-capacity-bytes": "64MiB",
            "--log-format": "json",
            "--wal-kind": "object" if self._machine else "device",
        }
        self._command = [
            sys.executable,
            "-m",
            "anabranch",
            "serve",
            *(str(each) for pair in flags.items() for each in pair),
        ]
        self._log = home / f"{node_id}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it serves."""
        with self._log.open("ab") as log:
            said = self._log.stat().st_size
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end = time.monotonic() + TIMEOUT_S
        while not self._serves(said):
            if self._process.poll() is not None or time.monotonic() > end:
                sys.exit(f"the node does not serve:\n{self._log.read_text()[said:]}")
            time.sleep(0.05)

    def _serves(self, since: int) -> bool:
        lines = self._log.read_bytes()[since:].splitlines()
        return any(line.startswith(b"{") and json.loads(line)["event"] == "serving" for line in lines)

    def lose(self) -> None:
        """End it at once, or stop it for ever: then its connections stay open."""
        if not self._vanishes:
            self.kill()
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it at once, and with the machine also its files."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self._machine:
            shutil.rmtree(self._folder, ignore_errors=True)


class Load:
    """A producer that sends numbered records to every partition, and notes the acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "retry.backoff.ms": 50,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """Numbers by partition, in the order of the acknowledgements."""
        self.sent_s: list[dict[int, float]] = [{} for _ in range(PARTITIONS)]
        """Times at which unacknowledged records were sent."""
        self.last_sent_s = [0.0] * PARTITIONS
        """Time at which the newest acknowledged record was sent."""
        self.last_acked_s = [0.0] * PARTITIONS
        self.failed = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for all acknowledgements."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            for partition in range(PARTITIONS):
                self.sent_s[partition][number] = time.monotonic()
                self._producer.produce(TOPIC, str(number), partition=partition, on_delivery=self._note)
            number += 1
            self._producer.poll(SEND_S)
        self._producer.flush(TIMEOUT_S)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        if error is not None:
            self.failed += 1
            return
        number = int(value)
        self.acked[partition].append(number)
        self.last_sent_s[partition] = self.sent_s[partition].pop(number)
        self.last_acked_s[partition] = time.monotonic()

    def wait_all(self, since_s: float) -> list[float]:
        """Wait until each partition has acknowledged a record sent after `since_s`; return how long each took."""
        found: dict[int, float] = {}
        end = since_s + TIMEOUT_S
        while len(found) < PARTITIONS:
            for partition in range(PARTITIONS):
                if partition not in found and self.last_sent_s[partition] > since_s:
                    found[partition] = self.last_acked_s[partition] - since_s
            if time.monotonic() > end:
                sys.exit(f"partitions {set(range(PARTITIONS)) - found.keys()} were not acknowledged in {TIMEOUT_S} s")
            time.sleep(0.002)
        return [found[partition] for partition in range(PARTITIONS)]


def leaders(bootstrap: str) -> list[int]:
    """Return the leader of each partition."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
    found = admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions
    return [found[partition].leader for partition in range(PARTITIONS)]


def read_all(bootstrap: str) -> list[list[int]]:
    """Return all numbers by partition, in the order of their offsets."""
    consumer = Consumer({**CLIENT, "bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            sys.exit("the records cannot be read")
        error, value, partition = message.error(), message.value(), message.partition()
        if error is not None:
            ended += error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - a constant
        elif value is not None and partition is not None:
            found[partition].append(int(value))
    consumer.close()
    return found


def add_losses(report: Report, load: Load, found: list[list[int]]) -> None:
    """Report what was lost, duplicated or reordered of the acknowledged records, given those that are there."""
    report.add("records acknowledged", sum(map(len, load.acked)), "")
    report.add("records refused to the producer", load.failed, "", "<= 0")
    lost = sum(len(set(acked) - set(read)) for acked, read in zip(load.acked, found, strict=True))
    twice = sum(count - 1 for read in found for count in Counter(read).values())
    disordered = sum(later < earlier for read in found for earlier, later in pairwise(read))
    report.add("acknowledged records lost", lost, "", "<= 0")
    report.add("records twice", twice, "", "<= 0")
    report.add("records out of order", disordered, "", "<= 0")


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds until the partitions of a killed node acknowledge again.")
    options_of.add_argument("--kills", type=int, help=f"number of kills  [default: {KILLS}; quick: {QUICK_KILLS}]")
    options_of.add_argument("--catalog-url", help="catalog of the cluster  [default: SQLite in a temporary folder]")
    losses = options_of.add_mutually_exclusive_group()
    losses.add_argument("--machine", action="store_true", help="lose the data directory, too: logs are objects")
    losses.add_argument("--vanish", action="store_true", help="leave the connections open as well")
    options = options_of.parse_args()
    if options.vanish and not options.catalog_url:
        options_of.error("--vanish needs --catalog-url: on SQLite a stopped process may keep the lock")
    kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    catalog_url = options.catalog_url or f"sqlite:///{home}/catalog.db"
    nodes = [Node(home, 1 + at, catalog_url, machine=options.machine, vanishes=options.vanish) for at in range(NODES)]
    bootstrap = ",".join(node.address for node in nodes)
    moved_s: list[float] = []
    others_s: list[float] = []
    try:
        for node in nodes:
            node.start()
        admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        load = Load(bootstrap)
        load.start()
        for kill in range(kills):
            load.wait_all(time.monotonic())
            led = leaders(bootstrap)
            victim = max(set(led), key=lambda node_id: (led.count(node_id), (node_id + kill) % NODES))
            began_s = time.monotonic()
            nodes[victim - 1].lose()
            taken_s = load.wait_all(began_s)
            for leader, seconds in zip(led, taken_s, strict=True):
                (moved_s if leader == victim else others_s).append(seconds)
            nodes[victim - 1].kill()
            nodes[victim - 1].start()
        load.stop()
        found = read_all(bootstrap)
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(home)
    goals_s = (12, 15) if options.vanish else (5, 8) if options.machine else (2, 5)
    report = Report(f"{kills} kills of a node among {NODES}")
    report.add("killed until acknowledged again, median", middle(moved_s), "s", f"<= {goals_s[0]}")
    report.add("killed until acknowledged again, p99", p99(moved_s), "s", f"<= {goals_s[1]}")
    report.add("killed until acknowledged again, longest", max(moved_s), "s")
    if others_s:
        report.add("partitions of the other nodes, p99", p99(others_s), "s")
    add_losses(report, load, found)
    report.finish(options)


if __name__ == "__main__":
    main()
