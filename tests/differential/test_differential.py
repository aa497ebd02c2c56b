"""Every script against both brokers."""

from collections import Counter
from collections.abc import Iterator

import pytest

from broker.handlers import HANDLERS
from tests.differential.answers import Tree, differences
from tests.differential.conftest import Runner, has_compiler
from tests.differential.known_differences import KNOWN
from tests.differential.script import ScriptFunction
from tests.differential.scripts import ALL_SCRIPTS, telemetry

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

STEPS_MIN = 1500


def found_in(runner: Runner, function: ScriptFunction) -> Iterator[tuple[str, str, Tree, Tree]]:
    kafka, ours = runner.run(function)
    assert [step.name for step in kafka] == [step.name for step in ours], "the script took different ways"
    for one, other in zip(kafka, ours, strict=True):
        for path, theirs, mine in differences(one.answer, other.answer):
            yield one.name, path, theirs, mine


def _need_compiler(function: ScriptFunction) -> None:
    if function is telemetry.telemetry and not has_compiler():
        pytest.skip("no javac: Apache Kafka takes metrics of clients only with a plug-in, which must be compiled")


def short(value: Tree) -> str:
    text = repr(value)
    return text if len(text) <= 1000 else f"{text[:1000]}..."


@pytest.mark.parametrize("function", ALL_SCRIPTS, ids=lambda function: function.__name__)
def test_answers_as_apache_kafka_does(runner: Runner, function: ScriptFunction) -> None:
    _need_compiler(function)
    known = KNOWN.get(function.__name__, ())
    used = set()
    unexpected: dict[str, list[str]] = {}
    for step, path, theirs, mine in found_in(runner, function):
        covering = next((entry for entry in known if entry.covers(step, path, theirs, mine)), None)
        if covering is not None:
            used.add(known.index(covering))
        else:
            name, _, version = step.rpartition(" v")
            what = f"{path or 'the whole'}\n    Apache Kafka: {short(theirs)}\n    ours:         {short(mine)}"
            unexpected.setdefault(f"{name or step}: {what}", []).append(version)
    found = [f"{what}\n    versions:     {', '.join(versions)}" for what, versions in unexpected.items()]
    if found:
        pytest.fail(f"{len(found)} differences:\n" + "\n".join(found), pytrace=False)
    gone = [f"{entry.step}: {entry.path}" for at, entry in enumerate(known) if at not in used and not entry.is_optional]
    assert not gone, f"listed as known, but these differences no longer occur: {gone}"


def test_scripts_have_names_of_their_own_and_known_differences_belong_to_one() -> None:
    names = Counter(function.__name__ for function in ALL_SCRIPTS)
    assert max(names.values()) == 1
    assert set(KNOWN) <= set(names)


def test_every_api_that_is_advertised_is_compared(runner: Runner) -> None:
    _need_compiler(telemetry.telemetry)
    steps = [step for function in ALL_SCRIPTS for step in runner.run(function)[1]]
    compared = {(step.api_key, step.version) for step in steps}
    served = {
        (key, version)
        for key, handler in HANDLERS.items()
        for version in range(handler.min_version, handler.max_version + 1)
    }
    missing = sorted((HANDLERS[key].api.name, version) for key, version in served - compared)
    assert not missing, "each API in each version"
    assert len(steps) >= STEPS_MIN
