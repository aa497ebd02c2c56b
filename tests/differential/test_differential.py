"""Every script against both brokers."""

from collections import Counter

import pytest

from anabranch.broker.api.handlers import HANDLERS
from tests.differential.comparison import compare
from tests.differential.conftest import Runner, has_compiler
from tests.differential.known_differences import KNOWN
from tests.differential.script import ScriptFunction
from tests.differential.scripts import ALL_SCRIPTS, telemetry

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

STEPS_MIN = 1500


def _need_compiler(function: ScriptFunction) -> None:
    if function is telemetry.telemetry and not has_compiler():
        pytest.skip("no javac: Apache Kafka takes metrics of clients only with a plug-in, which must be compiled")


@pytest.mark.parametrize("function", ALL_SCRIPTS, ids=lambda function: function.__name__)
def test_answers_as_apache_kafka_does(runner: Runner, function: ScriptFunction) -> None:
    _need_compiler(function)
    compare(*runner.run(function), KNOWN.get(function.__name__, ()))


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
