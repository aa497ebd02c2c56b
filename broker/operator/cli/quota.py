"""`anabranch quota ...`: quotas of users, client ids and addresses (KIP-546), with the options of `kafka-configs`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.kafka.quotas.entities import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    CONSUMER_BYTE_RATE,
    ENTITY_TYPES,
    IP,
    IP_QUOTAS,
    PRODUCER_BYTE_RATE,
    USER,
    QuotaEntity,
)
from anabranch.broker.kafka.quotas.requests import alter_request
from anabranch.broker.node.settings.sizes import parse_size, size_text
from anabranch.broker.operator.cli.arguments import parse_pairs, plan_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.client.cluster import Cluster
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.output import emit, make_table, output_option, plain
from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasResponse
from anabranch.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from anabranch.spelling import near_text

EXACT, DEFAULT = 0, 1
"""Match types of a filter."""
_OPTIONS: Final = {USER: "user", CLIENT_ID: "client", IP: "ip"}
"""Names of the options by type of entity."""
_WORDS: Final = {USER: "user", CLIENT_ID: "client id", IP: "address"}
_SIZES: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})


@click.group()
def quota() -> None:
    """List, set and remove quotas of users, client ids and addresses.

    \b
    producer_byte_rate, consumer_byte_rate  bytes a second, also as 10MiB, of users and client ids
    request_percentage                      share of the node's time, of users and client ids
    controller_mutation_rate                partitions created or deleted a second, of users and client ids
    connection_creation_rate                connections a second, of addresses
    """


def _entity_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an entity; the command receives it as `entity`."""

    def run(**arguments: Any) -> None:
        names: dict[str, str | None] = {}
        for kind, option in _OPTIONS.items():
            name, is_default = arguments.pop(option), arguments.pop(f"{option}_defaults")
            if name is not None and is_default:
                raise click.UsageError(f"--{option} and --{option}-defaults exclude each other")
            if name is not None or is_default:
                names[kind] = name
        command(entity=QuotaEntity.of(names), **arguments)

    wrapped: Callable[..., None] = update_wrapper(run, command)
    for kind in reversed(ENTITY_TYPES):
        option, words = _OPTIONS[kind], _WORDS[kind]
        about = f"Each {words} that has no quota of its own."
        wrapped = click.option(f"--{option}-defaults", is_flag=True, help=about)(wrapped)
        wrapped = click.option(f"--{option}", metavar="NAME", help=f"This {words}.")(wrapped)
    return wrapped


@quota.command(name="list", short_help="List quotas.")
@_entity_options
@output_option
@client_options
def list_(entity: QuotaEntity, client: CommandClient, output: str) -> None:
    """List the quotas that are set: all, or those of the named user, client id or address, also in combinations."""
    with client.cluster() as cluster:
        found = _find(cluster, entity, strict=False)
    rows = [{"entity": _entity_data(each), "quotas": quotas} for each, quotas in found.items()]

    def show(console: Console) -> None:
        table = make_table("of", "quota", "value", right=("value",))
        for each, quotas in found.items():
            for name, value in quotas.items():
                table.add_row(plain(_entity_text(each)), plain(name), _value_text(name, value))
        console.print(table if rows else "no quota is set")

    emit(output, rows, show)


