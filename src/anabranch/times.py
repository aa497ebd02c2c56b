"""Times as commands print them."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def second_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second; `-` if there is none, or if no calendar has it."""
    head, dot, _ = time_text(timestamp_ms).partition(".")
    return f"{head}Z" if dot else head


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds; `-` if there is none, or if no calendar has it."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return "-"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03}Z"


def age_text(age_ms: int | None) -> str:
    """Return how long ago something was, for a table; `-` if it is not known."""
    if age_ms is None:
        return "-"
    seconds = age_ms / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
