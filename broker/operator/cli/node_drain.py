"""`anabranch node drain ID`: all partitions that a node leads move to other living nodes."""

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
    begun = node.ask("POST", path)
    total, failures = begun["leads"], dict[str, str]()

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
    found = node.ask("GET", path)
    emit(output, {**found, "moved": total}, f"node {node_id} leads no partitions; {_count(total)} moved away")


def _count(partitions: int) -> str:
    return count_text(partitions, "partition")
