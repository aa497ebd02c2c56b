"""Produce and fetch, side by side with Apache Kafka, driven by Apache Kafka's own clients.

All brokers run at the same time on this machine with their defaults, and one warm JVM drives them in turn with acks=all
and the default linger of 5 ms, unless a row says otherwise. The node writes every batch to its log device before it
responds (O_DIRECT and O_DSYNC); Apache Kafka responds from the page cache. A second Apache Kafka that flushes each
batch (`log.flush.interval.messages=1`) has the node's durability. Ratios are the node over Apache Kafka, of pairs
measured one after the other; the order changes each round. CPU is the broker's, user and system. MB are 10^6 bytes.

Steps (`--only` takes their beginnings):

- `1p.16KiB` to `16p.256KiB`: partitions and batch size; records of 1 KiB as fast as possible, others read from memory
- `tail`: the same load with a consumer that reads along; latency until the consumer has the record
- `single`: one record a request (no linger, no batches, 64 in flight on a connection)
- `librdkafka`, `aiokafka`: Python's own producers with their defaults, 16 partitions
- `tls`: 16 partitions, batches of 64 KiB over TLS 1.3 (P-256, AES-128-GCM)
- `steady.10MBps`: 16 partitions, over three upload cycles of the node
- `e2e`: 1,000 records/s without linger; latency until the consumer has the record
- `many`: 1,000 partitions, 100 producers and a group of 100 consumers, 2,000 records/s
- with `--all`, or by name, those without a goal:
  `steady.half` (of Apache Kafka's best rate);
  `100B`: records of 100 bytes, 16 partitions;
  `catchup`: 10 MB/s, alone and beside a consumer that reads history from objects

At a rate, latency counts from the moment a record is due (PerfClient.java says why), otherwise from the send.

    python -m benchmarks.produce_fetch [--quick] [--all] [--only STEP ...] [--rounds N] [--json FILE] [--markdown FILE]
"""

import argparse
import io
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.lab.processes import MissingError
from benchmarks.lab.report import results_of, session_markdown, session_rows, write_json
from benchmarks.lab.session import GB, MIB, Plan, Session, Step, expected_step_s
from benchmarks.lab.steps import all_steps
from benchmarks.support import CONSOLE, Report, Result, number, parser

EXTRA = ("steady.half", "100B", "catchup")
"""Steps that no goal speaks of."""
QUICK = Plan(
    rounds=1,
    produce_bytes=96 * MIB,
    produce_s=2,
    fetch_bytes=64 * MIB,
    fetch_passes=3,
    steady_cycles=0,
    short_s=3,
    warm_units_max=4,
    history_bytes=256 * MIB,
    left_out=("many", *EXTRA),
    flushed=False,
    warm_up_s=30,
)
FULL = Plan(
    rounds=5,
    produce_bytes=0,
    produce_s=7,
    fetch_bytes=192 * MIB,
    fetch_passes=8,
    steady_cycles=3,
    short_s=8,
    warm_units_max=10,
    history_bytes=1024 * MIB,
    left_out=EXTRA,
    warm_up_s=200,
)


def main() -> None:
    """Run the benchmark."""
    made = parser("Produce and fetch, beside Apache Kafka.")
    made.add_argument("--home", type=Path, help="folder for the brokers' data  [default: a new temporary one]")
    made.add_argument("--flag", action="append", default=[], help="a flag for the node, as --flag=--wal-durability=...")
    made.add_argument("--all", action="store_true", help="also run the steps that no goal speaks of")
    made.add_argument("--only", nargs="+", metavar="STEP", help="steps whose names begin so")
    made.add_argument("--rounds", type=int, help="number of rounds, instead of the plan's")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables to this file")
    made.add_argument("--no-flushed", action="store_true", help="leave out Apache Kafka with flushes")
    options = made.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that a file shows the progress of a long run
    plan = QUICK if options.quick else FULL
    plan = replace(plan, rounds=options.rounds or plan.rounds, flushed=plan.flushed and not options.no_flushed)
    steps = chosen(plan, options)
    home = options.home or Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    signal.signal(signal.SIGTERM, terminate)
    try:
        measure(options, plan, steps, home)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        if options.home is None:
            shutil.rmtree(home)


def terminate(*_: object) -> None:
    """End the run. A second signal, as `timeout` sends it, must not keep the brokers from being stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit("terminated")


def chosen(plan: Plan, options: argparse.Namespace) -> list[Step]:
    """Return the steps to run, and print what is left out."""
    steps = all_steps(plan, options.flag)
    keys = [step.key for step in steps]
    if options.only:
        unknown = [name for name in options.only if not any(key.startswith(name) for key in keys)]
        if unknown:
            sys.exit(f"unknown step {', '.join(unknown)}; there are {', '.join(keys)}")
        return [step for step in steps if step.key.startswith(tuple(options.only))]
    if options.quick:
        CONSOLE.print(
            f"--quick leaves out Apache Kafka with flushes, and most of the warm-up; "
            f"steady loads take {plan.short_s:.0f} s and meet no upload; one round, unless --rounds says more",
            highlight=False,
        )
    left_out = () if options.all else plan.left_out
    if left_out:
        CONSOLE.print(f"Without --all it leaves out {', '.join(left_out)}", highlight=False)
    return [step for step in steps if step.key not in left_out]


def measure(options: argparse.Namespace, plan: Plan, steps: list[Step], home: Path) -> None:
    """Start everything, measure, report. Files are written after each round."""
    began = time.monotonic()
    flushed = plan.flushed and any(step.flushed_rounds for step in steps)
    session = Session(home, plan, options.flag, flushed=flushed)
    whole_life: list[Result] = []
    expected_s = [expected_step_s(step, plan, plan.rounds) for step in steps]
    CONSOLE.print(f"About {(plan.warm_up_s + sum(expected_s)) / 60:.0f} minutes", highlight=False)

    def flush() -> None:
        rows = session_rows(session)
        if options.json is not None:
            lives = [(result, [result.value]) for result in whole_life]
            write_json(options.json, [*results_of(rows), *lives], session.failures)
        if options.markdown is not None:
            options.markdown.write_text(session_markdown(session))

    with session.running():
        session.warm_up()
        for at, step in enumerate(steps, 1):
            session.measure(step, plan.rounds, flush)
            CONSOLE.print(
                f"{at} of {len(steps)} steps after {(time.monotonic() - began) / 60:.0f} minutes; "
                f"about {sum(expected_s[at:]) / 60:.0f} minutes are left",
                highlight=False,
            )
    for broker in session.brokers:
        gb = session.bytes_moved[broker.name] / GB
        whole_life.append(Result(f"session.cpu.{broker.name}", broker.session_cpu_s / gb, "s/GB"))
    flush()
    CONSOLE.print(session_markdown(session), markup=False, highlight=False, soft_wrap=True)
    lives = ", ".join(f"{result.name.split('.')[-1]} {number(result.value)}" for result in whole_life)
    CONSOLE.print(f"CPU s per GB moved, of the whole life with start, uploads and stop: {lives}", highlight=False)
    results = [result for result, _ in results_of(session_rows(session))]
    Report("goals", [result for result in results if result.goal is not None]).print()
    for failure in session.failures:
        CONSOLE.print(failure, style="red", markup=False)
    CONSOLE.print(f"{(time.monotonic() - began) / 60:.1f} minutes", highlight=False)


if __name__ == "__main__":
    main()
