"""The simulator's command: runs seeds, replays one with its trace, shrinks what fails, and looks for planted bugs.

Each seed runs in a process of its own, forked from this one, so that runs do not affect each other.

    python -m tests.simulation.run --seeds 1000            stops at the first failure, and shrinks it
    python -m tests.simulation.run --seed 17               prints the trace
    python -m tests.simulation.run --planted all           looks for each planted bug, and prints a table
"""

import argparse
import gc
import math
import os
import pickle
import random
import re
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.simulation.plan import Plan, plan_of, smaller
from tests.simulation.planted.catalogue import PLANTED
from tests.simulation.planted.patch import Planted
from tests.simulation.scenario import Report, run
from tests.support.quick import share_compiled_statements

SHRINK_TRIES_MAX = 80
TRACE_LINES = 400
RUN_TIMEOUT_S = 300.0
SHOW_S = 5.0
GC_THRESHOLD = 100_000
"""New objects until the garbage collector looks for cycles: a run ends after seconds."""


def warm_up() -> None:
    """Run something short in this process: what is imported, compiled and cached by it, forked runs need not.

    It is a quarter of the time of most runs.
    """
    plan = replace(plan_of(0, 1), seconds=5.0, faults=[], goes_back=False, object_log=False, rival=False, settles=False)
    report = run(
        replace(
            plan,
            committers=1,
            copiers=1,
            deleters=1,
            keyed=1,
            restless=1,
            table_topics=1,
            transactional=1,
            classic_members=2,
            consumer_members=2,
        )
    )
    assert not report.error, report.error


class Child:
    """A run in a forked process."""

    def __init__(self, plan: Plan, plant: Callable[[], None] | None = None, *, with_trace: bool = False) -> None:
        self.plan = plan
        self.began = time.monotonic()
        self.fd, write_fd = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.fd)
            try:
                report = run(plan, plant=plant)
            except BaseException:  # noqa: BLE001  # a child may not return into its parent's code
                report = Report(plan, error=f"the simulator failed: {traceback.format_exc()}")
            if not with_trace:
                report.trace = report.trace[-TRACE_LINES:]
            with os.fdopen(write_fd, "wb") as pipe:
                pickle.dump(report, pipe)
            os._exit(0)
        os.close(write_fd)
        self._parts: list[bytes] = []

    def receive(self) -> Report | None:
        """Read what has arrived; returns the report when it is complete."""
        part = os.read(self.fd, 1 << 20)
        if part:
            self._parts.append(part)
            return None
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        data = b"".join(self._parts)
        if not data:
            return Report(self.plan, error=f"the process of the run ended with status {status}")
        found: Report = pickle.loads(data)
        return found

    def kill(self) -> Report:
        """End a run that takes too long."""
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
        return Report(self.plan, error=f"the run did not end within {RUN_TIMEOUT_S:.0f} s")


def run_all(plans: Iterable[Plan], jobs: int, plant: Callable[[], None] | None = None) -> Iterator[Report]:
    """Run plans, several at once, and yield their reports as they come."""
    waiting = iter(plans)
    children: dict[int, Child] = {}
    try:
        while True:
            while len(children) < jobs and (plan := next(waiting, None)) is not None:
                child = Child(plan, plant)
                children[child.fd] = child
            if not children:
                return
            ready, _, _ = select.select(list(children), [], [], 1.0)
            for fd in ready:
                report = children[fd].receive()
                if report is not None:
                    del children[fd]
                    yield report
            for fd, child in list(children.items()):
                if time.monotonic() - child.began > RUN_TIMEOUT_S:
                    del children[fd]
                    yield child.kill()
    finally:
        for child in children.values():
            child.kill()


def run_one(plan: Plan, plant: Callable[[], None] | None = None) -> Report:
    """Run one plan in a process of its own, with its whole trace."""
    child = Child(plan, plant, with_trace=True)
    while (report := child.receive()) is None:
        pass
    return report


def shrink(failed: Report, jobs: int, plant: Callable[[], None] | None = None) -> Report:
    """Find a smaller plan that fails too."""
    tries = 0
    best = failed
    progress = True
    while progress and tries < SHRINK_TRIES_MAX:
        progress = False
        for report in run_all(smaller(best.plan), jobs, plant):
            tries += 1
            if report.error:
                best, progress = report, True
                break
    return best


def seeds_from(first: int, count: int, seconds: float = math.inf, *, nodes: int | None = None) -> Iterator[Plan]:
    """Yield the plans of consecutive seeds, until their number or the time is reached."""
    end = time.monotonic() + seconds
    for seed in range(first, first + count):
        if time.monotonic() > end:
            return
        yield plan_of(seed, nodes)


