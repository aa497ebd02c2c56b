"""The engine: makes inputs from seeds, runs a target over them, and shrinks the first one that fails."""

import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any, Final

from tests.fuzz.target import NUMBERS, Target, corpus

INPUT_BYTES_MAX: Final = 64 << 10
SHRINK_S: Final = 60
"""Longest time that a failing input is made smaller."""
PROGRESS_S: Final = 5


class Hang(AssertionError):
    """An input took longer than it may."""


@dataclass(frozen=True)
class Failure:
    """An input that failed, and its exception."""

    data: bytes
    error: BaseException

    @property
    def kind(self) -> tuple[type, tuple[str, int | None]]:
        """Identity of the failure: type of the exception, and the line that raised it."""
        last = traceback.extract_tb(self.error.__traceback__)[-1]
        return type(self.error), (last.filename, last.lineno)


class Inputs:
    """Endless inputs for a target, the same for the same seed."""

    def __init__(self, name: str, target: Target, seed: int) -> None:
        self._target = target
        self._random = Random(seed)
        self.seeds = [*corpus(name).values(), *target.seeds()]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.next()

    def next(self) -> bytes:
        """Return the next input."""
        random, fresh = self._random, self._target.fresh
        if fresh is None or random.random() < 0.5:
            data = random.choice(self.seeds)
        else:
            data = fresh(random)
            if random.random() < 0.5:
                return data
        return mutate(data, random, self.seeds, self._target.words)


def mutate(data: bytes, random: Random, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return a variant of `data` with one to a few changes."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(9):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
            case 2:
                size = random.choice((1, 2, 4, 8))
                number = random.choice(NUMBERS) % (1 << 8 * size)
                changed[at : at + size] = number.to_bytes(size, random.choice(("little", "big")))
            case 3:
                del changed[at : at + random.choice((1, 2, 4, 16, 200))]
            case 4:
                changed[at:at] = random.randbytes(random.choice((1, 2, 4, 16)))
            case 5:
                start = random.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + random.choice((1, 4, 16, 64, 500))]
            case 6:
                other = random.choice(others)
                changed[at:] = other[random.randrange(len(other) + 1) :]
            case 7 if words:
                word = random.choice(words)
                changed[at : at + random.choice((0, len(word)))] = word
            case _:
                del changed[at:]
    return bytes(changed[:INPUT_BYTES_MAX])


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang in the block after `seconds`. Only for the main thread of a process that uses no other alarm."""

    def expired(_signal: int, _frame: Any) -> None:
        raise Hang(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(target: Target, data: bytes, input_s: float = 0) -> Failure | None:
    """Run the target on one input, for at most `input_s` seconds (0: without a limit)."""
    try:
        if input_s:
            with time_limit(input_s):
                target.check(data)
        else:
            target.check(data)
    except Exception as error:  # noqa: BLE001 - whatever an input causes
        return Failure(data, error)
    return None


@dataclass
class Progress:
    """Progress of a run."""

    inputs: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.inputs} inputs in {self.seconds:.0f} s, {self.inputs / max(self.seconds, 1e-9):.0f} per second"


def run(name: str, target: Target, seed: int, *, seconds: float, input_s: float) -> tuple[Progress, Failure | None]:
    """Run the corpus, then mutated inputs for `seconds`; stop at the first failure. Prints progress."""
    inputs, progress, began = Inputs(name, target, seed), Progress(), monotonic()
    told = began
    given = iter(inputs.seeds)
    while progress.seconds < seconds:
        data = next(given, None)
        failure = attempt(target, inputs.next() if data is None else data, input_s)
        progress.inputs += 1
        now = monotonic()
        progress.seconds = now - began
        if failure is not None:
            return progress, failure
        if now - told >= PROGRESS_S:
            told = now
            print(f"{name}: {progress}", flush=True)
    return progress, None


def shrink(target: Target, failure: Failure, input_s: float) -> Failure:
    """Return a smaller input that fails in the same way: without pieces that do not matter, zeros for other bytes."""
    best, deadline = failure, monotonic() + SHRINK_S

    def better(data: bytes) -> bool:
        nonlocal best
        found = attempt(target, data, input_s)
        if found is None or found.kind != failure.kind:
            return False
        best = found
        return True

    size = len(best.data) // 2
    while size and monotonic() < deadline:
        at = 0
        while at < len(best.data) and monotonic() < deadline:
            if not better(best.data[:at] + best.data[at + size :]):
                at += size
        size //= 2
    for at, byte in enumerate(best.data):
        if monotonic() > deadline:
            break
        if byte:
            better(best.data[:at] + b"\0" + best.data[at + 1 :])
    return best
