"""What the demo shows: tables of delays, objects, calls and checks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from scripts.demo.table import DelayRow

HOURS = range(5, 24)
"""Hours of the day with scheduled departures (there is one flight at 1, and it was cancelled)."""
DELAY_TITLE = "Mean departure delay in minutes by carrier and scheduled hour (Spark)"
LONG = 10**12
"""Numbers from here on are shown by their last digits."""
SHADES = ((5, "green"), (15, "yellow"), (30, "dark_orange"), (10**6, "bold red"))


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be exactly so."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether it is."""
        return self.expected == self.found


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.2f} GiB"


def delay_table(rows: Sequence[DelayRow]) -> Table:
    """Mean delay in minutes, carriers down, hours of the day across."""
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
    """A delay in its colour."""
    if delay is None:
        return Text(" ·", style="dim")
    style = next(style for limit, style in SHADES if delay < limit)
    return Text(f" {delay:.0f}", style=style)


def check_table(checks: Sequence[Check]) -> Table:
    """All checks with what was expected and found."""
    table = Table(title="Checks", box=SIMPLE, title_justify="left")
    for name in ("", "what", "expected", "found"):
        table.add_column(name, justify="right" if name in {"expected", "found"} else "left")
    for check in checks:
        sign = Text("ok", style="green") if check.holds else Text("WRONG", style="bold red")
        table.add_row(sign, check.what, shown(check.expected), shown(check.found))
    return table


def shown(value: object) -> str:
    """A value of a check, short."""
    if isinstance(value, int):
        return f"{value:,}" if value < LONG else f"… {value % LONG:,}"
    if isinstance(value, Mapping):
        return f"{len(value)} counts"
    return str(value)


def moments_table(title: str, moments: Mapping[str, Mapping[str, str]]) -> Table:
    """Figures (rows) at several moments (columns)."""
    table = Table(title=title, box=SIMPLE, title_justify="left")
    table.add_column("")
    for moment in moments:
        table.add_column(moment, justify="right")
    figures = list(dict.fromkeys(name for column in moments.values() for name in column))
    for name in figures:
        table.add_row(name, *(column.get(name, "·") for column in moments.values()))
    return table
