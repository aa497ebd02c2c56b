"""A cluster of real processes, each behind proxies of its own to PostgreSQL and to an S3 server, and its faults."""

import asyncio
import gc
import logging
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.cli import main
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import WalState
from anabranch.s3stream.maintain.findings import VerifyReport
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import ObjectState
from tests.chaos.clients import PARTITIONS, QUIET, TOPIC, Recorder
from tests.chaos.more_clients import (
    AioMember,
    AioSender,
    JavaMember,
    JavaSender,
    PlainPoller,
    PlainSender,
    Probe,
    Watcher,
)
from tests.chaos.proxies import Proxies, proxies
from tests.chaos.rig import SETTINGS, Chaos, clients_on
from tests.support.metrics import Samples
from tests.support.node import NodeProcess, settings_for
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.s3 import S3Bucket
from tests.support.soak import SOAK
from tests.support.waiting import expect_before, wait_until

LOGS: Final[Sequence[dict[str, object]]] = ({}, {"wal_kind": "object"}, {"wal_takeover": "shared"})
"""Logs of the nodes, in turn: a device that other processes can open, the object store, a device shared by machines."""
RACKS: Final = ("a", "b", "c")
"""Racks of the nodes, in turn, and of the consumers."""
OBJECT_LOG_ID: Final = 2
"""Node whose log is in the object store."""
PACE_S: Final = 0.02 if SOAK else 0.05
"""Pause of a producer after each record: there are more clients and nodes than with one node."""
SESSION_MS: Final = 6_000
RECOVERY: Final = {"metadata.recovery.strategy": "rebootstrap"}
"""librdkafka's default. Else a client that has last heard of one node only never finds the others after its death."""
SLOWER: Final[dict[str, object]] = {
    "wal_capacity_bytes": 256 << 20,  # an outage of the catalog must fit: nothing is trimmed meanwhile
    "storage_upload_age_ms": 500,
    "storage_gc_period_ms": 2_000,
    "compaction_period_ms": 5_000,
    "cluster_balancer": True,
    "topic_replication_factor": 3,
}
RECOVERY_S: Final = 120.0
"""Longest time until all partitions serve after a fault, on a busy machine."""
DEAD: Final = "a node is dead: it is taken over"
BALANCED: Final = "partition is moved to balance the cluster"


