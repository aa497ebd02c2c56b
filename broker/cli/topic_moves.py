"""`anabranch topic detach | attach | clone | detached`: whole topics, over the admin port of the node that leads them.

They go through the running node, because it alone knows what is still in its log and can upload it first.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from broker.cli.admin_port import AdminPort, on_node
from broker.cli.client import id_text


@click.command()
@click.argument("name")
@on_node
def detach(node: AdminPort, name: str) -> None:
    """Take the topic NAME out of the cluster; its data stays.

    What is in the node's log is uploaded first. The data stays until the topic is attached and deleted; committed
    offsets of groups stay as they are. A producer that goes on makes a new, empty topic NAME where the setting
    topic.auto_create is on; `attach --as` brings back the old one beside it.
    """
    answer = node.ask("POST", "/topics/detach", topic=name)
    click.echo(f"detached topic {_told(answer)}")


@click.command()
@click.argument("topic", metavar="NAME|ID")
@click.option("--as", "new_name", metavar="NEW", help="Name to attach it under  [default: the one it had]")
@on_node
def attach(node: AdminPort, topic: str, new_name: str | None) -> None:
    """Bring back a detached topic, found by its name or its id."""
    ids = {_id_of(each): each["id"] for each in node.ask("GET", "/topics/detached")}
    answer = node.ask("POST", "/topics/attach", topic=ids.get(topic, topic), **{"as": new_name})
    click.echo(f"attached topic {_told(answer)}")


@click.command(short_help="Make a topic with another's records.")
@click.argument("name")
@click.argument("new_name", metavar="NEW")
@on_node
def clone(node: AdminPort, name: str, new_name: str) -> None:
    """Make the topic NEW with the records and configs that NAME has now.

    No data is copied: both refer to the same objects, until compaction rewrites what is small. From here on they go
    separate ways.
    """
    answer = node.ask("POST", "/topics/clone", topic=name, **{"as": new_name})
    click.echo(f"cloned topic {name} to {_told(answer)}")


@click.command(short_help="List detached topics, with their ids.")
@on_node
def detached(node: AdminPort) -> None:
    """List detached topics, with the ids by which they can be attached."""
    table = Table("topic", "id", "partitions", "detached (UTC)", box=None, header_style="bold")
    for each in node.ask("GET", "/topics/detached"):
        moment = datetime.fromtimestamp(each["detached_ms"] / 1000, UTC)
        table.add_row(each["topic"], _id_of(each), str(each["partitions"]), f"{moment:%Y-%m-%d %H:%M:%S}")
    Console().print(table)


def _told(answer: Mapping[str, Any]) -> str:
    """What a node says of a topic that it has moved."""
    count = answer["partitions"]
    return f"{answer['topic']} with {count} partition{'s' if count != 1 else ''}, id {_id_of(answer)}"


def _id_of(answer: Mapping[str, Any]) -> str:
    """The admin port gives ids in hex, people get them as in every other command."""
    return id_text(bytes.fromhex(answer["id"]))
