"""Consumer groups, and their migration between the two protocols, against Apache Kafka."""

from collections.abc import Iterator

import pytest

from benchmarks.lab.processes import ApacheKafka
from tests.differential.answers import differences
from tests.differential.conftest import KAFKA_SETTINGS, quick_jvm
from tests.differential.peer import Peer
from tests.differential.script import ScriptFunction, run_script
from tests.differential.scripts.consumer_groups import SCRIPTS
from tests.support import tools

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

AT_ONCE = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def strict_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """An Apache Kafka whose groups begin and assign at once."""
    tools.java()
    tools.kafka_class_path()
    home = tmp_path_factory.mktemp("apache-kafka") / "home"
    with ApacheKafka(home, properties={**KAFKA_SETTINGS, **AT_ONCE}, jvm=quick_jvm()) as broker:
        yield Peer("Apache Kafka", "127.0.0.1", broker.port)


@pytest.mark.parametrize("function", SCRIPTS, ids=lambda function: function.__name__)
def test_answers_are_apache_kafkas(strict_kafka: Peer, ours: Peer, function: ScriptFunction) -> None:
    theirs, mine = run_script(function, strict_kafka), run_script(function, ours)
    assert [step.name for step in theirs] == [step.name for step in mine]
    found = [
        (one.name, *difference)
        for one, other in zip(theirs, mine, strict=True)
        for difference in differences(one.answer, other.answer)
    ]
    assert not found
