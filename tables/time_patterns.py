"""Patterns of dates and times, in the notation of `strftime`, read strictly: what matches has one meaning only.

Two digits are two digits; `%-d`, `%-m` and the like take one or two. Names of months are English, in any case.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa

from anabranch.tables.json_values import in_zone
from anabranch.tables.types import LOCAL_TIMESTAMP

MONTHS: Final = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
                 "november", "december")  # fmt: skip
_SHORT: Final = tuple(name[:3] for name in MONTHS)
_TWO: Final = {"m": "month", "d": "day", "H": "hour", "I": "hour12", "M": "minute", "S": "second"}
_DIRECTIVES: Final[Mapping[str, tuple[str, str]]] = {
    "Y": ("year", "[0-9]{4}"),
    "f": ("fraction", "[0-9]{1,9}"),
    "z": ("zone", "Z|z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9]"),
    "p": ("half", "(?i:am|pm)"),
    "b": ("month_short", f"(?i:{'|'.join(_SHORT)})"),
    "B": ("month_name", f"(?i:{'|'.join(MONTHS)})"),
    **{letter: (name, "[0-9]{2}") for letter, name in _TWO.items()},
    **{f"-{letter}": (name, "[0-9]{1,2}") for letter, name in _TWO.items()},
}
_PARTS: Final = re.compile(r"%(-?.)|([^%]+)", re.DOTALL)
_KNOWN: Final = "%Y, %m, %d, %b, %B, %H, %I with %p, %M, %S, %f, %z, %%, and %-m, %-d, %-H, %-I, %-M, %-S"


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern. `read` raises ValueError for what does not match it, or is no time."""

    text: str
    expression: re.Pattern[str]

    def read(self, text: str, kind: pa.DataType, zone: str) -> Any:
        """Return a date, or a time of a type. `zone` is that of times without one. Raises ValueError, OverflowError."""
        match = self.expression.fullmatch(text)
        if match is None:
            raise ValueError(text)
        found = match.groupdict()
        day = date(int(found["year"]), _month(found), int(found["day"]))
        if pa.types.is_date32(kind):
            return day
        fraction = (found.get("fraction") or "").ljust(9, "0")
        if fraction[6:].strip("0"):
            raise ValueError(text)
        minute, second = (int(found.get(name) or 0) for name in ("minute", "second"))
        local = datetime(day.year, day.month, day.day, _hour(found), minute, second, int(fraction[:6]))  # noqa: DTZ001
        if kind == LOCAL_TIMESTAMP:
            return local
        if (offset := found.get("zone")) is not None:
            return local.replace(tzinfo=_offset(offset)).astimezone(UTC)
        moment: datetime = in_zone(pa.scalar(local, LOCAL_TIMESTAMP), zone).as_py()
        return moment.astimezone(UTC)


def parse_pattern(text: str, kind: pa.DataType) -> TimePattern:
    """Return the pattern of a text, for columns of a type. Raises ValueError with the reason for one that guesses."""
    expression, names = "", []
    for found in _PARTS.finditer(text):
        directive, literal = found.groups()
        if literal is not None or directive == "%":
            expression += re.escape(literal or "%")
            continue
        if directive not in _DIRECTIVES:
            raise ValueError(f"%{directive} is not read; there are {_KNOWN}")
        name, digits = _DIRECTIVES[directive]
        if name in names:
            raise ValueError(f"%{directive} repeats what is there before")
        names.append(name)
        expression += f"(?P<{name}>{digits})"
    if text.endswith("%") and not text.endswith("%%"):
        raise ValueError("it ends with a single %")
    _check(set(names), kind)
    return TimePattern(text, re.compile(expression))


def _check(names: set[str], kind: pa.DataType) -> None:
    months = names & {"month", "month_short", "month_name"}
    if not {"year", "day"} <= names or len(months) != 1:
        raise ValueError("a year (%Y), one month (%m, %b or %B) and a day (%d) are needed")
    of_day = names - {"year", "day", *months}
    if pa.types.is_date32(kind):
        if of_day:
            raise ValueError("a date has no time of day; make the column a timestamp")
        return
    if ("hour" in names) == ("hour12" in names) or ("hour12" in names) != ("half" in names):
        raise ValueError("a time needs an hour: %H, or %I with %p; make the column a date if there is none")
    if ("second" in names and "minute" not in names) or ("fraction" in names and "second" not in names):
        raise ValueError("%S needs %M, and %f needs %S")
    if "zone" in names and kind == LOCAL_TIMESTAMP:
        raise ValueError("a timestamp_ntz has no zone (%z); make the column a timestamp")


def _month(found: Mapping[str, Any]) -> int:
    if (name := found.get("month_name")) is not None:
        return MONTHS.index(name.lower()) + 1
    if (name := found.get("month_short")) is not None:
        return _SHORT.index(name.lower()) + 1
    return int(found["month"])


def _hour(found: Mapping[str, Any]) -> int:
    if (hour := found.get("hour")) is not None:
        return int(hour)
    hour12 = int(found["hour12"])
    if not 1 <= hour12 <= 12:
        raise ValueError(hour12)
    return hour12 % 12 + (12 if found["half"].lower() == "pm" else 0)


def _offset(text: str) -> timezone:
    if text in {"Z", "z"}:
        return UTC
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))
