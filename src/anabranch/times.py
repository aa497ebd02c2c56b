"""Times as commands print them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def second_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second; `-` if there is none, or if no calendar has it."""
    second = _second(timestamp_ms // 1_000)
    return f"{second}Z" if second else "-"


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds; `-` if there is none, or if no calendar has it."""
    second = _second(timestamp_ms // 1_000)
    return f"{second}.{timestamp_ms % 1_000:03}Z" if second else "-"


@lru_cache(maxsize=1_024)  # records that are printed one after the other are often of one second
def _second(seconds: int) -> str:
    """Return a second of UTC; empty if it is before 1970, or if no calendar has it."""
    if seconds < 0:
        return ""
    try:
        return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return ""


def age_text(age_ms: int | None) -> str:
    """Return how long ago something was, for a table; `-` if it is not known."""
    if age_ms is None:
        return "-"
    seconds = age_ms / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
