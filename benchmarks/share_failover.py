"""Time from the death of a node until a share group acknowledges records of its partitions again, and what was lost.

    python -m benchmarks.share_failover [--quick] [--rounds N] [--catalog-url URL] [--json FILE]

Three nodes on this machine. An idempotent producer sends to each of six partitions each 10 ms, and two workers at each
partition take the records (`benchmarks.lab.share_workers`); one record in ten is released once. Each round kills
(SIGKILL) the node that leads most partitions, and starts it again; then it drains the one that leads most by then. The
time of a kill is that until records are acknowledged that were fetched after it. The time of a drain is the longest
pause between acknowledgements of a partition that moved. The leaders of the group's states move with the nodes, too.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from anabranch.client.connection import Connection
from benchmarks.lab.cluster import (
    MIB,
    NODES,
    TOPIC,
    NumberedLoad,
    bootstrap,
    catalog_of,
    create,
    leaders,
    nodes_on,
    open_catalog,
)
from benchmarks.lab.share_members import configure
from benchmarks.lab.share_workers import GROUP, Promises, share_workers, wait_all_taken
from benchmarks.support import Report, middle, parser
from tests.support.node import NodeProcess

PARTITIONS = 6
SEND_S = 0.01
QUICK_ROUNDS, ROUNDS = 2, 10
TIMEOUT_S = 60.0


async def wait_taken(promises: Promises, since_s: float) -> Sequence[float]:
    """Wait until records of each partition are acknowledged that were fetched after `since_s`; return how long."""
    async with asyncio.timeout(TIMEOUT_S):
        while len(found := promises.taken_since(since_s)) < PARTITIONS:  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.002)
    return [found[partition] for partition in range(PARTITIONS)]


def longest_pause_s(promises: Promises, partition: int, since_s: float) -> float:
    """Return the longest time between acknowledgements of a partition since then."""
    answered_s = [since_s, *(answered for _, answered in promises.fresh_s[partition] if answered > since_s)]
    return max(later - earlier for earlier, later in pairwise(answered_s))


async def run(nodes: Sequence[NodeProcess], load: NumberedLoad, rounds: int, report: Report) -> None:
    """Kill and drain nodes under load."""
    killed_s: list[float] = []
    others_s: list[float] = []
    drained_s: list[float] = []
    workers = share_workers([node.bootstrap for node in nodes], TOPIC, PARTITIONS)
    async with open_catalog(catalog_of(nodes[0])) as catalog, workers as (promises, keeper):
        await asyncio.to_thread(load.start)
        for _ in range(rounds):
            await wait_taken(promises, time.monotonic())
            led = await asyncio.to_thread(leaders, nodes, TOPIC)
            victim = max(set(led), key=led.count)
            began_s = time.monotonic()
            nodes[victim - 1].kill9()
            for leader, seconds in zip(led, await wait_taken(promises, began_s), strict=True):
                (killed_s if leader == victim else others_s).append(seconds)
            await asyncio.to_thread(nodes[victim - 1].start)
            led = await asyncio.to_thread(leaders, nodes, TOPIC)
            drained = max(set(led), key=led.count)
            began_s = time.monotonic()
            await catalog.drain_node(drained, draining=True)
            async with asyncio.timeout(TIMEOUT_S):
                while await catalog.count_open_streams(drained):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
            await wait_taken(promises, time.monotonic())
            drained_s += [
                longest_pause_s(promises, partition, began_s)
                for partition, leader in enumerate(led)
                if leader == drained
            ]
            await catalog.drain_node(drained, draining=False)
        await asyncio.to_thread(load.stop)
        async with asyncio.timeout(TIMEOUT_S):
            await wait_all_taken(keeper)
    report.add("killed until records are acknowledged again, median", middle(killed_s), "s")
    report.add("killed until records are acknowledged again, longest", max(killed_s), "s")
    report.add("partitions of the other nodes, longest", max(others_s, default=0), "s")
    report.add("drained: longest pause of a partition, median", middle(drained_s) * 1e3, "ms")
    report.add("drained: longest pause of a partition, longest", max(drained_s) * 1e3, "ms")
    report.add("records acknowledged", len(promises.done_s), "")
    report.add("acknowledgements without an answer", len(promises.unsure - promises.done_s.keys()), "")
    lost = promises.lost(Counter(ack.partition for ack in load.acks))
    report.add("records lost, or delivered after their acknowledgement", len(lost), "", "<= 0")


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds until a share group goes on after the death of a node.")
    options_of.add_argument("--rounds", type=int, help=f"kills and drains  [default: {ROUNDS}; quick: {QUICK_ROUNDS}]")
    options_of.add_argument("--catalog-url", help="catalog of the cluster  [default: SQLite in a temporary folder]")
    options = options_of.parse_args()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    report = Report(f"{rounds} kills and drains of a node among {NODES}, under a share group")
    with nodes_on(options.catalog_url, NODES, wal_capacity_bytes=64 * MIB) as nodes:
        create(nodes, TOPIC, PARTITIONS)
        with Connection(nodes[0].host, nodes[0].port) as connection:
            configure(connection, GROUP)
        load = NumberedLoad(bootstrap(nodes), PARTITIONS, at_once=PARTITIONS, pause_s=SEND_S)
        asyncio.run(run(nodes, load, rounds, report))
    report.finish(options)


if __name__ == "__main__":
    main()
