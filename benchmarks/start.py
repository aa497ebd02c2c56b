"""Time from the start of a node's process until it listens, with a new log and with an existing one.

    python -m benchmarks.start [--quick] [--json FILE] [--home DIR]

Rounds alternate between a new data directory and the same directory after a clean stop.
"""

import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.support import Report, middle, parser
from tests.support.node import NodeProcess

CAPACITY = "1GiB"
QUICK_ROUNDS, ROUNDS = 3, 7


def start_s(home: Path) -> float:
    """Start a node, and stop it cleanly. Returns the seconds until it listened."""
    node = NodeProcess(home, wal_capacity_bytes=CAPACITY)
    node.new_interpreter = True
    began_s = time.perf_counter()
    node.start()
    seconds = time.perf_counter() - began_s
    node.terminate()
    return seconds


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds until a node listens.")
    options_of.add_argument("--home", type=Path, help="folder for the data directories  [default: a new temporary one]")
    options = options_of.parse_args()
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-", dir=options.home))
    new, again = [], []
    try:
        start_s(home / "warm-up")  # compiles the modules and reads them into the page cache
        for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
            new.append(start_s(home / "node"))
            again.append(start_s(home / "node"))
            shutil.rmtree(home / "node")
    finally:
        shutil.rmtree(home)
    report = Report(f"Start of a node with a log of {CAPACITY}")
    report.add("new log: listens after", middle(new), "s", "<= 1")
    report.add("new log: longest", max(new), "s")
    report.add("existing log: listens after", middle(again), "s")
    ratio = middle([one / other for one, other in zip(new, again, strict=True)])
    report.add("new log over existing log", ratio, "ratio", "<= 1.3")
    report.finish(options)


if __name__ == "__main__":
    main()
