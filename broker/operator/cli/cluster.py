"""`anabranch cluster ...`: the state of the whole cluster."""

import sys
from collections import Counter
from functools import partial
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape

from anabranch.broker.operator.cli.cluster_balance import balance_text
from anabranch.broker.operator.cli.cluster_source import Source, on_cluster
from anabranch.broker.operator.cli.lazy import LazyGroup
from anabranch.broker.operator.cli.node import log_kind_text, log_state_text, openers_text, show_nodes
from anabranch.output import count_text, emit, make_table, output_option
from anabranch.times import age_text, second_text

UNAVAILABLE: Final = 3
"""Exit code when partitions have no leader."""
SHOWN: Final = 20
"""Rows of partitions in a table."""


SUBCOMMANDS: Final = {
    "status": ("cluster:status", "Show nodes, leaders, and what is missing."),
    "balance": ("cluster_balance:balance", "Show load by node, and what the balancer does; pause it."),
    "cost": ("cluster_cost:cost", "Show what the cluster costs in a month, by topic, beside Apache Kafka."),
    "upgrade": ("cluster_upgrade:upgrade", "Let the cluster use what a new version brings."),
}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS)
def cluster() -> None:
    """Show the state of the whole cluster, how its load is balanced and what it costs, and end upgrades."""


@click.command(short_help="Show nodes, leaders, and what is missing.")
@output_option
@on_cluster
def status(source: Source, output: str) -> None:
    """Show nodes, partitions without a leader and why, balance, moves, logs not drained, and nodes not reached.

    Also why the node that is asked takes no records, while it takes none: its disk is full, or its store is away.

    Exit code 0: every partition has a leader. 3: some have none. 1: the cluster could not be asked.
    """
    found = source.status()
    emit(output, found, partial(_show, found))
    if found["unavailable"]:
        sys.exit(UNAVAILABLE)


def _show(found: dict[str, Any], console: Console) -> None:
    observer, controller = found["observer"], found["controller"]
    seen = (
        "from the catalog" if observer is None else f"as seen by node {observer}; the controller is node {controller}"
    )
    states = Counter(row["state"] for row in found["nodes"])
    count = (
        f"{count_text(len(found['nodes']), 'node')} ({', '.join(f'{states[name]} {name}' for name in sorted(states))})"
    )
    console.print(f"[bold]{count}, {count_text(found['partitions'], 'partition')}[/], {seen}", highlight=False)
    console.print()
    show_nodes(found["nodes"], console)
    console.print()
    _show_unavailable(found["unavailable"], console)
    for reason in found.get("obstacles", ()):  # an earlier version does not tell
        console.print(f"[red bold]node {observer} takes no records[/]: {escape(reason)}", highlight=False)
    if (state := found.get("balance")) is not None:  # an earlier version does not tell
        console.print(balance_text(state["is_on"], state["waits"], state["spread"], state["planned"]), highlight=False)
    _show_moves(found["moves"], console)
    _show_logs(found["logs_not_drained"], console)
    _show_silent(found["silent"], console)
    _show_unreached(found["unreached"], console)


def _show_unavailable(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        console.print("[green]every partition has a leader[/]")
        return
    have = "has" if len(rows) == 1 else "have"
    console.print(f"[red bold]{count_text(len(rows), 'partition')} {have} no leader[/]", highlight=False)
    table = make_table("partition", "reason")
    for row in rows[:SHOWN]:
        table.add_row(f"{row['topic']}-{row['partition']}", row["reason"])
    if len(rows) > SHOWN:
        table.add_row("...", f"{len(rows) - SHOWN:,} more: --output json has them all")
    console.print(table)


def _show_moves(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        return
    failed = sum(row["failure"] is not None for row in rows)
    console.print()
    console.print(f"[bold]moves[/]: {len(rows) - failed:,} under way, {failed:,} failed", highlight=False)
    table = make_table("partition", "from", "to", "reason", "ordered", "failure")
    for row in sorted(rows, key=lambda row: row["failure"] is None)[:SHOWN]:
        table.add_row(
            f"{row['topic']}-{row['partition']}",
            "-" if row["from"] is None else str(row["from"]),
            str(row["to"]),
            row["reason"],
            second_text(row["asked_ms"]),
            row["failure"] or "-",
        )
    if len(rows) > SHOWN:
        table.add_row("...", "", "", "", "", f"{len(rows) - SHOWN:,} more: --output json has them all")
    console.print(table)


def _show_logs(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        return
    console.print()
    console.print("[bold]logs of dead nodes that may hold records outside of objects[/]", highlight=False)
    table = make_table("node", "log", "state", "may be opened by", "location")
    for row in rows:
        openers = openers_text(row, row["node"])
        table.add_row(str(row["node"]), log_kind_text(row), log_state_text(row), openers, row["location"])
    console.print(table)


def _show_silent(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        return
    console.print()
    console.print("[bold]silent nodes[/]", highlight=False)
    table = make_table("node", "silent for", "judgement", "not taken over because")
    for row in rows:
        judgement = "[red]dead[/]" if row["dead"] else "[yellow]not known yet[/]"
        table.add_row(str(row["node"]), age_text(row["silent_ms"]), judgement, row["reason"] or "-")
    console.print(table)


def _show_unreached(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        return
    console.print()
    console.print("[red bold]connections between living nodes that fail[/]: see cluster.internal_advertised_host")
    table = make_table("from node", "to node", "reason")
    for row in rows:
        table.add_row(str(row["from_node"]), str(row["to_node"]), row["reason"])
    console.print(table)