@quota.command(name="set", short_help="Set quotas.")
@click.argument("values", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@_entity_options
@plan_option
@output_option
@client_options
def set_(values: Sequence[str], entity: QuotaEntity, *, plan_only: bool, client: CommandClient, output: str) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    \b
    anabranch quota set consumer_byte_rate=1MiB --user-defaults
    anabranch quota set producer_byte_rate=10MiB request_percentage=20 --user etl --client loader
    anabranch quota set connection_creation_rate=10 --ip-defaults
    """
    _check(entity)
    known = IP_QUOTAS if IP in dict(entity.parts) else CLIENT_QUOTAS
    changes = {name: _parse(name, text, known) for name, text in parse_pairs(values, "QUOTA=VALUE").items()}
    with client.cluster() as cluster:
        before = _find(cluster, entity, strict=True).get(entity, {})
        _alter(cluster, entity, changes, plan_only=plan_only)
    _emit_changes(output, entity, before, changes, plan_only=plan_only)


@quota.command(short_help="Remove quotas.")
@click.argument("names", metavar="[QUOTA...]", nargs=-1)
@_entity_options
@plan_option
@output_option
@client_options
def remove(names: Sequence[str], entity: QuotaEntity, *, plan_only: bool, client: CommandClient, output: str) -> None:
    """Remove quotas of a user, a client id, both together, or an address: QUOTA..., or all that it has."""
    _check(entity)
    with client.cluster() as cluster:
        before = _find(cluster, entity, strict=True).get(entity, {})
        if missing := [name for name in names if name not in before] or ([] if before else ["quota"]):
            raise ClientError(f"{_entity_text(entity)} has no {missing[0]}")
        changes = dict.fromkeys(names or before)
        _alter(cluster, entity, changes, plan_only=plan_only)
    _emit_changes(output, entity, before, changes, plan_only=plan_only)


def _check(entity: QuotaEntity) -> None:
    """Raise UsageError unless an entity can have quotas."""
    kinds = {kind for kind, _ in entity.parts}
    if not kinds or (IP in kinds and len(kinds) > 1):
        raise click.UsageError("name who: --user and --client, alone or together, or --ip (or with -defaults)")


def _parse(name: str, text: str, known: Iterable[str]) -> float:
    """Parse the value of a quota. Raises BadParameter."""
    if name not in known:
        raise click.BadParameter(f"unknown quota {name!r}{near_text(name, known)}", param_hint="QUOTA=VALUE")
    try:
        return parse_size(text) if name in _SIZES else float(text)
    except ValueError as error:
        reason = str(error) if name in _SIZES else "should be a number"
        raise click.BadParameter(f"{name}: {text!r} {reason}", param_hint="QUOTA=VALUE") from None


def _find(cluster: Cluster, entity: QuotaEntity, *, strict: bool) -> Mapping[QuotaEntity, Mapping[str, float]]:
    """Return the quotas of an entity, with those of its combinations if not strict. Raises ClientError."""
    components = [
        ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in entity.parts
    ]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    answer: DescribeClientQuotasResponse = cluster.first.call(request)
    if answer.error_code:
        raise ClientError(error_text(answer.error_code, answer.error_message))
    found = {
        QuotaEntity.of({part.entity_type: part.entity_name for part in entry.entity}): {
            each.key: int(each.value) if each.value.is_integer() else each.value for each in entry.values
        }
        for entry in answer.entries or ()
    }
    return dict(sorted(found.items(), key=lambda item: _entity_text(item[0])))


def _alter(cluster: Cluster, entity: QuotaEntity, changes: Mapping[str, float | None], *, plan_only: bool) -> None:
    request = alter_request(entity, changes, validate_only=plan_only)
    answer: AlterClientQuotasResponse = cluster.first.call(request)
    for result in answer.entries:
        if result.error_code:
            raise ClientError(f"{_entity_text(entity)}: {error_text(result.error_code, result.error_message)}")


def _emit_changes(
    output: str,
    entity: QuotaEntity,
    before: Mapping[str, float],
    changes: Mapping[str, float | None],
    *,
    plan_only: bool,
) -> None:
    is_change = any(before.get(name) != value for name, value in changes.items())
    data = {
        "entity": _entity_data(entity),
        "changed": is_change and not plan_only,
        "quotas": [{"name": name, "from": before.get(name), "to": value} for name, value in changes.items()],
    }
    lines = []
    for name, value in changes.items():
        was, now = before.get(name), "unset" if value is None else _value_text(name, value)
        ending = "(unchanged)" if was == value else f"(was {'unset' if was is None else _value_text(name, was)})"
        lines.append(f"{_entity_text(entity)}: {name} = {now} {ending}")
    if plan_only:
        lines.append("nothing was changed")
    emit(output, data, "\n".join(lines))


def _entity_data(entity: QuotaEntity) -> Sequence[Mapping[str, str | None]]:
    """Return an entity for JSON and YAML. A name is null for the default of its type."""
    return [{"type": kind, "name": name} for kind, name in entity.parts]


def _entity_text(entity: QuotaEntity) -> str:
    words = ((_WORDS.get(kind, kind), name) for kind, name in entity.parts)
    return ", ".join(f"any {word}" if name is None else f"{word} {name}" for word, name in words)


def _value_text(name: str, value: float) -> str:
    return f"{size_text(value)}/s" if name in _SIZES else f"{value:,.12g}"
