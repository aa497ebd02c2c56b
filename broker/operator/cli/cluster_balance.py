"""`anabranch cluster balance`: load by node, what the balancer plans and has done, and its pause."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.output import count_text, emit, make_table, output_option, plain
from anabranch.times import age_text, second_text

PARTITIONS: Final = 10
"""Partitions that are shown: those that cost most."""
MOVES: Final = 20


@click.command(short_help="Show load by node, and what the balancer does; pause it.")
@click.option("--dry-run", "plan", is_flag=True, help="Show which partitions would move, why, and to what effect.")
@click.option("--history", is_flag=True, help="Show the last moves.")
@click.option("--pause", is_flag=True, help="Let no partition move by itself, until --resume.")
@click.option("--resume", is_flag=True, help="End a pause.")
@output_option
@on_node
def balance(node: AdminPort, *, output: str, **flags: bool) -> None:
    """Show the load of each node, the partitions that cost most, and what the balancer is about to do.

    Load is the processor time that the traffic of partitions costs, a mean of the last minute: 0.5 is half a core.
    What consumers read from a node as a replica is a part of it that no move takes away.
    The balancer plans every ten seconds, also while it is paused. Moves that were ordered before a pause go on.
    """
    given = [name for name, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise click.UsageError("give one of --dry-run, --history, --pause and --resume")
    what = given[0] if given else None
    if what in {"pause", "resume"}:
        answer = node.ask("POST", f"/cluster/balance/{what}")
        text = (
            "balancing goes on" if answer["is_on"] else "balancing is paused, until anabranch cluster balance --resume"
        )
        emit(output, answer, text)
        return
    found = node.ask("GET", "/cluster/balance", partitions=str(PARTITIONS))
    show: Mapping[str | None, Callable[[Mapping[str, Any], Console], None]] = {
        None: _show_loads,
        "plan": _show_plan,
        "history": _show_history,
    }
    emit(output, found, partial(show[what], found))


def _show_loads(found: Mapping[str, Any], console: Console) -> None:
    nodes = found["nodes"]
    if nodes:
        mean = sum(each["cores"] for each in nodes) / len(nodes)
        racks = any(each["rack"] for each in nodes)
        replicas = any(each["replica_cores"] for each in nodes)
        numbers = ("load", "of mean", *(["as replica"] if replicas else []), "leads", "in", "out", "requests")
        names = ("node", *(["rack"] if racks else []), *numbers, "")
        table = make_table(*names, right=numbers, whole=names)
        for each in nodes:
            known = each["up_ms"] is not None
            table.add_row(
                str(each["node"]),
                *([each["rack"] or "-"] if racks else []),
                f"{each['cores']:.3f}" if known else "-",
                f"{each['cores'] / mean:.0%}" if known and mean else "-",
                *([f"{each['replica_cores']:.3f}" if known else "-"] if replicas else []),
                f"{each['partitions']:,}",
                f"{size_text(each['received_bytes'])}/s",
                f"{size_text(each['sent_bytes'])}/s",
                f"{each['requests']:,.0f}/s",
                "draining" if each["draining"] else "" if known else "does not tell its load",
            )
        console.print(table)
        console.print()
    _show_partitions([each for each in found["partitions"] if each["cores"] > 0], console)
    _show_state(found, console)


def _show_partitions(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not rows:
        return
    numbers = ("load", "in", "out", "requests")
    table = make_table("partition", "leader", *numbers, "", right=numbers)
    for each in rows:
        advice = f"[yellow]hot[/]: {plain(each['advice'])}" if each["advice"] else "rests" if each["resting"] else ""
        table.add_row(
            f"{each['topic']}-{each['partition']}",
            str(each["leader"]),
            f"{each['cores']:.3f}",
            f"{size_text(each['received_bytes'])}/s",
            f"{size_text(each['sent_bytes'])}/s",
            f"{each['requests']:,.0f}/s",
            advice,
        )
    console.print(table)
    console.print()


def balance_text(is_on: bool, waits: str | None, spread: float, planned: int) -> str:  # noqa: FBT001 - of an answer
    """Return what the balancer does, in one line for a console."""
    state = "[green]on[/]" if is_on else "[yellow]paused[/] (anabranch cluster balance --resume)"
    if waits:
        return f"balancing is {state}; it waits: {plain(waits)}"
    moves = f"{count_text(planned, 'move')} planned" if planned else "nothing to move"
    return f"balancing is {state}; the node with the most load has {spread:.2f} times the mean; {moves}"


def _show_state(found: Mapping[str, Any], console: Console) -> None:
    text = balance_text(found["is_on"], found["waits"], found["spread_before"], len(found["plan"]))
    if found["planned_ms"] is not None:
        age_ms = max(found["now_ms"] - found["planned_ms"], 0)  # the clocks of two nodes
        text += f"; planned {age_text(age_ms)} ago"
    console.print(text)


def _show_plan(found: Mapping[str, Any], console: Console) -> None:
    if found["plan"]:
        _show_moves(found["plan"], console, timed=False)
        console.print(
            f"load of the node with the most, in multiples of the mean: {found['spread_before']:.2f} now, "
            f"{found['spread_after']:.2f} after {count_text(len(found['plan']), 'move')}"
        )
    _show_state(found, console)


def _show_history(found: Mapping[str, Any], console: Console) -> None:
    if not found["history"]:
        console.print(f"node {found['controller']}, the controller, has ordered no moves since it became one")
        return
    _show_moves(found["history"], console, timed=True)


def _show_moves(rows: Sequence[Mapping[str, Any]], console: Console, *, timed: bool) -> None:
    names = (*(["ordered"] if timed else []), "partition", "from", "to", "load")
    table = make_table(*names, "reason", *(["result"] if timed else []), right=("load",), whole=names)
    for each in rows[:MOVES]:
        result = plain(each["failure"]) if each["failure"] else "done" if each["done"] else "ordered"
        table.add_row(
            *([second_text(each["ordered_ms"])] if timed else []),
            f"{each['topic']}-{each['partition']}",
            str(each["from"]),
            str(each["to"]),
            f"{each['cores']:.3f}",
            f"{each['rule']}: {plain(each['reason'])}",
            *([result] if timed else []),
        )
    console.print(table)
    if len(rows) > MOVES:
        console.print(f"... and {len(rows) - MOVES:,} more: --output json has them all")
