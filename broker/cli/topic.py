"""`anabranch topic ...`: topics of a running node.

Create, list, describe and delete use Kafka's protocol. For requests that Kafka does not have, see `topic_moves`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.table import Table

from anabranch.client.cluster import EARLIEST, LATEST
from anabranch.client.connection import Connection, error_text
from broker.cli.client import CommandClient, client_options, describe_topics, id_text
from broker.cli.output import make_console
from broker.cli.topic_move import move
from broker.cli.topic_moves import attach, clone, detach, detached
from protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

TIMEOUT_MS: Final = 30_000
TOPIC_RESOURCE: Final = 2
TOPIC_CONFIG_SOURCE: Final = 1
DELETE_BY_STATE: Final = 6
"""First version of DeleteTopics that accepts ids as well as names."""


@click.group()
def topic() -> None:
    """Create, list, describe, move, delete, detach, attach and clone topics of a running node."""


for command in (move, detach, attach, clone, detached):
    topic.add_command(command)


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions  [default: the node's]")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A config of the topic; repeatable.")
@client_options
def create(name: str, partitions: int | None, configs: Sequence[str], client: CommandClient) -> None:
    """Create the topic NAME."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions if partitions is not None else -1,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in _parse_configs(configs).items()],
    )
    with client.connect() as connection:
        answer: CreateTopicsResponse = connection.call(CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
    for result in answer.topics:
        if result.error_code:
            raise click.ClickException(f"topic {name}: {error_text(result.error_code, result.error_message)}")
        count = result.num_partitions if result.num_partitions > 0 else partitions
        click.echo(
            f"created topic {result.name}" + (f" with {count} partition{'s' if count != 1 else ''}" if count else "")
        )


def _parse_configs(configs: Sequence[str]) -> Mapping[str, str]:
    parsed = {}
    for text in configs:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {text!r}", param_hint="--config")
        parsed[name] = value
    return parsed


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@client_options
def list_(internal: bool, client: CommandClient) -> None:  # noqa: FBT001 - click passes by name
    """List topics with their partitions."""
    with client.connect() as connection:
        answer = describe_topics(connection)
    table = Table("topic", "id", "partitions", "leaders", box=None, header_style="bold")
    for item in sorted(answer.topics, key=lambda each: each.name or ""):
        if internal or not item.is_internal:
            leaders = sorted({partition.leader_id for partition in item.partitions})
            partitions = str(len(item.partitions))
            table.add_row(item.name, id_text(item.topic_id), partitions, ", ".join(map(str, leaders)))
    make_console().print(table)


@topic.command(short_help="Show partitions, offsets and own configs.")
@click.argument("names", nargs=-1, required=True)
@client_options
def describe(names: tuple[str, ...], client: CommandClient) -> None:
    """Show the partitions, offsets and own configs of each topic in NAMES."""
    console = make_console()
    with client.cluster() as cluster:
        topics = cluster.topics(names)
        offsets = {time: cluster.list_offsets(topics, time) for time in (EARLIEST, LATEST)}
        for item in topics:
            assert item.name is not None, "asked for by name"
            configs = _own_configs(cluster.first, item.name)
            console.print(f"[bold]{item.name}[/bold]  id {id_text(item.topic_id)}", highlight=False)
            for key, value in configs.items():
                console.print(f"  {key} = {value}", highlight=False)
            table = Table("partition", "leader", "epoch", "first", "end", "offsets", box=None, header_style="bold")
            for partition in sorted(item.partitions, key=lambda each: each.partition_index):
                place = (item.name, partition.partition_index)
                first, end = (offsets[time].get(place) for time in (EARLIEST, LATEST))
                table.add_row(
                    str(partition.partition_index),
                    "none" if partition.leader_id < 0 else str(partition.leader_id),
                    str(partition.leader_epoch),
                    _number(first),
                    _number(end),
                    _number(None if first is None or end is None else end - first),
                )
            console.print(table)


def _own_configs(connection: Connection, name: str) -> Mapping[str, str | None]:
    """Return the configs set for this topic; empty if the node does not report them."""
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
    answer: DescribeConfigsResponse = connection.call(DescribeConfigsRequest(resources=[resource]))
    return {
        config.name: config.value
        for result in answer.results
        for config in result.configs
        if config.config_source == TOPIC_CONFIG_SOURCE
    }


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete(names: tuple[str, ...], yes: bool, client: CommandClient) -> None:  # noqa: FBT001 - click passes by name
    """Delete the topics in NAMES, with all their records."""
    if not yes:
        click.confirm(f"Delete {', '.join(names)} and all their records?", abort=True)
    with client.connect() as connection:
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
    for result in answer.responses:
        if not result.error_code:
            click.echo(f"deleted topic {result.name}")
    if failures:
        raise click.ClickException("; ".join(failures))


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
