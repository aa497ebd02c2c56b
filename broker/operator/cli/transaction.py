"""`anabranch transaction ...`: transactions of a running cluster."""

import time
from collections.abc import Sequence

import click
from rich.console import Console

from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.questions import confirm
from anabranch.client.transactions import abort_transaction, describe_transaction, list_transactions
from anabranch.output import count_text, emit, make_table, output_option, plain
from anabranch.times import time_text

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group()
def transaction() -> None:
    """List, describe and abort transactions."""


@transaction.command(name="list", short_help="List the transactional ids.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only in this state; repeatable.")
@click.option("--open", "open_only", is_flag=True, help="Only those whose transaction has not ended.")
@output_option
@client_options
def list_(states: Sequence[str], open_only: bool, client: CommandClient, output: str) -> None:  # noqa: FBT001 - click passes by name
    """List the transactional ids of all nodes, with their producers, states and coordinators."""
    with client.cluster() as cluster:
        found = list_transactions(cluster, (*states, *OPEN) if open_only else states)
    rows = [
        {
            "id": each.transactional_id,
            "producer": each.producer_id,
            "state": each.state,
            "coordinator": each.coordinator,
        }
        for each in found
    ]
    table = make_table("id", "producer", "state", "coordinator", right=("producer", "coordinator"))
    for row in rows:
        table.add_row(*(plain(str(value)) for value in row.values()))
    emit(output, rows, lambda console: console.print(table))


@transaction.command(short_help="Show the transaction of an id.")
@click.argument("transactional_id", metavar="ID")
@output_option
@client_options
def describe(transactional_id: str, client: CommandClient, output: str) -> None:
    """Show the producer of a transactional id, and the partitions of its open transaction."""
    with client.cluster() as cluster:
        found = describe_transaction(cluster, transactional_id)
    is_open = found.start_ms >= 0
    data = {
        "id": found.transactional_id,
        "state": found.state,
        "producer": found.producer_id,
        "epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "started": time_text(found.start_ms) if is_open else None,
        "open_ms": time.time_ns() // 1_000_000 - found.start_ms if is_open else None,
        "partitions": [f"{topic}-{index}" for topic, index in found.places],
    }

    def show(console: Console) -> None:
        table = make_table("", "")
        table.show_header = False
        for name, value in data.items():
            text = ", ".join(value) if isinstance(value, list) else value
            table.add_row(name, "-" if text in {None, ""} else plain(str(text)))
        console.print(table)

    emit(output, data, show)


@transaction.command(short_help="Abort an open transaction.")
@click.argument("transactional_id", metavar="ID")
@yes_option
@output_option
@client_options
def abort(transactional_id: str, yes: bool, client: CommandClient, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Abort the open transaction of a transactional id, and fence its producer.

    Readers of committed records wait for an open transaction. The producer gets an error at its next request, as if
    another with the same id had started.
    """
    with client.cluster() as cluster:
        found = describe_transaction(cluster, transactional_id)
        if found.state not in OPEN:
            raise click.ClickException(f"transactional id {transactional_id} has no open transaction: {found.state}")
        if not yes:
            places = count_text(len(found.places), "partition")
            confirm(f"Abort the transaction of {transactional_id} in {places}?")
        abort_transaction(cluster, found)
    data = {
        "id": transactional_id,
        "producer": found.producer_id,
        "partitions": [f"{topic}-{index}" for topic, index in found.places],
    }
    emit(output, data, f"aborted the transaction of {transactional_id}")
