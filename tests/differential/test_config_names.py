"""Compare the configs of groups and brokers that a node defines with those of Apache Kafka's code.

Each config that a node does not have, and each other default, stands below with its reason.
"""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from anabranch.broker.kafka.configs.broker_table import BROKER_CONFIGS, DYNAMIC
from anabranch.broker.kafka.configs.definitions import ConfigDef
from anabranch.broker.kafka.configs.group import GROUP_CONFIGS
from tests.support import tools

pytestmark = pytest.mark.interop
PROGRAM = Path(__file__).with_name("ConfigNames.java")
COORDINATED = ("errors.*", "group.*", "offsets.*", "share.*")
"""Broker configs of groups, all of which are compared. Of others only those are that change while brokers run."""
SERVED_AS_FIXED = "A node describes it with a fixed value."
NOT_SERVED: Mapping[str, str] = {
    "config.providers": "Settings name files and variables of the environment.",
    "cordoned.log.dirs": "A node has one log directory.",
    "*.compression.codec": "Logs of coordinators are not compressed.",
    "*.append.linger.ms": "A coordinator writes when the log is idle.",
    "*.load.buffer.size": "A load reads blocks of the object store.",
    "*.min.isr": "A partition has one replica.",
    "*.replication.factor": "A partition has one replica.",
    "*.segment.bytes": "Data is kept in objects, not in segment files.",
    "*.threads": "A node has one event loop.",
    "*.class": "A node has no plug-ins.",
    "*.class.name": "A node has no plug-ins.",
    "follower.fetch.last.tiered.offset.enable": "There are no followers.",
    "group.*.assignors": SERVED_AS_FIXED,
    "group.consumer.regex.refresh.interval.ms": "Patterns are matched again when topics change.",
    "group.coordinator.rebalance.protocols": "UpdateFeatures says which protocols are served.",
    "group.streams.*.warmup.replicas": "Tasks do not warm up, as in Apache Kafka 4.4.",
    "listener*": "Listeners are settings of a node's start.",
    "max.connection.creation.rate": "Rates of connections are quotas of addresses.",
    "max.connections.per.ip.overrides": "One limit is for all addresses.",
    "metric.reporters": "Metrics are read from the admin port.",
    "offsets.commit.timeout.ms": "A commit waits for the log as Produce does.",
    "offsets.retention.minutes": SERVED_AS_FIXED,
    "principal.builder.class": "A node has no plug-ins.",
    "remote.*": "No tiered storage (KIP-405).",
    "sasl.*": "Security is a matter of settings and files, which are read again when they change.",
    "share.coordinator.*.interval.ms": "The log is rewritten when it has grown.",
    "share.coordinator.write.timeout.ms": "A write waits for the log as Produce does.",
    "share.fetch.purgatory.purge.interval.requests": "Nothing has to be purged.",
    "ssl.*": "Security is a matter of settings and files, which are read again when they change.",
}
OTHER_DEFAULTS = {
    "log.flush.interval.ms": "Apache Kafka writes the largest number as none.",
    "log.retention.ms": "Apache Kafka writes log.retention.hours as none.",
    "log.roll.jitter.ms": "Apache Kafka writes log.roll.jitter.hours as none.",
    "log.roll.ms": "Apache Kafka writes log.roll.hours as none.",
    "streams.assignor.name": "Apache Kafka writes the first one as none.",
}
FOR_THE_START = "It is a setting of a node's start, which groups may override."
OTHER_TIMES = {
    "auto.create.topics.enable": "It can be changed while nodes run.",
    "group.consumer.assignment.interval.ms": FOR_THE_START,
    "group.share.assignment.interval.ms": FOR_THE_START,
    "group.streams.assignment.interval.ms": FOR_THE_START,
}


class Row(NamedTuple):
    """A config as Apache Kafka defines it."""

    type: str
    default: str
    is_dynamic: bool
    is_internal: bool


@pytest.fixture(scope="module")
def defined() -> Mapping[str, Mapping[str, Row]]:
    """Apache Kafka's configs by name, of groups and brokers."""
    tools.javac()  # skips without a compiler, which `java` runs for a source file
    command: list[str | Path] = [tools.java(), "-cp", tools.kafka_class_path(), PROGRAM]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, dict[str, Row]] = {"group": {}, "broker": {}}
    for line in printed.splitlines():
        resource, name, kind, default, is_dynamic, is_internal = line.split("\t")
        found[resource][name] = Row(kind, default, is_dynamic == "true", is_internal == "true")
    return found


def ours(row: ConfigDef, *, is_dynamic: bool) -> Row:
    """Return a config of a node in the same form."""
    return Row(row.type.name, row.default, is_dynamic, row.is_internal)


def matches(name: str, patterns: Iterable[str]) -> Sequence[str]:
    return [pattern for pattern in patterns if fnmatchcase(name, pattern)]


def test_groups_have_the_configs_of_apache_kafka(defined: Mapping[str, Mapping[str, Row]]) -> None:
    mine = {name: ours(row, is_dynamic=True) for name, row in GROUP_CONFIGS.items()}
    kafka = dict(defined["group"])
    for name in OTHER_DEFAULTS.keys() & kafka.keys():
        kafka[name] = kafka[name]._replace(default=mine[name].default)
    assert mine == kafka


def test_brokers_have_the_configs_of_apache_kafka_or_a_reason(defined: Mapping[str, Mapping[str, Row]]) -> None:
    kafka = {name: row for name, row in defined["broker"].items() if row.is_dynamic or matches(name, COORDINATED)}
    missing = {name for name in kafka if name not in BROKER_CONFIGS}
    assert not [name for name in missing if not matches(name, NOT_SERVED)]
    unused = set(NOT_SERVED) - {pattern for name in missing for pattern in matches(name, NOT_SERVED)}
    assert not unused, "remove reasons that no config needs any more"


def test_brokers_define_configs_as_apache_kafka_does(defined: Mapping[str, Mapping[str, Row]]) -> None:
    kafka, mine = dict(defined["broker"]), {}
    for name, row in BROKER_CONFIGS.items():
        if name in kafka:
            mine[name] = ours(row, is_dynamic=name in DYNAMIC)
            if name in OTHER_DEFAULTS:
                kafka[name] = kafka[name]._replace(default=row.default)
            if name in OTHER_TIMES:
                kafka[name] = kafka[name]._replace(is_dynamic=name in DYNAMIC)
    different = {name: (row, kafka[name]) for name, row in mine.items() if row != kafka[name]}
    assert not different
