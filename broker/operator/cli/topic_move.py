"""`anabranch topic move`: partitions move to a node."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console

from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.arguments import parse_partitions
from anabranch.broker.operator.cli.progress import watch
from anabranch.output import emit, output_option


@click.command(short_help="Move partitions to a node.")
@click.argument("places", metavar="TOPIC[:PARTITION,...]...", nargs=-1, required=True)
@click.option("--to", "node_id", metavar="NODE", type=click.IntRange(0), required=True, help="Node that shall lead.")
@output_option
@on_node
def move(node: AdminPort, places: Sequence[str], node_id: int, output: str) -> None:
    """Move topics, or some of their partitions, to the node NODE, and wait until it leads them.

    Producers and consumers continue without an error. Interrupting this command does not end the moves. The node
    becomes the preferred leader: an election brings the partitions back to it after they were elsewhere.
    """
    orders = [
        {"to": str(node_id), "topic": topic, "partitions": ",".join(map(str, partitions))}
        for topic, partitions in parse_partitions(places, "TOPIC").items()
    ]
    for asked in orders:
        node.ask("POST", "/moves/request", **asked)

    def found() -> Sequence[Mapping[str, Any]]:
        return [node.ask("GET", "/moves/progress", **asked) for asked in orders]

    def left() -> int:
        return sum(len(each["moving"]) for each in found())

    watch("moving partitions", sum(len(each["moving"]) for each in found()), left)
    ended = found()
    failed = {
        f"{asked['topic']}-{partition}": reason
        for asked, each in zip(orders, ended, strict=True)
        for partition, reason in each["failed"].items()
    }
    moved = sum(len(each["done"]) for each in ended)

    def show(_console: Console) -> None:
        click.echo(f"node {node_id} leads {moved:,} partition{'s' if moved != 1 else ''}")
        for partition, reason in failed.items():
            click.echo(f"{partition} was not moved: {reason}", err=True)

    emit(output, {"to": node_id, "led": moved, "failed": failed}, show)
    if failed:
        raise SystemExit(1)
