"""The table of what releases of Apache Kafka have, beside their own classes, and beside what their brokers answered."""

import warnings
from collections.abc import Mapping

import pytest

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.releases import FILE, read_lines
from anabranch.broker.node.settings.known import KAFKA_RELEASES
from anabranch.protocol.messages import join_group
from anabranch.spark.java import cache_folder
from scripts.kafka_releases import ask, fetch, table
from scripts.tools import KAFKA_VERSION
from tests.support.soak import LONG
from tests.support.tools import javac, kafka_class_path

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

NOT_KNOWN = {"4.4"}
"""Releases that are newer than this kafka-python."""
CHANGED_BY_PATCHES = {"4.0": {join_group.KEY: "2-9"}}
"""Answers of brokers before the newest patch: 4.0.1 has JoinGroup 0 and 1 again."""


def of_release(release: str) -> Mapping[str, str]:
    """Return what the table says of a release, by key or name."""
    return {
        line.name if line.key is None else str(line.key): line.values[release]
        for line in read_lines()
        if release in line.values
    }


@pytest.mark.slow
def test_the_newest_release_is_as_its_classes_say() -> None:
    javac()
    kafka_class_path()
    release = KAFKA_VERSION.rpartition(".")[0]
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    jars = [
        jar for name in ("kafka-clients", "kafka-server-common", "slf4j-api") for jar in folder.glob(f"{name}-*.jar")
    ]
    found = ask({release: jars})
    assert {what: value for what, (_, value) in found[release].items()} == of_release(release)


@LONG
def test_every_release_is_as_its_classes_say() -> None:
    javac()
    assert table(ask({release: fetch(release) for release in KAFKA_RELEASES})) == FILE.read_text()


@pytest.mark.parametrize("release", [release for release in KAFKA_RELEASES if release not in NOT_KNOWN])
def test_the_versions_are_those_that_brokers_have_answered(release: str) -> None:
    """Answers of real brokers, with ZooKeeper up to 3.9, are in kafka-python."""
    major, minor = map(int, release.split("."))
    answered = {key: f"{first}-{last}" for key, (first, last) in BROKER_API_VERSIONS[major, minor].items()}
    ours = of_release(release)
    both = answered.keys() & {int(key) for key in ours if key.isdecimal()} & HANDLERS.keys()
    differing = {key: answered[key] for key in both if ours[str(key)] != answered[key]}
    assert differing == CHANGED_BY_PATCHES.get(release, {})
