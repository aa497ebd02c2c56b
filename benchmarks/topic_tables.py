"""Topics that are tables: what they cost a node, when their rows are there, and what engines gain.

A node runs as a process, with its defaults but for uploads after half a second and no compaction, and its data in a
local folder. Batches have 16 KiB of values before compression with lz4. CPU is user and system, of the node and of its
process that makes columns. Parts, each with about the time that it takes:

- `rows` (4 min): from a topic with a backlog to its committed table, less what the node uses at rest; records of 174
  and 738 B, as bytes (raw) and as columns (typed); and a pipeline of Spark into an Iceberg table of the same topic, in
  turn, in a warm session
- `freshness` (4 min): from the acknowledgement of a record until a table that is loaded then has it, with commits each
  60, 10 and 2 s at 500 records/s; what a node uses beyond one whose topic is no table
- `beside` (4 min): produce and fetch of single records of 1 KiB beside a load of 20,000 records/s, whose topic is a
  table with commits each 5 s, or is none, in turn
- `scan` (4 min): Spark reads records of 1 KiB by its Kafka source (tuned), by the direct source, and as raw and typed
  table, whole or some columns, in turn
- `bytes` (2 min): data files over blocks in objects, for four kinds of records
- `commits` (4 min): a thousand commits of ten rows and their joins on one table, whose snapshots stay; then all but the
  newest hundred or so expire

    python -m benchmarks.topic_tables [--quick] [--only PART ...] [--json FILE]
"""

import shutil
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from benchmarks.lab.processes import MissingError
from benchmarks.support import CONSOLE, Report, parser

Part = Callable[[Report, Path, Namespace], None]
PARTS: Mapping[str, str] = {
    "rows": "rows",
    "freshness": "freshness",
    "beside": "beside",
    "scan": "scan",
    "bytes": "sizes",
    "commits": "commits",
}
"""Modules of the parts by name: each is imported when it is run, as some need Spark."""


def main() -> None:
    """Run the parts."""
    made = parser("Topics that are tables.")
    made.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help="parts to run"
    )
    options = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    report = Report("Topics that are tables")
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        for name in options.only:
            CONSOLE.print(f"{name} ...", highlight=False)
            began_s = time.monotonic()
            place = home / name
            place.mkdir()
            part: Part = import_module(f"benchmarks.lab.tables.{PARTS[name]}").measure
            part(report, place, options)
            CONSOLE.print(f"{name}: {(time.monotonic() - began_s) / 60:.1f} minutes", highlight=False)
            shutil.rmtree(place)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    report.finish(options)


if __name__ == "__main__":
    main()
