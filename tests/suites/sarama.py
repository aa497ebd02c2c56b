"""Run sarama's functional tests against a cluster, or Apache Kafka for comparison; they need Go, and root for ports.

    python -m tests.suites.sarama [--against node|kafka] [--run REGEX]

The tests come with the module, from the Go module proxy, and are built once into the cache (ANABRANCH_CACHE). They want
five brokers behind toxiproxy, which they know by its ports, and stop and start some of them by `docker compose`, for
which `overlay/docker.py` stands. All run in a network of their own. The failed tests are compared with
`expected/sarama.txt`, as in `tests.suites.run`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Listener
from pathlib import Path

from benchmarks.lab.processes import Broker
from tests.differential.kafka_cluster import ClusterBroker, kafka_cluster
from tests.suites.golang import Module, go, go_on_in_own_network
from tests.suites.run import HERE, KAFKA_PROPERTIES
from tests.support.node import NodeProcess
from tests.support.node_processes import node_processes
from tests.support.postgres import postgres_server
from tests.support.waiting import wait_until

MODULE = Module("sarama", "github.com/IBM/sarama", "v1.61.1")
TOXIPROXY, TOXIPROXY_PORT = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0", 8474
BROKERS = range(1, 6)
INNER_PORT, LOCAL_PORT, PROXY_PORT, CONTROLLER_PORT = 19090, 19190, 29090, 19290
"""A broker's ports for the others and for the proxy, the proxy's for clients, and Apache Kafka's controller's, before
its number. No connection gets one of them by chance while a broker is stopped."""
PROTOCOLS = "PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
ENVIRON = {"KAFKA_VERSION": "4.3.1", "TOXIPROXY_ADDR": f"http://127.0.0.1:{TOXIPROXY_PORT}"}


def node_settings(node_id: int) -> Mapping[str, object]:
    """Settings of a node, as the suite's own brokers have them."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{INNER_PORT + node_id},LOCAL://127.0.0.1:{LOCAL_PORT + node_id}",
        "advertised_listeners": f"LOCAL://127.0.0.1:{PROXY_PORT + node_id}",
        "security_protocol_map": PROTOCOLS.removesuffix(",CONTROLLER:PLAINTEXT"),
        "rack": node_id,
        "topic_auto_create": False,
        "wal_capacity_bytes": 64 << 20,
    }


def kafka_properties(broker: ClusterBroker) -> Mapping[str, str]:
    """Properties of a broker of Apache Kafka, as in the suite's `docker-compose.yml`, and its ports."""
    broker.port, broker.controller_port = INNER_PORT + broker.node_id, CONTROLLER_PORT + broker.node_id
    inner = f"PLAINTEXT://127.0.0.1:{broker.port}"
    local = f"LOCAL://127.0.0.1:{LOCAL_PORT + broker.node_id}"
    return {
        **KAFKA_PROPERTIES,
        "listeners": f"{inner},{local},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": f"{inner},LOCAL://127.0.0.1:{PROXY_PORT + broker.node_id}",
        "listener.security.protocol.map": PROTOCOLS,
        "inter.broker.listener.name": "PLAINTEXT",
        "broker.rack": str(broker.node_id),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "2",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }


@contextmanager
def brokers(kind: str, folder: Path) -> Iterator[Mapping[int, NodeProcess | Broker]]:
    """Run the brokers; yields them by their numbers."""
    if kind == "kafka":
        with kafka_cluster(folder, len(BROKERS), {}, kafka_properties) as running:
            yield running
    else:
        with (
            postgres_server() as server,
            node_processes(folder, len(BROKERS), server.new_database(), node_settings) as nodes,
        ):
            yield dict(zip(BROKERS, nodes, strict=True))


@contextmanager
def toxiproxy(folder: Path) -> Iterator[None]:
    """Run the proxy, with a way to each broker."""
    config = folder / "toxiproxy.json"
    ways = [
        {
            "name": f"kafka{number}",
            "listen": f"127.0.0.1:{PROXY_PORT + number}",
            "upstream": f"127.0.0.1:{LOCAL_PORT + number}",
            "enabled": True,
        }
        for number in BROKERS
    ]
    config.write_text(json.dumps(ways))
    address = ("-host", "127.0.0.1", "-port", str(TOXIPROXY_PORT))
    command: list[str | Path] = [MODULE.home / "server", *address, "-config", config]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(_proxies_are_there, "toxiproxy has all ways")
            yield
        finally:
            process.terminate()


def _proxies_are_there() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{TOXIPROXY_PORT}/proxies") as answer:
            return len(json.loads(answer.read())) == len(BROKERS)
    except OSError:
        return False


@contextmanager
def docker(folder: Path, running: Mapping[int, NodeProcess | Broker]) -> Iterator[Mapping[str, str]]:
    """Put a program `docker` in the way that stops and starts brokers; yields the tests' environment."""
    program = folder / "docker"
    program.write_text(f"#!{sys.executable}\n{(HERE / 'overlay' / 'docker.py').read_text()}")
    program.chmod(0o755)
    with Listener(str(folder / "brokers")) as listener:
        threading.Thread(target=partial(_obey, listener, running), daemon=True).start()
        yield {"PATH": f"{folder}:{os.environ['PATH']}", "SUITE_BROKERS": str(folder / "brokers")}


def _obey(listener: Listener, running: Mapping[int, NodeProcess | Broker]) -> None:
    while True:
        with listener.accept() as asked:
            _, command, *_, name = asked.recv()
            try:
                asked.send(_done(command, running[int(name.removeprefix("kafka-"))]))
            except (OSError, RuntimeError) as error:  # the test that asked is to fail, not the runner
                asked.send(error)


def _done(command: str, broker: NodeProcess | Broker) -> str:
    """Carry a command out; returns what it prints."""
    if command == "start":
        broker.start()
    elif command == "stop":
        broker.terminate() if isinstance(broker, NodeProcess) else broker.stop()
    elif command == "logs":
        return "\n".join(broker.lines) if isinstance(broker, NodeProcess) else broker.output
    return ""


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 1 when one fails against nodes that is not in the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.sarama", description=__doc__.split("\n\n")[0])
    parser.add_argument("--against", choices=("node", "kafka"), default="node")
    parser.add_argument("--run", metavar="REGEX", default=".", help="tests to run [default: all]")
    parser.add_argument("--inside", action="store_true", help="the ports are free: no network of its own")
    wanted = parser.parse_args(arguments)
    if not wanted.inside:
        MODULE.build(["."], "-tags", "functional")
        if not (MODULE.home / "server").is_file():
            go("install", TOXIPROXY, cwd=MODULE.home, GOBIN=str(MODULE.home))
        go_on_in_own_network("tests.suites.sarama", arguments)
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-suite-") as folder,
        brokers(wanted.against, Path(folder)) as running,
        toxiproxy(Path(folder)),
        docker(Path(folder), running) as told,
    ):
        outcomes, as_it_should = MODULE.run(".", wanted.run, {**ENVIRON, **told}, wanted.against)
    good = MODULE.report(outcomes, 1) and as_it_should
    return 1 if not good and wanted.against == "node" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
