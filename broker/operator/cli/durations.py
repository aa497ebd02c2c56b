"""Durations as people write them: a whole number with a unit, such as `90s` or `7d`."""

import re
from typing import Final

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*([a-z]+)", re.IGNORECASE)


def parse_duration(text: str) -> int | None:
    """Return a duration in ms; None for a text that is none."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or found[2].lower() not in _UNITS_MS:
        return None
    return int(found[1]) * _UNITS_MS[found[2].lower()]