@dataclass(slots=True)
class Cluster:
    """Nodes by id. Some of them may not run."""

    folder: Path
    postgres: PostgresServer
    database: str
    proxies: Proxies
    direct: dict[str, object]
    """Settings that lead to catalog and objects past the proxies."""
    nodes: dict[int, NodeProcess] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, also of those that have not run: which ones stay, nobody knows."""
        return ",".join(f"{node.host}:{node.settings['port']}" for node in self.nodes.values())

    @property
    def living(self) -> list[int]:
        """Ids of the nodes that run."""
        return [node_id for node_id, node in self.nodes.items() if node.running]

    def start(self) -> None:
        """Start all that do not run."""
        down = [node for node in self.nodes.values() if not node.running]
        for node in down:
            node.spawn()
        for node in down:
            node.wait_ready()

    def kill9(self) -> None:
        """Kill all nodes."""
        for node_id in self.living:
            self.nodes[node_id].kill9()

    def terminate(self) -> int:
        """Stop all nodes cleanly, one after the other; returns 0 if each of them did."""
        codes = [self.nodes[node_id].terminate() for node_id in self.living]
        return max(codes)

    def leaders(self) -> list[int]:
        """Leaders of the topic's partitions, as the living nodes say."""
        return leaders_of(self.bootstrap)

    def takeovers(self, dead_id: int) -> int:
        """Number of times that other nodes have taken over this one."""
        return sum(event["dead_node_id"] == dead_id for node in self.nodes.values() for event in node.events(DEAD))

    def stops(self) -> list[dict[str, Any]]:
        """Lines of the log about the last clean stop of each node."""
        return [events[-1] for node in self.nodes.values() if (events := node.events("stopped"))]

    def balanced(self) -> list[dict[str, Any]]:
        """Moves that the balancer has ordered."""
        return [event for node in self.nodes.values() for event in node.events(BALANCED)]

    def replica_bytes(self) -> float:
        """Bytes that the living nodes have sent as replicas."""
        pages = (Samples(self.nodes[node_id].ask("/metrics")) for node_id in self.living)
        return sum(value for page in pages for value in page.of("anabranch_replica_sent_bytes_total").values())

    def remove(self, node_id: int) -> bool:
        """Remove a node that does not run from the cluster; False if it is refused, as its log may hold records."""
        admin = self.nodes[self.living[0]].admin
        return CliRunner().invoke(main, ["node", "remove", str(node_id), "--admin", admin]).exit_code == 0

    def recoverer(self, dead_id: int, taken_over: int) -> int:
        """Wait for one more takeover of a dead node than there were, and return who does it."""
        end = time.monotonic() + RECOVERY_S
        before = {node_id: len(node.events(DEAD)) for node_id, node in self.nodes.items()}
        while self.takeovers(dead_id) <= taken_over:
            expect_before(end, f"nobody takes node {dead_id} over")
            time.sleep(0.005)
        return max(self.nodes, key=lambda node_id: len(self.nodes[node_id].events(DEAD)) - before[node_id])

    def beats(self) -> dict[int, int]:
        """Number of the newest beat of each node. One that was taken over has no more, and the number 0."""
        with psycopg.connect(self.database) as connection:
            return dict(connection.execute("SELECT node_id, beat FROM nodes").fetchall())

    def revive(self) -> bool:
        """Start the nodes that have ended by themselves, which only those do that others have taken over.

        A node that was taken over a moment ago has not noticed yet; so each one has to beat or to end first. Returns
        True if all have beaten.
        """
        before, living = self.beats(), self.living
        end = time.monotonic() + RECOVERY_S
        while any(self.nodes[each].running and self.beats()[each] <= before[each] for each in living):
            expect_before(end, f"of the nodes {living} one neither beats nor ends: {before}, {self.beats()}")
            time.sleep(0.02)
        ended = [node for node in self.nodes.values() if node.ended]
        for node in ended:
            assert self.takeovers(int(str(node.settings["node_id"]))), node.explain()
            assert node.wait() != 0, "a node that is fenced fails"
            node.start()
        return not ended


@contextmanager
def cluster(folder: Path, bucket: S3Bucket, count: int, logs: Sequence[dict[str, object]] = LOGS) -> Iterator[Cluster]:
    """Nodes 1, 2, ... that do not run yet. The caller has put the bucket's credentials into the environment."""
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        database = postgres.new_database()
        direct = {**bucket.node_settings(), "catalog_url": database}
        between = stack.enter_context(proxies(database, bucket.endpoint, count))
        found = Cluster(folder, postgres, database, between, direct)
        for node_id, catalog_url in between.catalogs.items():
            wanted = {**SETTINGS, **SLOWER, **direct, **logs[(node_id - 1) % len(logs)]}
            wanted |= {"node_id": node_id, "catalog_url": catalog_url, "objects_endpoint": between.stores[node_id]}
            wanted["rack"] = RACKS[(node_id - 1) % len(RACKS)]
            found.nodes[node_id] = NodeProcess(folder / str(node_id), **wanted)
        try:
            yield found
        except BaseException as error:
            for node_id in found.living:
                found.nodes[node_id].__exit__(type(error), error, error.__traceback__)
            raise
        finally:
            found.kill9()


