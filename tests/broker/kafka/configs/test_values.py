"""Values of configs are parsed and shown as Apache Kafka does, in all spellings."""

from collections.abc import Iterator

import pytest

from anabranch.broker.kafka.configs.definitions import default_value
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.node.settings.model import Settings
from anabranch.testing import Broker
from tests.differential.peer import Peer
from tests.interop.record_config_values import shown_by
from tests.support.config_spellings import BROKER, SHOWN


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Broker() as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        yield Peer("anabranch", host, int(port))


@pytest.mark.slow
def test_values_are_parsed_and_shown_as_apache_kafka_does(peer: Peer) -> None:
    different = {
        (config, spelling, shown, SHOWN[config][spelling])
        for config, spellings in shown_by(peer).items()
        for spelling, shown in spellings.items()
        if (shown is None) != (SHOWN[config][spelling] is None)
        # Apache Kafka shows the values of brokers as they were given.
        or (not config.startswith(f"{BROKER} ") and shown != SHOWN[config][spelling])
    }
    assert not different


def test_what_topics_do_without_configs_is_what_kafka_does() -> None:
    differ = {name for name, row in TOPIC_CONFIGS.items() if default_value(row, Settings()) != row.default}
    assert not differ, "a client is told that the node's operator has changed these"
