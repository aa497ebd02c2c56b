"""`anabranch config ...`: configs of topics, nodes and groups at run time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import click
from rich.console import Console

from anabranch.broker.node.settings.sizes import parse_size
from anabranch.broker.operator.cli.arguments import parse_pairs, plan_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.durations import parse_duration
from anabranch.broker.operator.cli.topic_table import shown_value
from anabranch.client.cluster import Cluster
from anabranch.client.configs import RESOURCES, Config, Resource, alter_configs, describe_configs
from anabranch.client.errors import ClientError
from anabranch.output import emit, make_table, output_option, plain
from anabranch.spelling import near_text

ALL_BROKERS: Final = "all"
"""Name of the configs of all brokers."""
NO_EFFECT: Final = "has no effect here"
"""In the documentation of a config that a node of Anabranch accepts for compatibility only; the reason follows."""


LISTED: Final = "; `config describe --all` lists them"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A config with its value before and after a change. `value` None: the default; `before` None: unset or hidden."""

    name: str
    before: str | None
    value: str | None
    is_change: bool

    def data(self) -> Mapping[str, str | None]:
        """Return the change for JSON and YAML."""
        return {"name": self.name, "from": self.before, "to": self.value}


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
    """Set configs of NAME. The node checks all of them before it changes any.

    A time may have a unit (retention.ms=7d), and so may a size (segment.bytes=1GiB).
    """
    resource, changes = _resource(kind, name), parse_configs(values, "CONFIG=VALUE")
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


def parse_configs(texts: Sequence[str], option: str) -> Mapping[str, str]:
    """Parse CONFIG=VALUE of a repeatable option, with times and sizes in the units of brokers. Raises BadParameter."""
    return {name: _plain_value(name, text) for name, text in parse_pairs(texts, option).items()}


def _plain_value(name: str, text: str) -> str:
    """Return a value without its unit. What is no time or size is left to the broker."""
    if name.endswith(".ms"):
        duration_ms = parse_duration(text)
        return text if duration_ms is None else str(duration_ms)
    if name.endswith(".bytes"):
        with suppress(ValueError):
            return str(parse_size(text))
    return text


def change_configs(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, plan_only: bool
) -> Sequence[ConfigChange]:
    """Change configs, and warn of those that have no effect. None: the default. Raises ClientError."""
    described = {each.name: each for each in describe_configs(cluster, resource, documentation=True)}
    known = described
    if resource.kind == "broker" and not resource.name:  # of all brokers, only what was set is described
        (*_, node_id) = cluster.nodes()
        known = {each.name: each for each in describe_configs(cluster, Resource("broker", str(node_id)))} | described
    for name in (name for name, value in changes.items() if value is None and name not in known):
        raise ClientError(f"{resource}: unknown config {name!r}{near_text(name, known) or LISTED}")
    rows = [_change(name, described.get(name), value) for name, value in changes.items()]
    # What changes nothing is only checked, not stored.
    validate_only = plan_only or not any(each.is_change for each in rows)
    try:
        alter_configs(cluster, resource, changes, validate_only=validate_only)
    except ClientError as error:
        raise ClientError(f"{error}{near_texts(changes, known)}") from None
    warn_of_no_effect([described[name] for name, value in changes.items() if value is not None and name in described])
    return rows


def _change(name: str, before: Config | None, value: str | None) -> ConfigChange:
    is_own = before is not None and before.is_own
    old = None if before is None else before.value
    return ConfigChange(name, old, value, is_change=is_own if value is None else not is_own or old != value)


def near_texts(names: Iterable[str], known: Collection[str]) -> str:
    """Return the end of a message about configs of which some are unknown, with the known ones that are near."""
    return "".join(near_text(name, known) for name in names if name not in known)


def warn_of_no_effect(configs: Iterable[Config]) -> None:
    """Say on standard error which configs a node accepts although they do nothing there."""
    for each in configs:
        _, found, reason = (each.documentation or "").partition(NO_EFFECT)
        if found:
            click.echo(f"{each.name} {NO_EFFECT}{reason}", err=True)


def change_texts(resource: Resource, rows: Sequence[ConfigChange]) -> Sequence[str]:
    """Return changes of `change_configs` for people, a line each."""
    texts = []
    for row in rows:
        value = "its default" if row.value is None else shown_value(row.value)
        before = (
            "(unchanged)"
            if not row.is_change
            else f"(was {'unset' if row.before is None else shown_value(row.before)})"
        )
        texts.append(f"{resource}: {row.name} = {value} {before}")
    return texts


def outcome_lines(*, is_change: bool, plan_only: bool) -> Sequence[str]:
    """Return the last line for people, if nothing was changed."""
    if not is_change:
        return ["nothing to change"]
    return ["nothing was changed"] if plan_only else []


def _emit_changes(output: str, resource: Resource, rows: Sequence[ConfigChange], *, plan_only: bool) -> None:
    is_change = any(each.is_change for each in rows)
    data = {
        "kind": resource.kind,
        "name": resource.name or ALL_BROKERS,
        "changed": is_change and not plan_only,
        "configs": [each.data() for each in rows],
    }
    lines = [*change_texts(resource, rows), *outcome_lines(is_change=is_change, plan_only=plan_only)]
    emit(output, data, "\n".join(lines))
