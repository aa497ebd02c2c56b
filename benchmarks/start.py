"""Time from the start of a node's process until it listens: with a new log, with an existing one, and as it once was.

    python -m benchmarks.start [--quick] [--json FILE] [--home DIR]

Rounds alternate between a new data directory, the same directory after a clean stop, and a new directory whose log is
written in full before the node listens (`wal.fencing = strict`, as every new log was before).
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.support import Report, middle, parser
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

CAPACITY = "1GiB"
WRITTEN = "the log file is written in full"
QUICK_ROUNDS, ROUNDS = 3, 7


@contextmanager
def started(home: Path, **wanted: object) -> Iterator[tuple[NodeProcess, float]]:
    """Start a node, and stop it cleanly at the end. Gives also the seconds until it listened."""
    node = NodeProcess(home, wal_capacity_bytes=CAPACITY, **wanted)
    node.new_interpreter = True
    began_s = time.perf_counter()
    node.start()
    try:
        yield node, time.perf_counter() - began_s
    finally:
        node.terminate()


def is_written(node: NodeProcess) -> bool:
    """Return whether the node has written its log in full."""
    return bool(node.events(WRITTEN))


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds until a node listens.")
    options_of.add_argument("--home", type=Path, help="folder for the data directories  [default: a new temporary one]")
    options = options_of.parse_args()
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-", dir=options.home))
    new, again, in_full, written = [], [], [], []
    try:
        with started(home / "warm-up"):  # compiles the modules and reads them into the page cache
            pass
        for number in range(QUICK_ROUNDS if options.quick else ROUNDS):
            began_s = time.perf_counter()
            with started(home / f"new-{number}") as (node, seconds):
                new.append(seconds)
                wait_until(partial(is_written, node), WRITTEN)
                written.append(time.perf_counter() - began_s)
            with started(home / f"new-{number}") as (_, seconds):
                again.append(seconds)
            with started(home / f"in-full-{number}", wal_fencing="strict") as (_, seconds):
                in_full.append(seconds)
            for folder in home.glob(f"*-{number}"):
                shutil.rmtree(folder)
    finally:
        shutil.rmtree(home)
    report = Report(f"Start of a node with a log of {CAPACITY}")
    report.add("new log: listens after", middle(new), "s", "<= 1")
    report.add("new log: longest", max(new), "s")
    report.add("new log: written in full after", middle(written), "s")
    report.add("existing log: listens after", middle(again), "s")
    report.add("log written in full first: listens after", middle(in_full), "s")
    ratio = middle([one / other for one, other in zip(new, again, strict=True)])
    report.add("new log over existing log", ratio, "ratio", "<= 1.3")
    report.finish(options)


if __name__ == "__main__":
    main()
