"""`anabranch config ...`: configs of topics, nodes and groups at run time."""

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.console import Console

from anabranch.client.cluster import Cluster
from anabranch.client.configs import RESOURCES, Resource, alter_configs, describe_configs
from broker.cli.arguments import output_option, parse_pairs, plan_option
from broker.cli.client import CommandClient, client_options
from broker.cli.output import emit, make_table, plain

ALL_BROKERS: Final = "all"
"""Name of the configs of all brokers."""


@click.group()
def config() -> None:
    """Show and change configs of topics, brokers, loggers and groups.

    KIND is topic, broker, broker-logger, client-metrics or group. NAME of a broker is its id, or `all`.
    """


_kind = click.argument("kind", metavar="KIND", type=click.Choice(list(RESOURCES)))


def _resource(kind: str, name: str) -> Resource:
    return Resource(kind, "" if kind == "broker" and name == ALL_BROKERS else name)


@config.command(short_help="Show configs.")
@_kind
@click.argument("name")
@click.option("--all", "show_all", is_flag=True, help="Include defaults and settings.")
@click.option("--explain", is_flag=True, help="Say what each config means.")
@output_option
@client_options
def describe(*, kind: str, name: str, show_all: bool, explain: bool, client: CommandClient, output: str) -> None:
    """Show the configs that were set for NAME, with their values and where these come from."""
    with client.cluster() as cluster:
        found = describe_configs(cluster, _resource(kind, name), documentation=explain)
    rows = [
        {
            "name": each.name,
            "value": each.value,
            "source": each.source,
            "read_only": each.is_read_only,
            **({"documentation": each.documentation or None} if explain else {}),
        }
        for each in found
        if show_all or each.is_own
    ]

    def show(console: Console) -> None:
        if not rows:
            console.print("no config is set; --all shows the defaults")
            return
        table = make_table("name", "value", "source", *(("meaning",) if explain else ()))
        for row in rows:
            value = "-" if row["value"] is None else str(row["value"])
            meaning = (str(row["documentation"] or "-"),) if explain else ()
            table.add_row(*map(plain, (str(row["name"]), value, str(row["source"]), *meaning)))
        console.print(table)

    emit(output, rows, show)


@config.command(name="set", short_help="Set configs.")
@_kind
@click.argument("name")
@click.argument("values", metavar="CONFIG=VALUE...", nargs=-1, required=True)
@plan_option
@output_option
@client_options
def set_(kind: str, name: str, values: Sequence[str], *, plan_only: bool, client: CommandClient, output: str) -> None:
    """Set configs of NAME. The node checks all of them before it changes any."""
    resource, changes = _resource(kind, name), parse_pairs(values, "CONFIG=VALUE")
    with client.cluster() as cluster:
        rows = change_configs(cluster, resource, changes, plan_only=plan_only)
    _emit_changes(output, resource, rows, plan_only=plan_only)


@config.command(short_help="Remove configs, so that their defaults apply.")
@_kind
@click.argument("name")
@click.argument("names", metavar="CONFIG...", nargs=-1, required=True)
@plan_option
@output_option
@client_options
def unset(kind: str, name: str, names: Sequence[str], *, plan_only: bool, client: CommandClient, output: str) -> None:
    """Remove the values that were set for CONFIG... of NAME, so that the defaults apply."""
    resource = _resource(kind, name)
    with client.cluster() as cluster:
        rows = change_configs(cluster, resource, dict.fromkeys(names), plan_only=plan_only)
    _emit_changes(output, resource, rows, plan_only=plan_only)


def change_configs(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, plan_only: bool
) -> Sequence[Mapping[str, str | None]]:
    """Change configs; return the changes, with `to` None for the default. Raises ClientError."""
    before = {each.name: each.value for each in describe_configs(cluster, resource)}
    alter_configs(cluster, resource, changes, validate_only=plan_only)
    return [{"name": name, "from": before.get(name), "to": value} for name, value in changes.items()]


def change_texts(resource: Resource, rows: Sequence[Mapping[str, str | None]]) -> Sequence[str]:
    """Return changes of `change_configs` for people, a line each."""
    return [
        f"{resource}: {row['name']} = {'its default' if row['to'] is None else row['to']} "
        f"(was {'unset' if row['from'] is None else row['from']})"
        for row in rows
    ]


def _emit_changes(
    output: str, resource: Resource, rows: Sequence[Mapping[str, str | None]], *, plan_only: bool
) -> None:
    data = {"kind": resource.kind, "name": resource.name or ALL_BROKERS, "changed": not plan_only, "configs": rows}
    lines = [*change_texts(resource, rows), *(["nothing was changed"] if plan_only else [])]
    emit(output, data, "\n".join(lines))
