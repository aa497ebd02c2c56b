"""Seconds in which a node with many partitions is drained under light load, and what clients noticed of it.

    python -m benchmarks.drain [--quick] [--partitions N] [--catalog-url URL] [--json FILE]

Two nodes on this machine, with device logs. One leads all partitions of a topic; an idempotent producer sends a record
to the next partition each millisecond. The node is drained, and the time is until it has none of the partitions. At the
end all records are read, and compared with what was acknowledged. Nodes, clients and, with PostgreSQL, the catalog
share the processors of the machine.
"""

import asyncio
import sys
import time

from benchmarks.lab.cluster import (
    MIB,
    TIMEOUT_S,
    TOPIC,
    NumberedLoad,
    bootstrap,
    catalog_of,
    create,
    joining,
    nodes_on,
    open_catalog,
)
from benchmarks.support import Report, middle, p99, parser

QUICK_PARTITIONS, PARTITIONS = 100, 1_000
SEND_S = 0.001
DRAINED = 1


async def drain(url: str, load: NumberedLoad, partitions: int) -> tuple[float, list[float]]:
    """Drain the node; return the seconds that it took, and how long records waited meanwhile."""
    async with open_catalog(url) as catalog:
        while len(load.acks) < 2 * partitions:  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.1)
        before, began_s = len(load.acks), time.monotonic()
        await catalog.drain_node(DRAINED, draining=True)
        while await catalog.count_open_streams(DRAINED):
            if time.monotonic() > began_s + TIMEOUT_S:
                sys.exit(f"the node is not drained: {await catalog.list_moves()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began_s, [each.waited_s for each in load.acks[before:]]


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds in which a node is drained, and client errors.")
    options_of.add_argument(
        "--partitions", type=int, help=f"number of partitions  [default: {PARTITIONS}; quick: {QUICK_PARTITIONS}]"
    )
    options_of.add_argument("--catalog-url", help="catalog of the cluster  [default: SQLite in a temporary folder]")
    options = options_of.parse_args()
    partitions = options.partitions or (QUICK_PARTITIONS if options.quick else PARTITIONS)
    report = Report(f"drain of a node that leads {partitions} partitions")
    with nodes_on(options.catalog_url, 1, DRAINED, wal_capacity_bytes=64 * MIB) as (drained,):
        create([drained], TOPIC, partitions)
        with joining(drained, DRAINED + 1) as other:
            servers = bootstrap([drained, other])
            load = NumberedLoad(servers, partitions, at_once=1, pause_s=SEND_S)
            load.start()
            seconds, waited_s = asyncio.run(drain(catalog_of(drained), load, partitions))
            load.stop()
            report.add("seconds until the node leads none", seconds, "s", "<= 30")
            report.add("wait of a record during the drain, median", 1000 * middle(waited_s), "ms")
            report.add("wait of a record during the drain, p99", 1000 * p99(waited_s), "ms")
            load.add_losses(report, servers)
    report.finish(options)


if __name__ == "__main__":
    main()