def run_seeds(plans: Iterable[Plan], jobs: int, *, keep_going: bool = False) -> int:
    """Run plans, and stop at the first failure, or list all. Returns an exit code."""
    began = time.monotonic()
    done = acked = failed = 0
    virtual_s = 0.0
    counts: dict[str, int] = {}
    shown = began
    for report in run_all(plans, jobs):
        if report.error and keep_going:
            print(f"seed {report.plan.seed}: {report.error[:300]}", flush=True)
            failed += 1
        elif report.error:
            print(f"\nseed {report.plan.seed}: {report.error}\nshrinking ...", flush=True)
            show(run_one(shrink(report, jobs).plan), lines=80)
            print(f"replay: make sim SEED={report.plan.seed} SIM_ARGS='--nodes {report.plan.nodes}'")
            return 1
        done += 1
        acked += report.acked
        virtual_s += report.virtual_s
        for name, number in report.counts.items():
            counts[name] = counts.get(name, 0) + number
        now = time.monotonic()
        if now - shown > SHOW_S:
            shown = now
            print(summary(done, now - began, virtual_s, acked), flush=True)
    print(summary(done, time.monotonic() - began, virtual_s, acked))
    print("  ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    if failed:
        print(f"{failed} seeds failed")
    return 1 if failed else 0


def summary(done: int, seconds: float, virtual_s: float, acked: int) -> str:
    """Describe the seeds run so far."""
    hours = virtual_s / 3600
    return (
        f"{done} seeds, {done / seconds * 60:.0f} a minute, "
        f"{hours:.1f} virtual hours ({hours / seconds:.3f} a second), {acked} records acked"
    )


def show(report: Report, *, lines: int | None = None) -> None:
    """Print a run: its plan, its trace and its end."""
    print("\n".join(report.plan.lines()))
    print("\n".join(report.trace if lines is None else report.trace[-lines:]))
    print(report.error or "no failure", f"  ({report.virtual_s:.1f} virtual s, trace {report.digest})")


def find_planted(names: Sequence[str], jobs: int, seeds_max: int) -> int:
    """Look for planted bugs, each in at most `seeds_max` seeds, and print a table. Returns an exit code."""
    chosen = [bug for bug in PLANTED if bug.name in names or "all" in names]
    assert chosen, f"no planted bug has one of the names {names}"
    missed = 0
    for bug in chosen:
        began = time.monotonic()
        bound = min(bug.seeds, seeds_max)
        found = look_for(bug, bound, jobs)
        missed += found is None
        seeds, error = (bound, "") if found is None else found
        outcome = "NOT FOUND in" if found is None else "found after"
        took_s = time.monotonic() - began
        print(f"{bug.name:<24} {outcome:<12} {seeds:>3} seeds ({took_s:>4.0f} s)  {error[:150]}", flush=True)
    return 1 if missed else 0


def look_for(bug: Planted, bound: int, jobs: int) -> tuple[int, str] | None:
    """Return after how many seeds a planted bug is found, and the failure; None if it is not."""
    plans = (bug.adapt(replace(plan, object_log=False)) for plan in seeds_from(0, bound))
    for tried, report in enumerate(run_all(plans, jobs, bug.plant), 1):
        if re.search(bug.found_by, report.error):
            return tried, f"seed {report.plan.seed}: {report.error}"
        if report.error:
            print(f"    another failure, seed {report.plan.seed}: {report.error[:200]}", flush=True)
    return None


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Run the whole system from seeds, under faults.")
    parser.add_argument("--seeds", type=int, metavar="N", help="run N seeds")
    parser.add_argument("--seconds", type=float, default=math.inf, help="run seeds for so long")
    parser.add_argument("--first", type=int, help="first of them  [default: a random one]")
    parser.add_argument("--keep-going", action="store_true", help="list seeds that fail instead of stopping at one")
    parser.add_argument("--seed", type=int, metavar="X", help="replay one seed and print its trace")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes of the cluster  [default: 1 to 3, by the seed]")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the trace to a file")
    parser.add_argument("--planted", nargs="+", metavar="NAME", help="look for planted bugs (all: each of them)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings is part of a trace
        command = [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    share_compiled_statements()
    if options.seed is None:
        warm_up()
    # A forked run then never walks the modules, which takes an eighth of its time, nor copies their pages.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    if options.planted:
        sys.exit(find_planted(options.planted, options.jobs, options.seeds or sys.maxsize))
    if options.seed is not None:
        plan = plan_of(options.seed, options.nodes)
        report, again = run_one(plan), run_one(plan)
        if options.trace is not None:
            options.trace.write_text("\n".join(report.trace) + "\n")
        show(report)
        if again.digest != report.digest:
            sys.exit(f"the seed's second run differs: {again.digest}")
        sys.exit(1 if report.error else 0)
    first = random.SystemRandom().randrange(1 << 32) if options.first is None else options.first
    count = options.seeds or (100 if options.seconds == math.inf else sys.maxsize)
    plans = seeds_from(first, count, options.seconds, nodes=options.nodes)
    sys.exit(run_seeds(plans, options.jobs, keep_going=options.keep_going))


if __name__ == "__main__":
    main()
