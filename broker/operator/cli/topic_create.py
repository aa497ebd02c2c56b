"""`anabranch topic create`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import click

from anabranch.broker.operator.cli.client import CommandClient, client_options, id_text
from anabranch.broker.operator.cli.config import near_texts, parse_configs, warn_of_no_effect
from anabranch.broker.operator.cli.topic_table import table_options
from anabranch.client.cluster import TIMEOUT_MS, topic_error
from anabranch.client.configs import Resource, describe_configs
from anabranch.client.errors import ClientError
from anabranch.output import count_text, emit, output_option
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


@click.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1), help="Number of partitions  [default: the node's]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="Number of nodes that serve reads of each partition; durability is the same with 1  [default: the node's]",
)
@click.option(
    "-c",
    "--set",
    "--config",
    "configs",
    multiple=True,
    metavar="CONFIG=VALUE",
    help="Set a config, such as retention.ms=7d; repeatable. --config is its name in Kafka's tools.",
)
@table_options
@output_option
@client_options
def create(
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[str],
    table_configs: Mapping[str, str],
    client: CommandClient,
    output: str,
) -> None:
    """Create the topic NAME.

    With --table its records are the rows of an Iceberg table, too: see `anabranch table`.
    """
    wanted_configs = {**table_configs, **parse_configs(configs, "--set")}
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions if partitions is not None else -1,
        replication_factor=replication_factor if replication_factor is not None else -1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in wanted_configs.items()],
    )
    with client.cluster() as cluster:
        answer: CreateTopicsResponse = cluster.first.call(CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
        (result,) = answer.topics
        if result.error_code:
            refusal = topic_error(name, result.error_code, result.error_message)
            raise ClientError(f"{refusal}{_near(result, wanted_configs)}")
        if wanted_configs:
            with suppress(ClientError):  # who may create the topic may not see its configs
                found = describe_configs(cluster, Resource("topic", name), documentation=True)
                warn_of_no_effect(each for each in found if each.is_own)
    count = result.num_partitions if result.num_partitions > 0 else partitions
    data = {"topic": result.name, "id": id_text(result.topic_id), "partitions": count}
    text = f"created topic {result.name}" + (f" with {count_text(count, 'partition')}" if count else "")
    emit(output, data, f"{text}, a table" if table_configs else text)


def _near(result: CreatableTopicResult, configs: Mapping[str, str]) -> str:
    """Return the end of a message about a refused topic: the configs that are near, if one was unknown."""
    if result.error_code != ErrorCode.INVALID_CONFIG:
        return ""
    # Imported late: a topic that does not exist has no configs that a broker could list.
    from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS

    return near_texts(configs, TOPIC_CONFIGS)
