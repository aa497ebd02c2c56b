"""Places in partitions as commands take them: the earliest, the latest, an offset, the last records, a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from anabranch.broker.operator.cli.durations import parse_duration
from anabranch.times import EPOCH

EARLIEST: Final = ("earliest", "beginning", "start")
LATEST: Final = ("latest", "end")
"""Spellings; help and documentation use the first, which is Kafka's."""
FORMS: Final = (
    "earliest, latest, an offset, -N (the last N records), a time (2026-11-25T08:00, with Z or +01:00; else local), "
    "or an age (`2h ago`)"
)
_AGO: Final = re.compile(r"\s*ago$", re.IGNORECASE)
_LAST: Final = re.compile(r"-(\d{1,18})")
_OFFSET: Final = re.compile(r"\d{1,18}")


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a partition. `value`: an offset, a number of records, or ms since the epoch."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    value: int = 0

    def is_after(self, other: "Point") -> bool:
        """Return whether this place is after another in every partition. False if that depends on the partition."""
        if self.kind != other.kind:
            return False
        return self.value < other.value if self.kind == "last" else self.value > other.value


class BadPoint(ValueError):
    """A text that names no place. The text of the error is the one line to show."""


def parse_point(text: str, now_ms: int) -> Point:
    """Parse a place. Raises BadPoint."""
    bare = text.strip()
    if bare.lower() in EARLIEST:
        return Point("earliest")
    if bare.lower() in LATEST:
        return Point("latest")
    if _OFFSET.fullmatch(bare):
        return Point("offset", int(bare))
    if found := _LAST.fullmatch(bare):
        return Point("last", int(found[1]))
    if (age_ms := parse_duration(_AGO.sub("", bare))) is not None:
        return Point("time", max(0, now_ms - age_ms))
    try:
        moment = datetime.fromisoformat(bare)
        return Point("time", (moment.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        raise BadPoint(f"expected {FORMS}; found {text!r}") from None
