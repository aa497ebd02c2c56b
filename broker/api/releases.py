"""The APIs, versions and features of a node that presents itself as an older release (`compatibility.kafka`).

`releases.txt` has a line for each API, with the versions that brokers of the releases name in ApiVersions, and one for
each feature, with its level in a new cluster. `python -m scripts.kafka_releases` wrote it from the releases' jars. Each
value holds from the release before it on, until the next one:

    1 Fetch 2.0:0-8 2.1:0-10 2.3:0-11
    4 LeaderAndIsr 2.0:0-1 2.2:0-2 3.3:-
    feature metadata.version 3.3:7 3.4:8

Up to 3.2 they are those of brokers with ZooKeeper, from 3.3 on, the first release with KRaft for production (KIP-833),
those of brokers with KRaft. A node serves what both have, the release and itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from anabranch.broker.api.declaration import Handler, Handlers
from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.kafka.configs.features import NEWEST
from anabranch.broker.node.settings.known import KAFKA_RELEASES, KafkaRelease

FILE: Final = Path(__file__).with_name("releases.txt")
NONE: Final = "-"
"""Value of an API that is gone."""


class Line(NamedTuple):
    """One API or feature over the releases."""

    key: int | None
    """Key of the API; None: it is a feature."""
    name: str
    values: Mapping[str, str]
    """Value of each release that has it."""


@cache
def read_lines() -> Sequence[Line]:
    """Return the lines of the table."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [_parsed(line.split()) for line in lines if not line.startswith("#")]


def _parsed(words: Sequence[str]) -> Line:
    key, name, *steps = words
    since = dict(step.split(":") for step in steps)
    values: dict[str, str] = {}
    value = NONE
    for release in KAFKA_RELEASES:
        value = since.get(release, value)
        if value != NONE:
            values[release] = value
    return Line(int(key) if key.isdecimal() else None, name, values)


@cache
def served_handlers(release: KafkaRelease | None) -> Handlers:
    """Return the handlers of a node that presents itself as a release; None: all of them, in all their versions."""
    if release is None:
        return HANDLERS
    released = {line.key: line.values[release] for line in read_lines() if release in line.values}
    capped = {key: _capped(handler, released[key]) for key, handler in HANDLERS.items() if key in released}
    return {key: handler for key, handler in capped.items() if handler is not None}


def _capped(handler: Handler, released: str) -> Handler | None:
    """Return a handler in the versions that it and the release have; None: there are none."""
    first, last = map(int, released.split("-"))
    first, last = max(first, handler.min_version), min(last, handler.max_version)
    return replace(handler, min_version=first, max_version=last) if first <= last else None


def feature_levels(release: KafkaRelease | None) -> Mapping[str, int]:
    """Return the highest levels of the features of such a node."""
    if release is None:
        return NEWEST
    released = {line.name: int(line.values.get(release, 0)) for line in read_lines() if line.key is None}
    levels = {name: min(newest, released.get(name, 0)) for name, newest in NEWEST.items()}
    return {name: level for name, level in levels.items() if level}
