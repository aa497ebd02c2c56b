"""Times and round trips of what a cluster does in its catalog, on a PostgreSQL that is far away.

    python -m benchmarks.far_catalog [--quick] [--round-trip-ms MS] [--partitions N] [--json FILE]

Two nodes on this machine, with device logs, and a PostgreSQL of their own behind a proxy that delays each round trip.
One leads all partitions of a topic; an idempotent producer sends a record to the next partition each millisecond.
Measured are: acknowledgements while nothing changes; topics that are created, by one request and one after the other;
a move of a partition; the drain of the node; the kill of the other one, until all partitions acknowledge again. Beside
the time stand the round trips of both nodes, those of their beats and polls included. At the end all records are read,
and compared with what was acknowledged. Nodes, clients, proxy and PostgreSQL share the processors of the machine.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from anabranch.s3stream.catalog.catalog import Catalog
from benchmarks.lab.cluster import (
    CLIENT,
    MIB,
    TIMEOUT_S,
    TOPIC,
    NumberedLoad,
    bootstrap,
    create,
    joining,
    nodes_on,
    open_catalog,
    order_moves,
    partitions_of,
)
from benchmarks.support import Report, middle, p99, parser
from tests.support.far_postgres import FarServer, far_server_thread
from tests.support.node import NodeProcess
from tests.support.postgres import postgres_server

QUICK_PARTITIONS, PARTITIONS = 100, 1_000
ROUND_TRIP_MS = 20
SEND_S = 0.001
REST_S = 5.0
TOPICS = 100
DRAINED, OTHER = 1, 2
REQUEST_TIMEOUT_S = 300.0


@contextmanager
def measured(report: Report, far: FarServer, name: str) -> Iterator[None]:
    """Report the time and the round trips of what is done."""
    before, began_s = far.round_trips, time.monotonic()
    yield
    report.add(name, time.monotonic() - began_s, "s")
    report.add(f"{name}: round trips", far.round_trips - before, "")


def create_topics(nodes: list[NodeProcess], *requests: list[str]) -> None:
    """Create topics, by one request after the other."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap(nodes)})
    for names in requests:
        answers = admin.create_topics(
            [NewTopic(name, 1) for name in names],
            request_timeout=REQUEST_TIMEOUT_S,
            operation_timeout=REQUEST_TIMEOUT_S,
        )
        for answer in answers.values():
            answer.result()


async def wait_for_leaders(catalog: Catalog, condition: Callable[[list[int]], bool]) -> None:
    """Wait until the owners of the topic's partitions are as wanted."""
    end_s = time.monotonic() + 3 * TIMEOUT_S
    while True:
        if condition([each.owner for each in await partitions_of(catalog)]):
            return
        if time.monotonic() > end_s:
            sys.exit(f"the partitions are not led as they were ordered: {len(await catalog.list_moves())} orders")
        await asyncio.sleep(0.1)


async def move_all(report: Report, far: FarServer, near_url: str) -> None:
    """Move one partition, and then the others by a drain."""
    # Past the proxy: to look whether it is done costs no round trips.
    async with open_catalog(near_url) as catalog:
        partitions = await partitions_of(catalog)
        with measured(report, far, "move of a partition"):
            await order_moves(catalog, partitions[:1], OTHER)
            await wait_for_leaders(catalog, lambda owners: owners[0] == OTHER)
        with measured(report, far, "drain of a node"):
            await catalog.drain_node(DRAINED, draining=True)
            await wait_for_leaders(catalog, lambda owners: set(owners) == {OTHER})
        await catalog.drain_node(DRAINED, draining=False)


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Times and round trips on a catalog that is far away.")
    options_of.add_argument(
        "--round-trip-ms", type=float, default=ROUND_TRIP_MS, help=f"delay of a round trip  [default: {ROUND_TRIP_MS}]"
    )
    options_of.add_argument(
        "--partitions", type=int, help=f"number of partitions  [default: {PARTITIONS}; quick: {QUICK_PARTITIONS}]"
    )
    options = options_of.parse_args()
    partitions = options.partitions or (QUICK_PARTITIONS if options.quick else PARTITIONS)
    report = Report(f"a catalog at {options.round_trip_ms:g} ms a round trip, {partitions} partitions")
    with (
        postgres_server() as server,
        far_server_thread(server.new_database(), options.round_trip_ms / 1000) as far,
        nodes_on(far.url, 1, DRAINED, wal_capacity_bytes=64 * MIB) as (drained,),
    ):
        create([drained], TOPIC, partitions)
        with joining(drained, OTHER) as other:
            nodes = [drained, other]
            load = NumberedLoad(bootstrap(nodes), partitions, at_once=1, pause_s=SEND_S)
            load.start()
            load.wait_all(time.monotonic())
            at, before = len(load.acks), far.round_trips
            time.sleep(REST_S)
            waited_s = [each.waited_s for each in load.acks[at:]]
            report.add("wait of a record, median", 1000 * middle(waited_s), "ms")
            report.add("wait of a record, p99", 1000 * p99(waited_s), "ms")
            report.add(
                "round trips a second, of two nodes that change nothing", (far.round_trips - before) / REST_S, ""
            )
            with measured(report, far, f"{TOPICS} topics by one request"):
                create_topics(nodes, [f"many-{index}" for index in range(TOPICS)])
            with measured(report, far, "10 topics by 10 requests"):
                create_topics(nodes, *([f"one-{index}"] for index in range(10)))
            at = len(load.acks)
            asyncio.run(move_all(report, far, server.url(far.url.rpartition("/")[2])))
            waited_s = [each.waited_s for each in load.acks[at:]]
            report.add("wait of a record during moves and drain, median", 1000 * middle(waited_s), "ms")
            report.add("wait of a record during moves and drain, p99", 1000 * p99(waited_s), "ms")
            with measured(report, far, "takeover of a killed node"):
                other.kill9()
                load.wait_all(time.monotonic())
            load.stop()
            load.add_losses(report, bootstrap([drained]))
    report.finish(options)


if __name__ == "__main__":
    main()
