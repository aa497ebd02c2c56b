"""Options of the direct source: those of Spark's Kafka source that make sense without a broker.

Pure: text in, values out. Each error names its option.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

EARLIEST: Final = -2
LATEST: Final = -1
COLUMNS: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Columns and their types, as in the Kafka source."""

Assignment = Mapping[str, Mapping[int, int]]
"""A number for each partition of each topic."""


class OptionError(ValueError):
    """An invalid option. The text names it."""


class DataLossError(RuntimeError):
    """Requested offsets no longer exist. `failOnDataLoss=false` reads what is left."""


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """Start or end of a read."""

    offset: int = LATEST
    """`EARLIEST` or `LATEST`, for partitions that are not in `offsets`."""
    offsets: Assignment | None = None
    timestamp_ms: int | None = None
    """Time instead of an offset: the first record at or after it."""
    timestamps_ms: Assignment | None = None
    or_latest: bool = False
    """True if a time after all records means the end; otherwise it is an error."""

    @property
    def moves(self) -> bool:
        """True if the bound can mean the current end, which moves."""
        if self.timestamp_ms is not None or self.timestamps_ms is not None:
            return self.or_latest
        named = [offset for each in (self.offsets or {}).values() for offset in each.values()]
        return LATEST in (self.offset, *named)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Parsed options of a read."""

    topics: Sequence[str]
    pattern: str | None
    assigned: Mapping[str, Sequence[int]] | None
    starting: OffsetBound
    ending: OffsetBound
    committed: bool
    """True if records of open and aborted transactions are left out."""
    columns: Sequence[str]
    tasks_min: int | None
    fail_on_data_loss: bool
    offsets_per_batch_max: int | None


def parse_options(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Parse options, by their names in any case. Raises OptionError."""
    given = {name.lower(): value for name, value in options.items()}
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) != 1:
        raise OptionError(f"give one of subscribe, subscribePattern and assign; found {', '.join(chosen) or 'none'}")
    assigned = _assigned(given["assign"]) if "assign" in given else None
    topics = [name.strip() for name in given.get("subscribe", "").split(",") if name.strip()]
    if chosen == ["subscribe"] and not topics:
        raise OptionError("subscribe: no topic is named")
    isolation = given.get("kafka.isolation.level", "read_uncommitted")
    if isolation not in {"read_committed", "read_uncommitted"}:
        raise OptionError(f"kafka.isolation.level: expected read_committed or read_uncommitted, found {isolation!r}")
    return ReadOptions(
        topics=list(assigned) if assigned is not None else topics,
        pattern=given.get("subscribepattern"),
        assigned=assigned,
        starting=_bound(given, "starting", LATEST if streaming else EARLIEST),
        ending=_bound(given, "ending", LATEST),
        committed=isolation == "read_committed",
        columns=_columns(given),
        tasks_min=_count(given, "minPartitions"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        offsets_per_batch_max=_count(given, "maxOffsetsPerTrigger"),
    )


def schema_of(columns: Sequence[str]) -> str:
    """Return the schema of the columns as DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)


def _columns(given: Mapping[str, str]) -> Sequence[str]:
    if "columns" not in given:
        headers = _flag(given, "includeHeaders", default=False)
        return [name for name in COLUMNS if name != "headers" or headers]
    by_lower = {name.lower(): name for name in COLUMNS}
    columns = [name.strip() for name in given["columns"].split(",") if name.strip()]
    unknown = [name for name in columns if name.lower() not in by_lower]
    if unknown or not columns:
        raise OptionError(f"columns: expected some of {', '.join(COLUMNS)}, found {', '.join(unknown) or 'none'}")
    return [by_lower[name.lower()] for name in columns]


def _bound(given: Mapping[str, str], side: Literal["starting", "ending"], default: int) -> OffsetBound:
    strategy = given.get(f"{side}offsetsbytimestampstrategy", "error").lower()
    if strategy not in {"error", "latest"}:
        raise OptionError(f"{side}OffsetsByTimestampStrategy: expected error or latest, found {strategy!r}")
    # A time after all records means the current end.
    or_latest = strategy == "latest" or side == "ending"
    if text := given.get(f"{side}timestamp"):
        return OffsetBound(timestamp_ms=_number(f"{side}Timestamp", text), or_latest=or_latest)
    if text := given.get(f"{side}offsetsbytimestamp"):
        return OffsetBound(timestamps_ms=_assignment(f"{side}OffsetsByTimestamp", text), or_latest=or_latest)
    text = given.get(f"{side}offsets")
    if text is None:
        return OffsetBound(default)
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if special == EARLIEST and side == "ending":
        raise OptionError("endingOffsets: expected latest or JSON, found 'earliest'")
    if special is not None:
        return OffsetBound(special)
    return OffsetBound(default, _assignment(f"{side}Offsets", text))


def _assignment(name: str, text: str) -> Assignment:
    try:
        found = json.loads(text)
        return {topic: {int(index): int(value) for index, value in each.items()} for topic, each in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'{name}: expected JSON as {{"topic": {{"0": 23}}}}, found {text!r}') from None


def _assigned(text: str) -> Mapping[str, Sequence[int]]:
    try:
        return {topic: [int(index) for index in indexes] for topic, indexes in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'assign: expected JSON as {{"topic": [0, 1]}}, found {text!r}') from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name}: expected a number, found {text!r}") from None


def _count(given: Mapping[str, str], name: str) -> int | None:
    if name.lower() not in given:
        return None
    value = _number(name, given[name.lower()])
    if value < 1:
        raise OptionError(f"{name}: expected 1 or more, found {value}")
    return value


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in {"true", "false"}:
        raise OptionError(f"{name}: expected true or false, found {text!r}")
    return text == "true"
