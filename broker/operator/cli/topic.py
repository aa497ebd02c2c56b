"""`anabranch topic ...`: topics of a running node.

Create, list, describe, alter and delete use Kafka's protocol. For requests that Kafka does not have, see `topic_moves`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.operator.cli.arguments import plan_option, yes_option
from anabranch.broker.operator.cli.client import CommandClient, client_options, id_text
from anabranch.broker.operator.cli.config import (
    ConfigChange,
    change_configs,
    change_texts,
    near_texts,
    outcome_lines,
    parse_configs,
    warn_of_no_effect,
)
from anabranch.broker.operator.cli.questions import confirm
from anabranch.broker.operator.cli.topic_list import list_
from anabranch.broker.operator.cli.topic_move import move
from anabranch.broker.operator.cli.topic_moves import attach, clone, detach, detached
from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place, topic_error
from anabranch.client.configs import Resource, describe_configs
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.output import count_text, emit, make_table, number_text, output_option, show_each
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from anabranch.protocol.messages.metadata import MetadataResponseTopic

TIMEOUT_MS: Final = 30_000
DELETE_BY_STATE: Final = 6
"""First version of DeleteTopics that accepts ids as well as names."""


@click.group()
def topic() -> None:
    """Create, list, describe, alter, move, delete, detach, attach and clone topics of a running node."""


for command in (list_, move, detach, attach, clone, detached):
    topic.add_command(command)


@topic.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1), help="Number of partitions  [default: the node's]")
@click.option(
    "-c",
    "--set",
    "--config",
    "configs",
    multiple=True,
    metavar="CONFIG=VALUE",
    help="Set a config, such as retention.ms=7d; repeatable. --config is its name in Kafka's tools.",
)
@output_option
@client_options
def create(name: str, partitions: int | None, configs: Sequence[str], client: CommandClient, output: str) -> None:
    """Create the topic NAME."""
    wanted_configs = parse_configs(configs, "--set")
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions if partitions is not None else -1,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in wanted_configs.items()],
    )
    with client.cluster() as cluster:
        answer: CreateTopicsResponse = cluster.first.call(CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
        (result,) = answer.topics
        if result.error_code:
            refusal = topic_error(name, result.error_code, result.error_message)
            raise ClientError(f"{refusal}{_near(result, wanted_configs)}")
        if configs:
            with suppress(ClientError):  # who may create the topic may not see its configs
                found = describe_configs(cluster, Resource("topic", name), documentation=True)
                warn_of_no_effect(each for each in found if each.is_own)
    count = result.num_partitions if result.num_partitions > 0 else partitions
    data = {"topic": result.name, "id": id_text(result.topic_id), "partitions": count}
    emit(output, data, f"created topic {result.name}" + (f" with {count_text(count, 'partition')}" if count else ""))


def _near(result: CreatableTopicResult, configs: Mapping[str, str]) -> str:
    """Return the end of a message about a refused topic: the configs that are near, if one was unknown."""
    if result.error_code != ErrorCode.INVALID_CONFIG:
        return ""
    # Imported late: a topic that does not exist has no configs that a broker could list.
    from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS

    return near_texts(configs, TOPIC_CONFIGS)


@topic.command(short_help="Show partitions, offsets and own configs.")
@click.argument("names", nargs=-1, required=True)
@output_option
@client_options
def describe(names: tuple[str, ...], client: CommandClient, output: str) -> None:
    """Show the partitions, offsets and own configs of each topic in NAMES."""
    with client.cluster() as cluster:
        topics = cluster.topics(names)
        offsets = {time: cluster.list_offsets(topics, time) for time in (EARLIEST, LATEST)}
        found = [_describe(cluster, item, offsets) for item in topics]

    emit(output, found, partial(show_each, found, _show))


def _describe(
    cluster: Cluster, item: MetadataResponseTopic, offsets: Mapping[int, Mapping[Place, int]]
) -> Mapping[str, Any]:
    assert item.name is not None, "asked for by name"
    partitions = []
    for partition in sorted(item.partitions, key=lambda each: each.partition_index):
        place = (item.name, partition.partition_index)
        first, end = (offsets[time].get(place) for time in (EARLIEST, LATEST))
        partitions.append(
            {
                "partition": partition.partition_index,
                "leader": None if partition.leader_id < 0 else partition.leader_id,
                "epoch": partition.leader_epoch,
                "first": first,
                "end": end,
                "offsets": None if first is None or end is None else end - first,
            }
        )
    configs = describe_configs(cluster, Resource("topic", item.name))
    return {
        "topic": item.name,
        "id": id_text(item.topic_id),
        "configs": {each.name: each.value for each in configs if each.is_own},
        "partitions": partitions,
    }


def _show(found: Mapping[str, Any], console: Console) -> None:
    console.print(f"[bold]{found['topic']}[/bold]  id {found['id']}", highlight=False)
    for key, value in found["configs"].items():
        console.print(f"  {key} = {value}", highlight=False, markup=False)
    names = ("partition", "leader", "epoch", "first", "end", "offsets")
    table = make_table(*names, right=names)
    for each in found["partitions"]:
        leader = "none" if each["leader"] is None else str(each["leader"])
        offsets = [number_text(each[name]) for name in names[3:]]
        table.add_row(str(each["partition"]), leader, str(each["epoch"]), *offsets)
    console.print(table)


@topic.command(short_help="Change configs, or add partitions.")
@click.argument("name")
@click.option("-c", "--set", "values", multiple=True, metavar="CONFIG=VALUE", help="Set a config; repeatable.")
@click.option("--unset", "removed", multiple=True, metavar="CONFIG", help="Return to the default; repeatable.")
@click.option("-p", "--partitions", type=click.IntRange(1), help="New number of partitions; it can only grow.")
@plan_option
@output_option
@client_options
def alter(
    name: str,
    *,
    values: Sequence[str],
    removed: Sequence[str],
    partitions: int | None,
    plan_only: bool,
    client: CommandClient,
    output: str,
) -> None:
    """Change configs of the topic NAME, or add partitions.

    Records keep their partitions. With more of them, a key may go to another partition than before.
    """
    changes = {**parse_configs(values, "--set"), **dict.fromkeys(removed)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --set, --unset or --partitions")
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


@topic.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@output_option
@client_options
def delete(names: tuple[str, ...], yes: bool, client: CommandClient, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Delete the topics in NAMES, with all their records. If one does not exist, none is deleted."""
    with client.cluster() as cluster:
        found = cluster.topics(names)
        if not yes:
            partitions = count_text(sum(len(each.partitions) for each in found), "partition")
            which = f"topic {names[0]}" if len(names) == 1 else f"the topics {', '.join(names)}"
            confirm(f"Delete {which}, with all records in {partitions}?")
        connection = cluster.first
        if connection.version(DeleteTopicsRequest) >= DELETE_BY_STATE:
            topics = [DeleteTopicState(name=name) for name in names]
            request = DeleteTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
        else:
            request = DeleteTopicsRequest(topic_names=names, timeout_ms=TIMEOUT_MS)
        answer: DeleteTopicsResponse = connection.call(request)
    failures = [
        f"topic {result.name}: {error_text(result.error_code, result.error_message)}"
        for result in answer.responses
        if result.error_code
    ]
    deleted = [result.name for result in answer.responses if not result.error_code]
    if deleted or not failures:
        emit(output, {"deleted": deleted}, "\n".join(f"deleted topic {name}" for name in deleted))
    if failures:
        raise click.ClickException("; ".join(failures))
