"""`anabranch topic detach | attach | clone | detached`: requests on whole topics, sent to their node's admin port.

Only the running node can upload the records that are still in its log, which must happen first.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.output import count_text, emit, make_table, output_option
from anabranch.times import second_text


@click.command()
@click.argument("name")
@output_option
@on_node
def detach(node: AdminPort, name: str, output: str) -> None:
    """Remove the topic NAME from the cluster; its data stays.

    Records in the node's log are uploaded first. Committed offsets of groups do not change. With
    topic.auto_create a producer that continues creates a new, empty topic NAME; `attach --as` then brings the
    old one back under another name.
    """
    answer = node.ask("POST", f"/topics/{quote(name, safe='')}/detach")
    emit(output, answer, f"detached topic {_describe(answer)}")


@click.command()
@click.argument("topic", metavar="NAME|ID")
@click.option("--as", "new_name", metavar="NEW", help="Name to attach it under  [default: the one it had]")
@output_option
@on_node
def attach(node: AdminPort, topic: str, new_name: str | None, output: str) -> None:
    """Bring back a detached topic, by its name or id."""
    answer = node.ask("POST", f"/detached-topics/{quote(topic, safe='')}/attach", name=new_name)
    emit(output, answer, f"attached topic {_describe(answer)}")


@click.command(short_help="Create a topic with another's records.")
@click.argument("name")
@click.argument("new_name", metavar="NEW")
@output_option
@on_node
def clone(node: AdminPort, name: str, new_name: str, output: str) -> None:
    """Create the topic NEW with the records and configs that NAME has now.

    No data is copied: both topics share the same objects until compaction rewrites them. From then on they are
    independent.
    """
    answer = node.ask("POST", f"/topics/{quote(name, safe='')}/clone", name=new_name)
    emit(output, {**answer, "from": name}, f"cloned topic {name} to {_describe(answer)}")


@click.command(short_help="List detached topics, with their ids.")
@output_option
@on_node
def detached(node: AdminPort, output: str) -> None:
    """List detached topics, with the ids by which they can be attached."""
    rows = node.ask("GET", "/detached-topics")["topics"]
    table = make_table("topic", "id", "partitions", "detached", right=("partitions",))
    for each in rows:
        table.add_row(each["topic"], each["id"], str(each["partitions"]), second_text(each["detached_ms"]))
    emit(output, rows, lambda console: console.print(table))


def _describe(answer: Mapping[str, Any]) -> str:
    """Describe a topic in a node's answer."""
    return f"{answer['topic']} with {count_text(answer['partitions'], 'partition')}, id {answer['id']}"
