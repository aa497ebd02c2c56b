"""Shared parts of the benchmarks: options, results with goals, a table, and the JSON file.

A benchmark's `main` calls `parse`, adds results to a `Report`, and ends with `report.finish(options)`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

CONSOLE = Console() if sys.stdout.isatty() else Console(width=120)


@dataclass(frozen=True)
class Result:
    """One figure. `goal` is text such as `>= 2` or `<= 0.5`; None: the figure is for information."""

    name: str
    value: float
    unit: str
    goal: str | None = None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        relation, bound = self.goal.split()
        return self.value >= float(bound) if relation == ">=" else self.value <= float(bound)


@dataclass
class Report:
    """The results of one benchmark."""

    title: str
    results: list[Result] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, goal: str | None = None) -> float:
        """Add a figure, and return it. Standard error shows it at once: a long run that is ended loses no more."""
        assert goal is None or goal.split()[0] in {">=", "<="}
        print(f"{name}: {number(value)} {unit}".rstrip(), file=sys.stderr, flush=True)
        self.results.append(Result(name, value, unit, goal))
        return value

    def finish(self, options: argparse.Namespace, *, show: bool = True) -> None:
        """Print the table of all results, and write them to the file of `--json`."""
        if show:
            self.print()
        if options.json is not None:
            rows = [{**vars(result), "met": result.met} for result in self.results]
            options.json.write_text(json.dumps(rows, indent=1) + "\n")

    def print(self, results: Sequence[Result] | None = None) -> None:
        """Print results as a table."""
        table = Table(title=self.title, title_justify="left", header_style="bold")
        table.add_column("figure")
        table.add_column("value", justify="right")
        for name in ("unit", "goal", "met"):
            table.add_column(name)
        marks = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}
        for result in self.results if results is None else results:
            table.add_row(result.name, number(result.value), result.unit, result.goal or "", marks[result.met])
        CONSOLE.print(table)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="about a minute instead of the full run")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    return made


def number(value: float) -> str:
    """Format a figure with at least three significant digits."""
    if value != value:  # NaN
        return "?"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size else "0"


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return median(values)
