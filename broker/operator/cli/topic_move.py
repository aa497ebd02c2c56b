"""`anabranch topic move`: partitions move to a node."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console

from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.arguments import parse_partitions
from anabranch.broker.operator.cli.progress import watch
from anabranch.output import count_text, emit, output_option


@click.command(short_help="Move partitions to a node.")
@click.argument("places", metavar="TOPIC[:PARTITION,...]...", nargs=-1, required=True)
@click.option("--to", "node_id", metavar="NODE", type=click.IntRange(0), required=True, help="Node that shall lead.")
@output_option
@on_node
def move(node: AdminPort, places: Sequence[str], node_id: int, output: str) -> None:
    """Move topics, or some of their partitions, to the node NODE, and wait until it leads them.

    Clients see no error. Interrupting this command does not end the moves. The node becomes the preferred
    leader, to which an election brings the partitions back.
    """
    wanted = parse_partitions(places, "TOPIC")

    def ask(method: str, topic: str) -> Mapping[str, Any]:
        partitions = ",".join(map(str, wanted[topic]))
        answer: Mapping[str, Any] = node.ask(
            method, f"/topics/{quote(topic, safe='')}/moves", to=str(node_id), partitions=partitions
        )
        return answer

    for topic in wanted:
        ask("POST", topic)

    def found() -> Mapping[str, Mapping[str, Any]]:
        return {topic: ask("GET", topic) for topic in wanted}

    def left() -> int:
        return sum(len(each["moving"]) for each in found().values())

    watch("moving partitions", sum(len(each["moving"]) for each in found().values()), left)
    ended = found()
    failed = {
        f"{topic}-{partition}": reason for topic, each in ended.items() for partition, reason in each["failed"].items()
    }
    moved = sum(len(each["done"]) for each in ended.values())

    def show(_console: Console) -> None:
        click.echo(f"node {node_id} leads {count_text(moved, 'partition')}")
        for partition, reason in failed.items():
            click.echo(f"{partition} was not moved: {reason}", err=True)

    emit(output, {"to": node_id, "led": moved, "failed": failed}, show)
    if failed:
        raise SystemExit(1)
