"""`anabranch node ...`: the nodes of a cluster, listed, declared dead, given up, removed."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.cluster_source import RunningCluster, Source, on_cluster
from anabranch.broker.operator.cli.node_drain import drain, drain_and_stop
from anabranch.broker.operator.cli.questions import confirm
from anabranch.output import count_text, emit, make_table, output_option, show_plan
from anabranch.times import age_text

STYLES: Final = {"UP": "green", "DRAINING": "yellow", "FAILED": "red", "LEFT": "dim"}
"""Colours of the states of nodes, on terminals."""


@click.group()
def node() -> None:
    """List the nodes of a cluster, drain one, declare one dead, accept the loss of its log, remove it."""


node.add_command(drain)


@node.command(name="list", short_help="List the nodes, with their logs.")
@output_option
@on_cluster
def list_(source: Source, output: str) -> None:
    """List the registered nodes with their states and logs.

    UP lives. DRAINING lives, and its partitions are moved away. FAILED is dead: others have replaced it, or
    wait for its log. LEFT has stopped cleanly.
    """
    rows = source.nodes()
    emit(output, rows, partial(show_nodes, rows))


def show_nodes(rows: list[dict[str, Any]], console: Console) -> None:
    """Print a table of nodes, and one of their logs."""
    console.print(_nodes_table(rows))
    console.print()
    names = ("node", "log", "state", "may be opened by")
    table = make_table(*names, "location", whole=names)
    for row in rows:
        if (log := row["log"]) is not None:
            table.add_row(
                str(row["id"]), log_kind_text(log), log_state_text(log), openers_text(log, row["id"]), log["location"]
            )
    console.print(table)


def _nodes_table(rows: list[dict[str, Any]]) -> Table:
    racks = any(row["rack"] for row in rows)
    numbers = ("epoch", "leads", "beat", "commit")
    names = ("node", "state", "epoch", "address", "machine", *(["rack"] if racks else []), "leads", "beat", "commit")
    table = make_table(*names, right=numbers, whole=("node", "state", *numbers))
    for row in rows:
        state = row["state"]
        table.add_row(
            str(row["id"]),
            f"[{STYLES[state]}]{state}[/]",
            str(row["epoch"]),
            row["address"],
            row["machine"] or "-",
            *([row["rack"] or "-"] if racks else []),
            f"{row['leads']:,}",
            age_text(row["beat_age_ms"]),
            age_text(row["commit_age_ms"]),
        )
    return table


def log_kind_text(log: Mapping[str, Any]) -> str:
    """Return the kind of a log for a table: of the setting wal.kind, `device` is a file, too."""
    return {"device": "file or device", "object": "objects"}.get(log["kind"], str(log["kind"]))


def openers_text(log: Mapping[str, Any], node_id: int) -> str:
    """Return who may open the log of a node (wal.takeover) for a table."""
    return {"none": f"node {node_id} only", "machine": "nodes on its machine", "shared": "any node"}[log["takeover"]]


def log_state_text(log: Mapping[str, Any]) -> str:
    """Return the state of a log for a table, with the node that recovers it."""
    recoverer = log["recoverer"]
    if recoverer is None:
        return str(log["state"])
    return f"{log['state']} by {recoverer}"


@node.command(short_help="Declare a node dead now.")
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@yes_option
@output_option
@on_cluster
def fail(source: Source, node_id: int, *, yes: bool, output: str) -> None:
    """Declare the node ID dead now, without waiting for its silence to prove it.

    The node that is asked fences it and recovers its log, and the others lead its partitions. Nothing that was
    acknowledged is lost. Refused if the log cannot be opened there.
    """
    if not yes:
        confirm(f"Fence node {node_id}? Its process ends when it notices")
    answer = source.fail(node_id)
    log = answer["log"]
    found = "it had no log to be recovered" if log is None else f"its log, {log['location']}, was recovered"
    emit(output, answer, f"node {node_id} is fenced; {found}")


@node.command(name="give-up", short_help="Accept the loss of a dead node's log.")
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@yes_option
@output_option
@on_cluster
def give_up(source: Source, node_id: int, *, yes: bool, output: str) -> None:
    """Accept the loss of the log of the dead node ID, and of acknowledged records that were only in it.

    Shows first which partitions may lose records, and from which offset on. Afterwards other nodes lead them
    from the end of the records in objects, so consumers may receive new records at offsets they have already
    read. Refused while the log can be opened. Make sure that the node's process has ended: what it still
    acknowledges is lost, too.
    """
    plan = source.loss(node_id)
    show_plan(output, partial(_show_loss, plan), asks=not yes)
    if not yes:
        confirm("Accept the loss?")
    answer = source.give_up(plan)
    emit(output, answer, f"given up: the log {answer['log']['id']} of node {node_id}")


def _show_loss(plan: Mapping[str, Any], console: Console) -> None:
    log, count = plan["log"], len(plan["partitions"])
    host = f" on {plan['machine']}" if plan["machine"] else ""
    text = f"log {log['id']} of node {plan['node']}, {log['kind']} {log['location']}{host}"
    console.print(text, markup=False, soft_wrap=True)
    if not count:
        console.print("No partition has records that were only in it.")
        return
    lost = f"Acknowledged records of {count_text(count, 'partition')} that were only in it will be lost for good:"
    console.print(lost, soft_wrap=True)
    table = make_table("partition", "may lose records from offset")
    for each in plan["partitions"]:
        table.add_row(each["partition"], f"{each['from_offset']:,}")
    console.print(table)


@node.command(short_help="Remove a node from the cluster.")
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@click.option("--drain", "drains", is_flag=True, help="First move away what it leads, and end its process.")
@output_option
@on_cluster
def remove(source: Source, node_id: int, *, drains: bool, output: str) -> None:
    """Remove the node ID, which has left or failed, from the cluster; with --drain one that runs, too.

    Refused while it lives, leads partitions, or its log may hold records that are in no object. Another node
    compacts its objects. A process that starts with this id joins anew: what restarts it must know of the removal.
    Ctrl-C during --drain ends the drain.
    """
    if drains:
        if not isinstance(source, RunningCluster):
            raise click.UsageError("--drain needs a running node: name one with --bootstrap-server or --admin")
        drain_and_stop(source.port, node_id)
    answer = source.remove(node_id)
    count, heir = answer["inherited"], answer["heir"]
    inherited = f"; node {heir} compacts its {count_text(count, 'object')}" if count else ""
    emit(output, answer, f"removed node {node_id}{inherited}")
