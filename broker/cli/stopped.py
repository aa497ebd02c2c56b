"""`anabranch storage stopped | discard`: partitions that a node stopped because a record in the middle is missing.

While there is one the node's log is not trimmed, so that nobody loses what may still be read from it. What to do is for
a person to decide; these commands show what is at stake, and give it up.
"""

from typing import Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from broker.cli.admin_port import AdminPort, on_node


@click.command(short_help="Show a running node's stopped partitions.")
@on_node
def stopped(node: AdminPort) -> None:
    """Show the stopped partitions of a running node, and what of them is only in its log."""
    rows = node.ask("GET", "/storage/stopped")
    if not rows:
        click.echo("no partition is stopped")
        return
    table = Table(header_style="bold")
    for name in ("stream", "partition", "records only in the log", "offsets", "bytes", "why"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(str(row["stream"]), row["partition"] or "?", *_stake(row), row["reason"])
    Console().print(table)


@click.command(short_help="Give up a stopped partition's records.")
@click.argument("stream", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_node
def discard(node: AdminPort, stream: int, yes: bool) -> None:  # noqa: FBT001 - click passes by name
    """Give up the records of a stopped partition that are only in the node's log. They are lost for good.

    STREAM is the number that `stopped` shows. The partition goes on from the end of what was uploaded, and consumers
    may see offsets again that they have seen with other records. Keep a copy of the log (the device or file) before, if
    the records matter.
    """
    rows = [row for row in node.ask("GET", "/storage/stopped") if row["stream"] == stream]
    if not rows:
        raise click.ClickException(f"stream {stream} is not stopped")
    (row,) = rows
    records, offsets, size = _stake(row)
    click.echo(f"{row['partition'] or 'stream ' + str(stream)}: {row['reason']}")
    click.echo(f"{records} acknowledged records at offsets {offsets} ({size}) will be lost for good.")
    if not yes:
        click.confirm("Give them up?", abort=True)
    node.ask("POST", "/storage/discard", stream=str(stream))
    click.echo("given up; the partition takes records again")


def _stake(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{row['records']:,}", f"{row['start_offset']} to {row['end_offset'] - 1}", decimal(row["bytes"])
