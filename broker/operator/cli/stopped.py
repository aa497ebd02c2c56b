"""`anabranch storage stopped | discard`: partitions that a node stopped because a record in their middle is missing.

While a partition is stopped, the node does not trim its log, so that the records stay recoverable. These commands show
the records that are only in the log, and discard them on request.
"""

from typing import Any

import click
from rich.console import Console

from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.questions import confirm
from anabranch.output import emit, make_table, output_option, show_plan


@click.command(short_help="Show a running node's stopped partitions.")
@output_option
@on_node
def stopped(node: AdminPort, output: str) -> None:
    """Show the stopped partitions of a running node, with their records that are only in its log."""
    rows = node.ask("GET", "/storage/stopped")["streams"]

    def show(console: Console) -> None:
        if not rows:
            console.print("no partition is stopped")
            return
        table = make_table("stream", "partition", "records only in the log", "offsets", "bytes", "reason")
        for row in rows:
            table.add_row(str(row["stream"]), row["partition"] or "?", *_stake(row), row["reason"])
        console.print(table)

    emit(output, rows, show)


@click.command(short_help="Discard a stopped partition's records.")
@click.argument("stream", type=int)
@yes_option
@output_option
@on_node
def discard(node: AdminPort, stream: int, yes: bool, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Discard the records of a stopped partition that are only in the node's log. They are lost permanently.

    STREAM is the number that `stopped` shows. The partition continues from the end of its uploaded records, so
    consumers may receive new records at offsets they have already read. Copy the log first if the records
    matter.
    """
    rows = [row for row in node.ask("GET", "/storage/stopped")["streams"] if row["stream"] == stream]
    if not rows:
        raise click.ClickException(f"stream {stream} is not stopped")
    (row,) = rows
    records, offsets, size = _stake(row)

    def show(console: Console) -> None:
        console.print(f"{row['partition'] or 'stream ' + str(stream)}: {row['reason']}", markup=False, soft_wrap=True)
        console.print(f"{records} acknowledged records at offsets {offsets} ({size}) will be lost for good.")

    show_plan(output, show, asks=not yes)
    if not yes:
        confirm("Discard them?")
    node.ask("POST", f"/storage/stopped/{stream}/discard")
    emit(output, row, "discarded; the partition accepts records again")


def _stake(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{row['records']:,}", f"{row['start_offset']} to {row['end_offset'] - 1}", size_text(row["bytes"])
