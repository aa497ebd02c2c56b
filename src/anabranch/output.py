"""Output of commands: tables for people, JSON and YAML for programs.

Colours and widths are for terminals only: into a pipe or a file each row is one line, however long, unless COLUMNS is
set. NO_COLOR turns colours off. The library of tables is loaded when a table is made.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

WIDE: Final = 4_000
"""Width, in columns, if the output is not a terminal."""
output_option: Final = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)


def make_console(*, stderr: bool = False) -> "Console":
    """Return the console for tables."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(stderr=stderr, width=width, highlight=False)


def emit(output: str, data: Any, show: "Callable[[Console], None] | str") -> None:
    """Print data in the form that `output_option` gave; `show` prints the tables, or is the line for people."""
    if output == "json":
        click.echo(json.dumps(data, indent=2))
    elif output == "yaml":
        import yaml  # only here: no other form needs it

        same = json.loads(json.dumps(data))  # subclasses of str, tuples: YAML has the same as JSON
        click.echo(yaml.safe_dump(same, sort_keys=False, width=math.inf), nl=False)
    elif isinstance(show, str):
        click.echo(show)
    else:
        show(make_console())


def show_plan(output: str, show: "Callable[[Console], None]", *, asks: bool) -> None:
    """Print what a command is about to do.

    Tables go before the result. JSON and YAML have the plan in the result, so it goes to standard error there, if a
    question about it follows.
    """
    if output == "table":
        show(make_console())
    elif asks:
        show(make_console(stderr=True))


def show_each(things: Iterable[Any], show: "Callable[[Any, Console], None]", console: "Console") -> None:
    """Print several things, with an empty line between them."""
    for number, each in enumerate(things):
        if number:
            console.print()
        show(each, console)


def make_table(*names: str, right: Sequence[str] = (), whole: Sequence[str] = (), title: str | None = None) -> "Table":
    """Return a table without lines. Columns in `right` are numbers, those in `whole` are never wrapped."""
    from anabranch.text_tables import TrimmedTable

    table = TrimmedTable(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    for name in names:
        justify: JustifyMethod = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)
    return table


def make_facts(facts: Iterable[tuple[str, str]]) -> "Table":
    """Return a table of names with their values, which may have markup."""
    from anabranch.text_tables import TrimmedTable

    table = TrimmedTable(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(f"[bold]{name}[/bold]", value)
    return table


def plain(text: str) -> str:
    """Return a text for a table that comes from others: without markup, and with nothing that controls a terminal."""
    from rich.markup import escape

    return escape("".join(each if each.isprintable() else repr(each)[1:-1] for each in text))


def number_text(value: int | None) -> str:
    """Return a number for a table; `-` if it is not known."""
    return "-" if value is None else f"{value:,}"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: `1 member`, `2 members`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
