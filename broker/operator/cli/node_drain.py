"""`anabranch node drain ID`, and the first half of `node remove ID --drain`: what a node leads moves to others."""

from collections.abc import Mapping
from typing import Any

import click

from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.progress import watch
from anabranch.output import count_text, emit, output_option


@click.command(short_help="Move all partitions away from a node.")
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@click.option("--cancel", is_flag=True, help="End the drain: the node may get partitions again.")
@output_option
@on_node
def drain(node: AdminPort, node_id: int, cancel: bool, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Move all partitions that the node ID leads to other living nodes, and wait until it leads none.

    The node stays up and gets no partitions until its next start, or --cancel. Interrupting this command does
    not end the drain.
    """
    path = f"/nodes/{node_id}/drain"
    if cancel:
        found = node.ask("DELETE", path)
        emit(output, found, f"node {node_id} may get partitions again; it leads {_count(found['leads'])}")
        return
    total = _move_all(node, node_id, node.ask("POST", path))
    found = node.ask("GET", path)
    emit(output, {**found, "moved": total}, f"node {node_id} leads no partitions; {_count(total)} moved away")


def drain_and_stop(node: AdminPort, node_id: int) -> int:
    """Drain a node and let its process end; return the number of partitions that it led. Nothing if it has ended.

    Ctrl-C ends a drain that began here. Raises ClickException.
    """
    path = f"/nodes/{node_id}"
    if node.ask("GET", "/session")["node_id"] == node_id:
        raise click.ClickException(f"node {node_id} answers at {node}: name another node, which can remove it")
    if not node.ask("GET", f"{path}/drain")["lives"]:
        return 0
    begun = node.ask("POST", f"{path}/drain")
    try:
        moved = _move_all(node, node_id, begun)
        node.ask("POST", f"{path}/stop")
    except KeyboardInterrupt:
        if not begun["changed"]:
            raise
        found = node.ask("DELETE", f"{path}/drain")
        raise click.ClickException(
            f"not removed: node {node_id} may get partitions again; it leads {_count(found['leads'])}"
        ) from None
    watch(f"waiting for the end of node {node_id}", 1, lambda: int(node.ask("GET", f"{path}/drain")["lives"]))
    return moved


def _move_all(node: AdminPort, node_id: int, begun: Mapping[str, Any]) -> int:
    """Wait for a drain that has begun; return the number of partitions that the node led. Raises ClickException."""
    path = f"/nodes/{node_id}/drain"
    total, failures = int(begun["leads"]), dict[str, str]()

    def left() -> int:
        found = node.ask("GET", path)
        if not found["draining"]:
            raise click.ClickException(f"the drain of node {node_id} was cancelled; it leads {_count(found['leads'])}")
        if not found["lives"]:
            raise click.ClickException(f"node {node_id} has stopped; the others take over what it led")
        for partition, reason in found["failed"].items():
            if failures.get(partition) != reason:
                click.echo(f"{partition} is tried again: {reason}", err=True)
        failures.update(found["failed"])
        return int(found["leads"])

    watch(f"draining node {node_id}", total, left)
    return total


def _count(partitions: int) -> str:
    return count_text(partitions, "partition")
