"""Progress of work that a node does: a bar on a terminal, lines in a pipe or a file."""

import time
from collections.abc import Callable
from typing import Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.output import make_console

POLL_S: Final = 0.2
POLLS_PER_LINE: Final = 25
"""Lines are written every five seconds, if anything has changed."""


def watch(title: str, total: int, left: Callable[[], int]) -> None:
    """Show how much of `total` is done until `left` returns 0 or less; it may raise. Written to standard error."""
    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        polls, said = 0, -1
        while (open_ := left()) > 0:
            bar.update(task, total=max(total, open_), completed=max(total - open_, 0))
            if not console.is_terminal and polls % POLLS_PER_LINE == 0 and open_ != said:
                click.echo(f"{title}: {max(total - open_, 0)} of {total}", err=True)
                said = open_
            polls += 1
            time.sleep(POLL_S)
