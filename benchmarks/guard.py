"""Guard of the hot paths: fails when a request or a step of the storage engine costs more of the processor than before.

    python -m benchmarks.guard [--cpu] [--quick] [--only TEXT ...] [--update] [--json FILE]

Each path runs in this process, without sockets and disk, and is compared with a reference workload of fixed Python
code, copies and checksums in the same run: the figures are ratios, and `guard.json` has those to be kept. With Valgrind
on the machine, the unit is instructions, which load and other work do not change. Otherwise (or with `--cpu`) it is CPU
time, in alternating rounds. Neither has the cost of system calls, wake-ups and cold caches: `produce_fetch` has.

The exit code is 1 if a path has become slower than the tolerance allows. `--update` stores the ratios of this run;
do so together with the change that explains them.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import structlog
import uvloop
from crc32c import crc32c
from rich.table import Table

from anabranch.broker.operator.cli.node_process import CYCLE_THRESHOLDS
from anabranch.native import native_part
from benchmarks.lab import callgrind
from benchmarks.lab.hot_paths import HotPath, hot_paths
from benchmarks.lab.in_process import InProcessNode, in_process_node
from benchmarks.support import CONSOLE, parser

STORED: Final = Path(__file__).with_name("guard.json")
INSTRUCTIONS, CPU = "instructions", "CPU time"
TOLERANCE: Final[Mapping[str, float]] = {INSTRUCTIONS: 0.03, CPU: 0.12}
"""Growth of a ratio that is no regression: several times the spread between runs of the same code."""
ROUNDS, QUICK_ROUNDS = 100, 25
LOW_QUANTILE: Final = 10
"""CPU time is the first of this many quantiles of the rounds: other work makes single rounds slower, none faster."""
COUNTED_SHARE: Final = 2
"""Under Callgrind a sample has 1/COUNTED_SHARE of its repeats, as all are alike."""
COSTS_FILE: Final = "costs.json"
COUNTED_SAMPLES: Final = 4
"""The least of them counts: background work of the node falls into one of them, now and then."""
Costs = Mapping[str, float]
"""Cost of one repeat of each path, in repeats of the reference workload."""


def reference() -> None:
    """Work of a fixed cost: about 0.1 ms of Python code, and 256 KiB copied and checked."""
    table: dict[int, tuple[int, str]] = {}
    for at in range(500):
        table[at & 63] = (at, f"item-{at}")
    for key, (at, name) in table.items():
        assert at & 63 == key
        assert name.endswith(str(at))
    data = bytearray(256 << 10)
    for _ in range(4):
        crc32c(bytes(data))


REFERENCE_REPEATS: Final = 4


async def count_instructions(paths: Sequence[HotPath], folder: Path) -> Costs:
    """Measure under Callgrind."""
    counter = callgrind.InstructionCounter(folder)
    reference()
    counter.start()
    reference()
    unit = counter.stop()
    costs = {}
    for path in paths:
        repeats = max(1, path.repeats // COUNTED_SHARE)
        await path.run(path.repeats)
        gc.collect()
        samples = []
        for _ in range(COUNTED_SAMPLES):
            counter.start()
            await path.run(repeats)
            samples.append(counter.stop() / repeats)
            path.check()
        costs[path.name] = min(samples) / unit
    return costs


async def time_paths(paths: Sequence[HotPath], lab: InProcessNode, rounds: int) -> Costs:
    """Measure CPU time of all threads. In each round every path is next to the reference workload."""
    samples: dict[str, list[float]] = {path.name: [] for path in paths}
    units: list[float] = []
    for path in paths:
        await path.run(path.repeats)
    for _ in range(rounds):
        gc.collect()
        for path in paths:
            await lab.relax()
            began = time.process_time_ns()
            for _ in range(REFERENCE_REPEATS):
                reference()
            between = time.process_time_ns()
            await path.run(path.repeats)
            samples[path.name].append((time.process_time_ns() - between) / path.repeats)
            units.append((between - began) / REFERENCE_REPEATS)
            path.check()
    unit = _low(units)
    return {name: _low(found) / unit for name, found in samples.items()}


def _low(samples: Sequence[float]) -> float:
    return quantiles(samples, n=LOW_QUANTILE, method="inclusive")[0]


async def measure(options: argparse.Namespace, *, counting_in: Path | None = None) -> Costs:
    """Measure the chosen paths in this process."""
    async with in_process_node() as lab:
        paths = [path for path in await hot_paths(lab) if _is_chosen(path.name, options.only)]
        # New topics are due for one, which would fall into a measurement.
        await lab.node.upkeep.manifests.ensure_current()
        # As in a serving node, and at the same points in each run.
        gc.freeze()
        gc.set_threshold(*CYCLE_THRESHOLDS)
        if counting_in is not None:
            return await count_instructions(paths, counting_in)
        return await time_paths(paths, lab, QUICK_ROUNDS if options.quick else ROUNDS)


def _is_chosen(name: str, texts: Collection[str]) -> bool:
    return not texts or any(text in name for text in texts)


def measure_under_callgrind(options: argparse.Namespace) -> Costs:
    """Measure in a child process."""
    with tempfile.TemporaryDirectory(prefix="anabranch-guard-") as folder:
        only = ["--only", *options.only] if options.only else []
        # Hashes of text decide the collisions in dicts and sets.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        callgrind.run(["-m", "benchmarks.guard", "--counting-in", folder, *only], Path(folder), environment)
        costs: Costs = json.loads(Path(folder, COSTS_FILE).read_text())
        return costs


@dataclass(frozen=True)
class Verdict:
    """A path beside its stored ratio, None if there is none."""

    name: str
    was: float | None
    now: float
    tolerance: float

    @property
    def change(self) -> float | None:
        """Relative change; positive is slower."""
        return None if self.was is None else self.now / self.was - 1

    @property
    def is_slower(self) -> bool:
        """True if the change is a regression."""
        return self.change is not None and self.change > self.tolerance

    @property
    def text(self) -> str:
        """The outcome in a word."""
        if self.change is None:
            return "new"
        return (
            "[red]slower[/red]" if self.is_slower else "[green]faster[/green]" if self.change < -self.tolerance else ""
        )


def judge(costs: Costs, stored: Costs, tolerance: float) -> list[Verdict]:
    """Compare the ratios of this run with the stored ones."""
    return [Verdict(name, stored.get(name), now, tolerance) for name, now in costs.items()]


def stored_costs(unit: str, file: Path = STORED) -> Costs:
    """Return the stored ratios. Another version of Python, or the native part, executes other instructions."""
    costs: Costs = json.loads(file.read_text()).get(unit, {}).get(_python(), {}) if file.exists() else {}
    return costs


def store(unit: str, costs: Costs, file: Path = STORED) -> None:
    """Replace the stored ratios of the paths that were measured."""
    everything = json.loads(file.read_text()) if file.exists() else {}
    known = everything.setdefault(unit, {}).setdefault(_python(), {})
    known.update({name: round(cost, 4) for name, cost in costs.items()})
    file.write_text(json.dumps(everything, indent=1) + "\n")


def _python() -> str:
    part = ", native" if native_part().module is not None else ""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}{part}"


def show(verdicts: Sequence[Verdict], unit: str) -> None:
    """Print the table."""
    table = Table(title=f"{unit}, over the reference workload", title_justify="left", header_style="bold")
    table.add_column("path")
    for name in ("stored", "now", "change"):
        table.add_column(name, justify="right")
    table.add_column("")
    for verdict in verdicts:
        was = "" if verdict.was is None else f"{verdict.was:.3f}"
        change = "" if verdict.change is None else f"{verdict.change:+.1%}"
        table.add_row(verdict.name, was, f"{verdict.now:.3f}", change, verdict.text)
    CONSOLE.print(table)


def run(options: argparse.Namespace) -> int:
    """Measure, print, and store or compare. Returns the exit code."""
    unit = CPU if options.cpu or not callgrind.is_available() else INSTRUCTIONS
    costs = asyncio.run(measure(options)) if unit == CPU else measure_under_callgrind(options)
    verdicts = judge(costs, stored_costs(unit), TOLERANCE[unit])
    show(verdicts, unit)
    if options.json is not None:
        options.json.write_text(json.dumps([{**vars(verdict), "unit": unit} for verdict in verdicts], indent=1) + "\n")
    if options.update:
        store(unit, costs)
        CONSOLE.print(f"stored in {STORED}", highlight=False)
        return 0
    slower = [verdict for verdict in verdicts if verdict.is_slower]
    missing = [verdict.name for verdict in verdicts if verdict.was is None]
    if missing:
        CONSOLE.print(f"not stored for {unit} on {_python()}: {', '.join(missing)}; --update stores them")
    CONSOLE.print(f"{len(slower)} of {len(verdicts)} paths are slower by more than {TOLERANCE[unit]:.0%}")
    return 1 if slower or missing else 0


def main() -> None:
    """Run the guard."""
    made = parser("Cost of the hot paths, compared with the stored one.")
    made.add_argument("--cpu", action="store_true", help="compare CPU time even if instructions can be counted")
    made.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="paths whose names contain one of these")
    made.add_argument("--update", action="store_true", help="store the ratios of this run")
    made.add_argument("--counting-in", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvloop.install()
    if options.counting_in is not None:
        costs = asyncio.run(measure(options, counting_in=options.counting_in))
        Path(options.counting_in, COSTS_FILE).write_text(json.dumps(costs))
        return
    sys.exit(run(options))


if __name__ == "__main__":
    main()
