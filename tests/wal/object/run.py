"""Runs histories of the object log, in a process of their own: `python -m tests.wal.object.run --first 0 --count 25`.

What killed processes leave behind must never be finalized: it would run in the wrong process, at times that no seed
decides. So there is no garbage collection, and the program ends without clean-up.
"""

import argparse
import gc
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import structlog

from tests.wal.object.planted import PLANTED
from tests.wal.object.world import Violation, World


def main() -> int:
    """Run them; return 1 if one is violated, or with `--planted` if a bug is not found in time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--planted", nargs="+", choices=[bug.name for bug in PLANTED])
    options = parser.parse_args()
    gc.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return _find_each(options.planted) if options.planted else _run(options.first, options.count)


def _run(first: int, count: int) -> int:
    acked = recoveries = swept = 0
    for seed in range(first, first + count):
        world = World(seed)
        try:
            world.run()
        except Violation as error:
            print(f"violated: {error}")
            return 1
        acked += len(world.acked)
        recoveries += len(world.recoveries)
        swept += world.swept
    print(f"clean: {acked} records acked, {recoveries} recoveries, {swept} ends swept")
    return 0


def _find_each(names: Sequence[str]) -> int:
    """Look for each bug in a fork: a planted bug stays, and the imports take longer than most searches."""
    failed = 0
    for name in names:
        pid = os.fork()
        if not pid:
            _leave(_find(name))
        failed |= os.waitpid(pid, 0)[1]
    return int(failed != 0)


def _leave(code: int) -> NoReturn:
    """End the process without clean-up."""
    sys.stdout.flush()
    os._exit(code)


def _find(name: str) -> int:
    bug = next(bug for bug in PLANTED if bug.name == name)
    if bug.edits:
        bug.plant()
    for seed in range(bug.seeds):
        world = World(
            seed, check_deletions=bug.check_deletions, list_first=bug.list_first, sweep_all_ages=bug.sweep_all_ages
        )
        try:
            world.run()
        except Violation as error:
            if re.search(bug.found_by, str(error)):
                print(f"{name}: found after {seed + 1} seeds: {error}")
                return 0
            print(f"{name}: another violation: {error}")
    print(f"{name}: not found in {bug.seeds} seeds")
    return 1


if __name__ == "__main__":
    _leave(main())