@dataclass(slots=True)
class ClusterChaos:
    """A cluster under all kinds of clients, and what was measured."""

    cluster: Cluster
    chaos: Chaos
    probe: Probe
    acked_again_s: list[float] = field(default_factory=list)
    """Seconds from a kill until a partition that the killed node led acked again, one per partition."""
    kills: int = 0

    def wait_recovered(self, since_s: float) -> list[float]:
        """Wait until all partitions ack what was sent after `since_s`; return the seconds."""
        found = self.probe.wait_acked(since_s, RECOVERY_S)
        assert not self.chaos.recorder.errors, self.chaos.recorder.errors[:3]
        return found

    def settle(self) -> None:
        """Bring all nodes back, and wait until clients of all kinds go on.

        No node may stay away: librdkafka waits for a coordinator without a limit in `send_offsets_to_transaction`, and
        asks for another one only when the state of some connection changes.
        """
        while not self.cluster.revive():
            pass
        self.wait_recovered(time.monotonic())
        self.chaos.wait_for_acks(20)

    def finish(self) -> str:
        """Stop clients and nodes, and judge what is left; returns the figures."""
        self.settle()
        self.chaos.wait_for_copies(1)
        self.chaos.stop()
        assert self.cluster.replica_bytes() > 0, "history is read from replicas"
        assert self.cluster.terminate() == 0
        figures = self.chaos.judge()
        report = asyncio.run(verify_storage(settings_for(self.cluster.folder, **self.cluster.direct)))
        assert report.ok, report.findings[:5]
        assert report.objects[ObjectState.COMMITTED]
        undrained = undrained_logs(self.cluster)
        assert not undrained, (undrained, self.cluster.stops())
        return figures


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """Keep the garbage collector from destroying a client in the thread of another one, which would wait for its end.

    What clients leave is collected at the end, before a stricter test finds their sockets. Clients of Python log each
    failed connection, many times a second; captured, their log records would keep sockets until then.
    """
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka")]
    gc.disable()
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger in loggers:
            logger.setLevel(logging.NOTSET)
        gc.enable()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@contextmanager
def clients_on_cluster(nodes: Cluster) -> Iterator[ClusterChaos]:
    """Start all clients, and wait until each kind has worked."""
    with collected_at_the_end(), clients_on(nodes, Recorder(PACE_S, SESSION_MS, RACKS, **RECOVERY)) as chaos:
        recorder, bootstrap = chaos.recorder, nodes.bootstrap
        probe = Probe(recorder, 20, bootstrap)
        more = [
            probe,
            Watcher(recorder, 21, bootstrap),
            PlainSender(recorder, 22, bootstrap),
            PlainPoller(recorder, 23, bootstrap),
            AioSender(recorder, 24, bootstrap),
            AioMember(recorder, 25, bootstrap),
            JavaSender(recorder, 26, bootstrap, nodes.folder),
            JavaMember(recorder, 27, bootstrap, nodes.folder),
        ]
        for actor in more:
            chaos.add(actor)
        working = {actor.process for actor in more if not isinstance(actor, Watcher)}
        wait_until(lambda: working <= recorder.active or bool(recorder.errors), "each client has worked")
        assert not recorder.errors, recorder.errors[:3]
        yield ClusterChaos(nodes, chaos, probe)


def leaders_of(bootstrap: str) -> list[int]:
    """Leaders of the topic's partitions."""
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    found = admin.list_topics(TOPIC, timeout=RECOVERY_S).topics[TOPIC].partitions
    return [found[index].leader for index in range(PARTITIONS)]


async def verify_storage(settings: Settings) -> VerifyReport:
    """Verify the storage as `anabranch storage verify --deep` does."""
    async with AsyncExitStack() as stack:
        catalog = Catalog(settings.catalog_url)
        await catalog.open(cluster=settings.node.cluster)
        stack.push_async_callback(catalog.close)
        stores = make_stores(settings, random.Random(1))
        for store in stores.values():
            await store.open()
            stack.push_async_callback(store.close)
        return await verify(catalog=catalog, stores=stores, cluster=settings.node.cluster, deep=True)


def undrained_logs(nodes: Cluster) -> list[tuple[object, ...]]:
    """Logs that may hold records that are in no object: none after all nodes have stopped cleanly."""
    query = "SELECT node_id, node_epoch, location, state FROM wals WHERE state <> %s"
    with psycopg.connect(nodes.database) as connection:
        return connection.execute(query, (int(WalState.DRAINED),)).fetchall()
