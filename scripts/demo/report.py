"""Output of the demo: tables of delays, objects, calls and checks."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from scripts.demo.table import Departures

HOURS = range(5, 24)
"""Hours of the day with scheduled departures. There is one flight at 1, which was cancelled."""
DELAY_TITLE = "Mean departure delay in minutes, by carrier and scheduled hour"
LONG = 10**12
"""Numbers from this on are shown by their last digits."""
KINDS = {"SSO": "stream set objects", "SO": "stream objects"}
CALLS = {
    "PUT calls": "put",
    "multipart calls": "multipart",
    "part calls": "part",
    "GET calls": "get",
    "HEAD calls": "head",
    "LIST calls": "list",
    "DELETE calls": "delete",
}
"""Calls to the object store, counted by the node since its start."""
SHADES = ((5, "green"), (15, "yellow"), (30, "dark_orange"), (10**6, "bold red"))


@dataclass(frozen=True, slots=True)
class Check:
    """Two values that must be equal."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """True if they are."""
        return self.expected == self.found


def size(count: float) -> str:
    """Return a number of bytes in readable form."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.2f} GiB"


def delay_table(rows: Sequence[Departures]) -> Table:
    """Return mean delays in minutes, with a row per carrier and a column per hour of the day."""
    delays: dict[str, dict[int, float]] = defaultdict(dict)
    flights: dict[str, int] = defaultdict(int)
    for row in rows:
        flights[row.carrier] += row.flights
        if row.delay_mean is not None:
            delays[row.carrier][row.hour] = row.delay_mean
    table = Table(title=DELAY_TITLE, box=None, padding=(0, 0), title_justify="left")
    table.add_column("", min_width=2)
    table.add_column(" flights", justify="right", min_width=8)
    for hour in HOURS:
        table.add_column(f" {hour:02}", justify="right", min_width=3)
    for carrier in sorted(flights, key=lambda name: -flights[name]):
        cells = [shaded(delays[carrier].get(hour)) for hour in HOURS]
        table.add_row(carrier, f" {flights[carrier]:,}", *cells)
    return table


def shaded(delay: float | None) -> Text:
    """Return a delay in its colour."""
    if delay is None:
        return Text(" ·", style="dim")
    style = next(style for limit, style in SHADES if delay < limit)
    return Text(f" {delay:.0f}", style=style)


def check_table(checks: Sequence[Check]) -> Table:
    """Return all checks with expected and found values."""
    table = Table(title="Checks", box=SIMPLE, title_justify="left")
    for name in ("", "what", "expected", "found"):
        table.add_column(name, justify="right" if name in {"expected", "found"} else "left")
    for check in checks:
        sign = Text("ok", style="green") if check.holds else Text("WRONG", style="bold red")
        table.add_row(sign, check.what, shown(check.expected), shown(check.found))
    return table


def shown(value: object) -> str:
    """Return a short form of a check's value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value < LONG else f"… {value % LONG:,}"
    if isinstance(value, Mapping):
        return f"{len(value)} counts"
    if isinstance(value, list):
        return f"{len(value)} rows"
    return str(value)


def storage_figures(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage figures in a node's status, ready to be shown."""
    objects = Counter({name: found["count"] for name, found in status["objects"].items()})
    sizes = Counter({name: found["bytes"] for name, found in status["objects"].items()})
    figures = {}
    for kind, label in KINDS.items():
        name = f"{kind} committed"
        figures[f"{label} ({kind})"] = f"{objects[name]:,}: {size(sizes[name])}" if objects[name] else "0"
    replaced = [f"{kind} destroyed" for kind in KINDS]
    count, total = sum(objects[name] for name in replaced), sum(sizes[name] for name in replaced)
    figures["replaced, kept for readers"] = f"{count:,}: {size(total)}" if count else "0"
    figures["WAL in use"] = size(status["wal"]["used_bytes"])
    figures["log cache"] = size(status["log_cache_bytes"])
    figures["block cache"] = size(status["block_cache_bytes"])
    figures |= {label: f"{status['store_calls'][kind]:,}" for label, kind in CALLS.items()}
    figures["bytes written"] = size(status["store_calls"]["bytes_written"])
    figures["bytes read"] = size(status["store_calls"]["bytes_read"])
    return figures


def request_line(requests: Mapping[str, Mapping[str, float]]) -> str:
    """Return the Kafka requests by kind, most frequent first, with the node's median response time."""
    ordered = sorted(requests.items(), key=lambda item: -item[1]["count"])
    return ", ".join(f"{name} {found['count']:,} ({found['p50_us'] / 1000:.1f} ms)" for name, found in ordered)


def moments_table(title: str, moments: Mapping[str, Mapping[str, str]]) -> Table:
    """Return the same figures (rows) at several moments (columns), without those that stay zero."""
    table = Table(title=title, box=SIMPLE, title_justify="left")
    table.add_column("")
    for moment in moments:
        table.add_column(moment, justify="right")
    for name in next(iter(moments.values()), {}):
        values = [column[name] for column in moments.values()]
        if any(value != "0" for value in values):
            table.add_row(name, *values)
    return table
