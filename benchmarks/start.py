"""Time from the start of a node's process until it listens: with a new log, with an existing one, and as it once was.

    python -m benchmarks.start [--quick] [--json FILE] [--home DIR]

Rounds alternate between a new data directory, the same directory after a clean stop, and a new directory whose log is
written in full before the node listens (`wal.fencing = strict`, as every new log was before).
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.support import Report, middle, parser

CAPACITY = "1GiB"
LISTENS, WRITTEN = "serving", "the log file is written in full"
QUICK_ROUNDS, ROUNDS = 3, 7
STOP_TIMEOUT_S = 60


class Start:
    """A node that was started, and its messages."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self._began_s = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "anabranch",
            "serve",
            "--data-dir",
            str(data_dir),
            "--wal-capacity-bytes",
            CAPACITY,
        ]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--admin-port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def wait_for(self, event: str) -> tuple[float, dict[str, Any]]:
        """Return the time since the start at which the node logged `event`, in seconds, and the message."""
        assert self.process.stdout is not None
        shown = []
        for line in self.process.stdout:
            shown.append(line.decode())
            if line.startswith(b"{") and (message := json.loads(line))["event"] == event:
                return time.perf_counter() - self._began_s, message
        sys.exit(f"the node ended before it logged {event!r}:\n{''.join(shown)}")


@contextmanager
def started(data_dir: Path, *flags: str) -> Iterator[Start]:
    """Start a node, and stop it cleanly at the end."""
    start = Start(data_dir, *flags)
    try:
        yield start
    finally:
        start.process.send_signal(signal.SIGTERM)
        start.process.communicate(timeout=STOP_TIMEOUT_S)


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds until a node listens.")
    options_of.add_argument("--home", type=Path, help="folder for the data directories  [default: a new temporary one]")
    options = options_of.parse_args()
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-", dir=options.home))
    new, again, in_full, written = [], [], [], []
    try:
        with started(home / "warm-up") as start:  # compiles the modules and reads them into the page cache
            start.wait_for(LISTENS)
        for number in range(QUICK_ROUNDS if options.quick else ROUNDS):
            with started(home / f"new-{number}") as start:
                new.append(start.wait_for(LISTENS)[0])
                written.append(start.wait_for(WRITTEN)[0])
            with started(home / f"new-{number}") as start:
                again.append(start.wait_for(LISTENS)[0])
            with started(home / f"in-full-{number}", "--wal-fencing", "strict") as start:
                in_full.append(start.wait_for(LISTENS)[0])
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
