"""Time for which clients wait while a partition moves to another living node, and what was lost or duplicated.

    python -m benchmarks.move [--quick] [--moves N] [--object-log] [--late-ms MS] [--catalog-url URL] [--json FILE]

Three nodes on this machine, with device logs or, with `--object-log`, with logs in the object store. That is a
directory or, with `--late-ms`, an S3 server behind a proxy that delays each request. An idempotent producer sends to
every partition each 10 ms. Each round orders one partition to the next node, and ends when that node has it and
acknowledges. The time of a move, as clients see it, is the longest time from sending to acknowledgement of the records
that were sent to the partition in the round. At the end all records are read, and compared with what was acknowledged.
Nodes, clients and, with PostgreSQL, the catalog share the processors of the machine.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.s3stream.catalog.catalog import Catalog
from benchmarks.lab.cluster import (
    MIB,
    NODES,
    TIMEOUT_S,
    TOPIC,
    NumberedLoad,
    bootstrap,
    catalog_of,
    create,
    nodes_on,
    open_catalog,
    order_moves,
    partitions_of,
)
from benchmarks.support import Report, middle, p99, parser
from tests.support.fault_proxy import Fault, fault_proxy_thread
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, s3_server

PARTITIONS = 6
SEND_S = 0.01
QUICK_MOVES, MOVES = 10, 50


@contextmanager
def storage(late_ms: int) -> Iterator[dict[str, object]]:
    """Yield settings of nodes that name where objects are; without any it is a directory."""
    if not late_ms:
        yield {}
        return
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    fault = Fault(delay_ms=late_ms)
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-bench-") as home,
        s3_server(Path(home)) as server,
        fault_proxy_thread(server.endpoint, lambda _: fault) as endpoint,
    ):
        yield {**server.new_bucket().node_settings(), "objects_endpoint": endpoint}


async def move(catalog: Catalog, index: int) -> float:
    """Move a partition to the next node; return how long it took from the order on."""
    info = (await partitions_of(catalog))[index]
    to_node = info.leader % NODES + 1
    began_s = time.monotonic()
    await order_moves(catalog, [info], to_node)
    while (await partitions_of(catalog))[index].owner != to_node:
        if time.monotonic() > began_s + TIMEOUT_S:
            sys.exit(f"the partition was not moved: {await catalog.list_moves()}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


async def run_moves(url: str, load: NumberedLoad, moves: int) -> tuple[list[float], list[float], list[float]]:
    """Return how long the moves took, how long their clients waited, and how long those of other partitions did."""
    taken_s: list[float] = []
    waited_s: list[float] = []
    others_s: list[float] = []
    async with open_catalog(url) as catalog:
        for round_ in range(moves):
            index = round_ % PARTITIONS
            await asyncio.to_thread(load.wait_all, time.monotonic())
            before = len(load.acks)
            taken_s.append(await move(catalog, index))
            await asyncio.to_thread(load.wait_all, time.monotonic())
            longest_s = [0.0] * PARTITIONS
            for each in load.acks[before:]:
                longest_s[each.partition] = max(longest_s[each.partition], each.waited_s)
            waited_s.append(longest_s.pop(index))
            others_s += longest_s
    return taken_s, waited_s, others_s


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds for which clients wait while a partition moves.")
    options_of.add_argument("--moves", type=int, help=f"number of moves  [default: {MOVES}; quick: {QUICK_MOVES}]")
    options_of.add_argument("--catalog-url", help="catalog of the cluster  [default: SQLite in a temporary folder]")
    options_of.add_argument("--object-log", action="store_true", help="logs in the object store")
    options_of.add_argument("--late-ms", type=int, default=0, help="objects on an S3 server that answers so much later")
    options = options_of.parse_args()
    moves = options.moves or (QUICK_MOVES if options.quick else MOVES)
    goal = "<= 1000" if options.object_log else "<= 250"
    report = Report(f"{moves} moves of a partition among {NODES} nodes")
    wanted = {"wal_capacity_bytes": 64 * MIB, "wal_kind": "object" if options.object_log else "device"}
    with storage(options.late_ms) as place, nodes_on(options.catalog_url, NODES, **wanted, **place) as nodes:
        create(nodes, TOPIC, PARTITIONS)
        load = NumberedLoad(bootstrap(nodes), PARTITIONS, at_once=PARTITIONS, pause_s=SEND_S)
        load.start()
        taken_s, waited_s, others_s = asyncio.run(run_moves(catalog_of(nodes[0]), load, moves))
        load.stop()
        load.add_losses(report, bootstrap(nodes))
    report.add("longest wait of a record while its partition moves, median", 1000 * middle(waited_s), "ms")
    report.add("longest wait of a record while its partition moves, p99", 1000 * p99(waited_s), "ms", goal)
    report.add("longest wait of a record of other partitions, median", 1000 * middle(others_s), "ms")
    report.add("longest wait of a record of other partitions, p99", 1000 * p99(others_s), "ms")
    report.add("from the order until another node has it, median", 1000 * middle(taken_s), "ms")
    report.add("from the order until another node has it, p99", 1000 * p99(taken_s), "ms")
    report.finish(options)


if __name__ == "__main__":
    main()
