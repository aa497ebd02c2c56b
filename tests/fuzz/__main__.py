"""Fuzz one target, or all in turn:

    python -m tests.fuzz --target batches --seconds 600
    python -m tests.fuzz --seconds 60                              # each target
    python -m tests.fuzz --target batches --input fuzz-batches     # one input again

Prints inputs per second. The first failing input is made smaller, written to a file, and printed with its exception
(exit code 1); a new file in `tests/fuzz/corpus/TARGET` makes it part of the tests. With `--guided`, inputs are chosen
by the coverage they reach, which needs the package atheris in the environment; found inputs are kept in `--corpus`.
"""

import argparse
import resource
import sys
import traceback
from pathlib import Path
from random import Random

from tests.fuzz.engine import Failure, attempt, mutate, run, shrink
from tests.fuzz.target import CORPUS, TARGETS, load

INPUT_S = 20
MEMORY_BYTES = 2 << 30


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the inputs of strangers and disks.")
    parser.add_argument("--target", choices=TARGETS, action="append", help="may be repeated; default: each in turn")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each target")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--input", type=Path, default=None, help="run this one input")
    parser.add_argument("--guided", action="store_true", help="choose inputs by coverage (needs atheris)")
    parser.add_argument("--corpus", type=Path, default=Path("fuzz-corpus"), help="folder for found inputs of --guided")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))  # more raises MemoryError: a failure
    names = arguments.target or list(TARGETS)
    if arguments.guided:
        return guided(names[0], arguments.seconds, arguments.corpus)
    seed = Random().randrange(1 << 32) if arguments.seed is None else arguments.seed
    failed = [name for name in names if not fuzz(name, arguments.seconds, seed, arguments.input)]
    return 1 if failed else 0


def fuzz(name: str, seconds: float, seed: int, given: Path | None) -> bool:
    """Fuzz one target; returns False if an input failed."""
    target = load(name)
    try:
        if given is not None:
            failure = attempt(target, given.read_bytes(), INPUT_S)
        else:
            progress, failure = run(name, target, seed, seconds=seconds, input_s=INPUT_S)
            print(f"{name}: {progress}, seed {seed}: {'ok' if failure is None else 'FAILED'}", flush=True)
            if failure is not None:
                failure = shrink(target, failure, INPUT_S)
                file = Path(f"fuzz-{name}")
                file.write_bytes(failure.data)
                print(f"{name}: the input is in {file}")
        if failure is not None:
            show(failure)
    finally:
        target.close()
    return failure is None


def show(failure: Failure) -> None:
    """Print an input that failed, and its exception."""
    traceback.print_exception(failure.error)
    print(f"input of {len(failure.data)} bytes: {failure.data[:200].hex()}")


def guided(name: str, seconds: float, folder: Path) -> int:
    """Fuzz one target with atheris, which ends the process."""
    import atheris  # not a dependency: it does not support every Python that the project does

    with atheris.instrument_imports(include=["anabranch"], enable_loader_override=False):
        target = load(name)
    random = Random(0)
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    seeds = [*target.seeds(), *(path.read_bytes() for path in (CORPUS / name).glob("*"))]
    for number, data in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(data)

    def change(data: bytes, size: int, chosen: int) -> bytes:
        random.seed(chosen)
        if target.fresh is not None and random.random() < 0.2:
            return target.fresh(random)[:size]
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, size))
        return mutate(data, random, seeds, target.words)[:size]

    options = [f"-max_total_time={int(seconds)}", f"-timeout={INPUT_S}", "-max_len=65536", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], str(folder), *options, "-print_final_stats=1"], target.check, custom_mutator=change)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
