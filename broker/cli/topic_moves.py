"""`anabranch topic detach | attach | clone | detached`: whole topics, over the admin port of the node that leads them.

They go through the running node, because it alone knows what is still in its log and can upload it first.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click
from rich.console import Console
from rich.table import Table

from broker.cli.client import id_text
from broker.cli.compact import AdminPort

admin_option = click.option(
    "--admin",
    default="127.0.0.1:9644",
    show_default=True,
    metavar="HOST:PORT",
    help="Admin port of the node to ask.",
)


def call(admin: str, method: str, path: str, **query: str | None) -> Any:
    """The answer of a node's admin port to a request."""
    host, _, port = admin.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"expected HOST:PORT, found {admin!r}", param_hint="--admin")
    given = urlencode({name: value for name, value in query.items() if value})
    try:
        return AdminPort(host.strip("[]"), int(port)).call(method, f"{path}?{given}" if given else path, None)
    except OSError as error:
        raise click.ClickException(
            f"cannot reach {admin}: {error.strerror or error}; start the node that has the topic"
        ) from None


@click.command()
@click.argument("name")
@admin_option
def detach(name: str, admin: str) -> None:
    """Take the topic NAME out of the cluster; its data stays.

    What is in the node's log is uploaded first. The data stays until the topic is attached and deleted; committed
    offsets of groups stay as they are. A producer that goes on makes a new, empty topic NAME where the setting
    topic.auto_create is on; `attach --as` brings back the old one beside it.
    """
    answer = call(admin, "POST", "/topics/detach", topic=name)
    click.echo(f"detached topic {_told(answer)}")


@click.command()
@click.argument("topic", metavar="NAME|ID")
@click.option("--as", "new_name", metavar="NEW", help="Name to attach it under  [default: the one it had]")
@admin_option
def attach(topic: str, new_name: str | None, admin: str) -> None:
    """Bring back a detached topic, found by its name or its id."""
    ids = {_id_of(each): each["id"] for each in call(admin, "GET", "/topics/detached")}
    answer = call(admin, "POST", "/topics/attach", topic=ids.get(topic, topic), **{"as": new_name})
    click.echo(f"attached topic {_told(answer)}")


@click.command()
@click.argument("name")
@click.argument("new_name", metavar="NEW")
@admin_option
def clone(name: str, new_name: str, admin: str) -> None:
    """Make the topic NEW with the records and configs that NAME has now.

    No data is copied: both refer to the same objects, until compaction rewrites what is small. From here on they go
    separate ways.
    """
    answer = call(admin, "POST", "/topics/clone", topic=name, **{"as": new_name})
    click.echo(f"cloned topic {name} to {_told(answer)}")


@click.command()
@admin_option
def detached(admin: str) -> None:
    """List detached topics."""
    table = Table("topic", "id", "partitions", "detached (UTC)", box=None, header_style="bold")
    for each in call(admin, "GET", "/topics/detached"):
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
