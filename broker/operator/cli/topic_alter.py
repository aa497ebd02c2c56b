"""`anabranch topic alter`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from anabranch.broker.operator.cli.arguments import plan_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.config import (
    ConfigChange,
    change_configs,
    change_texts,
    outcome_lines,
    parse_configs,
)
from anabranch.broker.operator.cli.topic_table import table_options
from anabranch.client.cluster import TIMEOUT_MS, Cluster
from anabranch.client.configs import Resource
from anabranch.client.connection import error_text
from anabranch.output import count_text, emit, output_option
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)


@click.command(short_help="Change configs, or add partitions.")
@click.argument("name")
@click.option("-c", "--set", "values", multiple=True, metavar="CONFIG=VALUE", help="Set a config; repeatable.")
@click.option("--unset", "removed", multiple=True, metavar="CONFIG", help="Return to the default; repeatable.")
@click.option("-p", "--partitions", type=click.IntRange(1), help="New number of partitions; it can only grow.")
@table_options
@plan_option
@output_option
@client_options
def alter(
    name: str,
    *,
    values: Sequence[str],
    removed: Sequence[str],
    partitions: int | None,
    table_configs: Mapping[str, str],
    plan_only: bool,
    client: CommandClient,
    output: str,
) -> None:
    """Change configs of the topic NAME, make it a table, or add partitions.

    Records keep their partitions. With more of them, a key may go to another partition than before.
    """
    changes = {**table_configs, **parse_configs(values, "--set"), **dict.fromkeys(removed)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --set, --unset, --table or --partitions")
    resource = Resource("topic", name)
    data: dict[str, Any] = {"topic": name, "changed": False, "partitions": None, "configs": []}
    lines: list[str] = []
    rows: Sequence[ConfigChange] = ()
    is_change = False
    with client.cluster() as cluster:
        if partitions is not None:
            (item,) = cluster.topics([name])
            before = len(item.partitions)
            is_change = before != partitions
            if is_change:  # checked before any config is changed
                _add_partitions(cluster, name, partitions, plan_only=True)
            data["partitions"] = {"from": before, "to": partitions}
            was = f"was {before:,}" if is_change else "unchanged"
            lines.append(f"topic {name}: {count_text(partitions, 'partition')} ({was})")
        if changes:
            rows = change_configs(cluster, resource, changes, plan_only=plan_only)
            data["configs"] = [each.data() for each in rows]
            lines += change_texts(resource, rows)
        if partitions is not None and is_change and not plan_only:
            _add_partitions(cluster, name, partitions, plan_only=False)
    is_change |= any(each.is_change for each in rows)
    data["changed"] = is_change and not plan_only
    emit(output, data, "\n".join([*lines, *outcome_lines(is_change=is_change, plan_only=plan_only)]))


def _add_partitions(cluster: Cluster, name: str, partitions: int, *, plan_only: bool) -> None:
    wanted = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=plan_only)
    answer: CreatePartitionsResponse = cluster.first.call(request)
    result = answer.results[0]
    if result.error_code:
        raise click.ClickException(f"topic {name}: {error_text(result.error_code, result.error_message)}")
