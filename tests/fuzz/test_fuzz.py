"""Each fuzz target on its corpus and on mutated inputs: a few thousand, and for minutes in the soak."""

import os
from itertools import islice
from random import Random

import pytest

from tests.fuzz.engine import Failure, Inputs, attempt, mutate, run, shrink
from tests.fuzz.target import CORPUS, TARGETS, Choices, Target, corpus, edited, load

SOAK = os.environ.get("ANABRANCH_SOAK") == "1"
SOAK_S = 600
FIXED_SEED = 1


def explained(name: str, failure: Failure) -> str:
    return f"{name}: {failure.error!r}; input in hexadecimal, for a file in {CORPUS / name}: {failure.data.hex()}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.timeout(2 * SOAK_S if SOAK else 120)
def test_no_input_does_harm(name: str) -> None:
    target = load(name)
    try:
        if SOAK:
            _, failure = run(name, target, Random().randrange(1 << 32), seconds=SOAK_S, input_s=0)
        else:
            inputs = Inputs(name, target, FIXED_SEED)
            given = [*inputs.seeds, *islice(inputs, target.quick_inputs)]
            failure = next((found for data in given if (found := attempt(target, data)) is not None), None)
        if failure is not None:
            raise AssertionError(explained(name, failure)) from failure.error
    finally:
        target.close()


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert all(corpus(path.name) for path in CORPUS.iterdir())


def refuse_crash(data: bytes) -> None:
    if b"cr" in data and b"ash" in data:
        raise ValueError("planted")


def test_a_planted_bug_is_found_and_made_small() -> None:
    target = Target(refuse_crash, lambda: [b"what is c", b"this rash thing"], quick_inputs=0, words=[b"cr"])
    progress, failure = run("planted", target, FIXED_SEED, seconds=60, input_s=0)
    assert failure is not None
    assert progress.inputs > 2
    small = shrink(target, failure, input_s=0)
    assert len(small.data) == len(b"crash")
    assert small.kind == failure.kind


def test_the_same_seed_makes_the_same_inputs() -> None:
    target = load("batches")
    first, again = (list(islice(Inputs("batches", target, FIXED_SEED), 50)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 40


def test_a_script_edits_an_image() -> None:
    image = bytes(range(100))
    assert edited(image, Choices(b"")) == image
    assert edited(image, Choices(b"\0\0\0\x05\x01")) == image[:5] + b"\x07" + image[6:]
    assert edited(image, Choices(b"\x01\0\0\x62\x04abcd")) == image[:98] + b"ab"
    assert edited(image, Choices(b"\x04\0\0\x0a\0")) == image[:10]
    assert mutate(b"", Random(1), [b""], []) is not None
