"""What commands print: tables for people, JSON and YAML for programs.

Colours and widths are for terminals only: into a pipe or a file each row is one line, however long, unless COLUMNS is
set. NO_COLOR turns colours off.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

WIDE: Final = 4_000
"""Columns of what is not a terminal."""


def make_console(*, stderr: bool = False) -> Console:
    """Return the console for tables."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(stderr=stderr, width=width, highlight=False)


def emit(output: str, data: Any, show: Callable[[Console], None]) -> None:
    """Print data in the form that `output_option` gave; `show` prints the tables."""
    if output == "json":
        click.echo(json.dumps(data, indent=2))
    elif output == "yaml":
        import yaml  # only here: no other form needs it

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=math.inf), nl=False)
    else:
        show(make_console())


def make_table(*names: str, right: Sequence[str] = ()) -> Table:
    """Return a table without lines. Columns in `right` are numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
