"""Write broker/api/releases.txt: what each minor release of Apache Kafka names in ApiVersions, by its own jars.

    python -m scripts.kafka_releases

It fetches the jars with Maven, 150 MB, and asks the classes in them with `KafkaReleases.java`. Then
`python -m scripts.compatibility` writes the page on releases.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from anabranch.broker.api.releases import FILE, NONE
from anabranch.broker.node.settings.known import KAFKA_RELEASES
from anabranch.spark.fetch import fetch_jars
from anabranch.spark.jars import MavenCoordinate
from anabranch.spark.java import find_java_home
from scripts.tools import CACHE

JARS: Final = CACHE / "kafka-releases"
NEWEST_PATCH: Final = {
    release: f"{release}.{patch}"
    for release, patch in zip(
        KAFKA_RELEASES, (1, 1, 2, 1, 1, 1, 3, 2, 2, 2, 2, 3, 2, 1, 2, 2, 2, 1, 1, 1, 1, 0, 1, 0), strict=True
    )
}
SERVER_COMMON_SINCE: Final = "3.3"
"""First release whose features are read."""
SLF4J: Final = MavenCoordinate("org.slf4j", "slf4j-api", "1.7.36")
HEADING: Final = """\
# Versions that brokers of Apache Kafka name in ApiVersions, and levels of features in their new clusters.
# Written by `python -m scripts.kafka_releases`; `releases.py` explains it.
"""
QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
Released = Mapping[str, tuple[str, str]]
"""By key of an API or name of a feature: the first two words of its line, and its versions or level."""


def fetch(release: str) -> Sequence[Path]:
    """Fetch the jars of a release, unless they are there, and return them. Raises FetchError."""
    version = NEWEST_PATCH[release]
    wanted = [MavenCoordinate("org.apache.kafka", "kafka-clients", version), SLF4J]
    if KAFKA_RELEASES.index(release) >= KAFKA_RELEASES.index(SERVER_COMMON_SINCE):
        wanted.append(MavenCoordinate("org.apache.kafka", "kafka-server-common", version))
    return fetch_jars(wanted, JARS)


def ask(jars: Mapping[str, Sequence[Path]]) -> Mapping[str, Released]:
    """Return what brokers of releases answer, given their jars. Needs a JDK."""
    java, program = find_java_home() / "bin" / "java", Path(__file__).with_name("KafkaReleases.java")
    arguments = [f"{release}={':'.join(map(str, paths))}" for release, paths in jars.items()]
    done = subprocess.run([java, *QUICK_JVM, program, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, tuple[str, str]]] = {release: {} for release in jars}
    for line in done.stdout.splitlines():
        release, key, name, value = line.split()
        found[release][key if key.isdecimal() else name] = f"{key} {name}", value
    return found


def table(found: Mapping[str, Released]) -> str:
    """Return the text of the table. An API has the name of the newest release that has it."""
    heads = {what: head for released in found.values() for what, (head, _) in released.items()}
    lines = []
    for what, head in heads.items():
        values = {release: released[what][1] for release, released in found.items() if what in released}
        lines.append(" ".join([head, *(f"{release}:{value}" for release, value in changes(values))]))
    return HEADING + "\n".join(sorted(lines, key=_by_key)) + "\n"


def changes(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each change of a value over the releases, with the release of it. Releases without a value have `NONE`."""
    before = NONE
    for release in KAFKA_RELEASES:
        value = values.get(release, NONE)
        if value != before:
            yield release, value
        before = value


def _by_key(line: str) -> tuple[bool, int, str]:
    """Order APIs by their keys, before features."""
    key = line.split(maxsplit=1)[0]
    return (False, int(key), "") if key.isdecimal() else (True, 0, line)


if __name__ == "__main__":
    FILE.write_text(table(ask({release: fetch(release) for release in KAFKA_RELEASES})))
    print(f"written: {FILE}")
