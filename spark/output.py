"""Results of commands: tables for people, JSON and YAML for programs, as the node's commands print them."""

import json
import math
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console

WIDE: Final = 4_000
"""Columns of what is not a terminal: a row is one line."""
output_option: Final = click.option(
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)


def emit(output: str, data: Any, show: Callable[[Console], None]) -> None:
    """Print data in the form that `output_option` gave; `show` prints the tables."""
    if output == "json":
        click.echo(json.dumps(data, indent=2))
    elif output == "yaml":
        import yaml  # only here: no other form needs it

        click.echo(yaml.safe_dump(data, sort_keys=False, width=math.inf), nl=False)
    else:
        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
        show(Console(width=width, highlight=False))


def time_text(timestamp_ms: int) -> str:
    """Return a time in ISO 8601, to the second, in UTC; `-` if no calendar has it."""
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "-"


def age_text(age_ms: int | None) -> str:
    """Return how long ago something was, for a table; `-` if it is not known."""
    if age_ms is None:
        return "-"
    seconds = age_ms / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
