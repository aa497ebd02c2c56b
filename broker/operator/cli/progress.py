"""Progress of work, on standard error: a bar on a terminal; of what a node does, lines in a pipe or a file.

The bars are loaded when one is shown: commands that never wait share modules with those that do.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from anabranch.output import make_console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

POLL_S: Final = 0.2
POLLS_PER_LINE: Final = 25
"""Lines are written every five seconds, if anything has changed."""


@contextmanager
def progress_bar(*columns: "ProgressColumn") -> "Iterator[Progress]":
    """Show a bar with these columns after the task's description, on a terminal only."""
    from rich.progress import Progress, TextColumn

    console = make_console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of a known total is done; the value receives what is done and the total."""
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    with progress_bar(BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def watch(title: str, total: int, left: Callable[[], int]) -> None:
    """Show how much of `total` is done until `left` returns 0 or less; it may raise."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    with progress_bar(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(title, total=total)
        polls, said = 0, -1
        while (open_ := left()) > 0:
            bar.update(task, total=max(total, open_), completed=max(total - open_, 0))
            if not bar.console.is_terminal and polls % POLLS_PER_LINE == 0 and open_ != said:
                click.echo(f"{title}: {max(total - open_, 0)} of {total}", err=True)
                said = open_
            polls += 1
            time.sleep(POLL_S)
