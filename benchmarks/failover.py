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

import os
import shutil
import signal
import time

from benchmarks.lab.cluster import MIB, NODES, TOPIC, NumberedLoad, bootstrap, create, leaders, nodes_on
from benchmarks.support import Report, middle, p99, parser

PARTITIONS = 6
SEND_S = 0.01
QUICK_KILLS, KILLS = 6, 30


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
    machine = options.machine or options.vanish
    moved_s: list[float] = []
    others_s: list[float] = []
    goals_s = (12, 15) if options.vanish else (5, 8) if options.machine else (2, 5)
    report = Report(f"{kills} kills of a node among {NODES}")
    wanted = {"wal_capacity_bytes": 64 * MIB, "wal_kind": "object" if machine else "device"}
    with nodes_on(options.catalog_url, NODES, **wanted) as nodes:
        create(nodes, TOPIC, PARTITIONS)
        load = NumberedLoad(bootstrap(nodes), PARTITIONS, at_once=PARTITIONS, pause_s=SEND_S)
        load.start()
        for kill in range(kills):
            load.wait_all(time.monotonic())
            led = leaders(nodes, TOPIC)
            victim = max(set(led), key=lambda node_id: (led.count(node_id), (node_id + kill) % NODES))
            node = nodes[victim - 1]
            began_s = time.monotonic()
            if options.vanish:
                os.kill(node.pid, signal.SIGSTOP)
            else:
                node.kill9()
            for leader, seconds in zip(led, load.wait_all(began_s), strict=True):
                (moved_s if leader == victim else others_s).append(seconds)
            if node.running:
                node.kill9()
            if machine:
                shutil.rmtree(node.data_dir, ignore_errors=True)
            node.start()
        load.stop()
        report.add("killed until acknowledged again, median", middle(moved_s), "s", f"<= {goals_s[0]}")
        report.add("killed until acknowledged again, p99", p99(moved_s), "s", f"<= {goals_s[1]}")
        report.add("killed until acknowledged again, longest", max(moved_s), "s")
        if others_s:
            report.add("partitions of the other nodes, p99", p99(others_s), "s")
        load.add_losses(report, bootstrap(nodes))
    report.finish(options)


if __name__ == "__main__":
    main()
