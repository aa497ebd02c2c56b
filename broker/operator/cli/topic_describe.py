"""`anabranch topic describe`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from rich.console import Console

from anabranch.broker.operator.cli.client import CommandClient, client_options, id_text
from anabranch.broker.operator.cli.topic_table import shown_value
from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place
from anabranch.client.configs import Resource, describe_configs
from anabranch.client.followers import follower_lags
from anabranch.output import emit, make_table, number_text, output_option, show_each
from anabranch.protocol.messages.metadata import MetadataResponseTopic


@click.command(short_help="Show partitions, offsets and own configs.")
@click.argument("names", nargs=-1, required=True)
@output_option
@client_options
def describe(names: tuple[str, ...], client: CommandClient, output: str) -> None:
    """Show the partitions, offsets and own configs of each topic in NAMES.

    A replica follows while consumers read the newest records from it.
    """
    with client.cluster() as cluster:
        topics = cluster.topics(names)
        offsets = {time: cluster.list_offsets(topics, time) for time in (EARLIEST, LATEST)}
        lags = follower_lags(cluster, topics)
        found = [_describe(cluster, item, offsets, lags) for item in topics]

    emit(output, found, partial(show_each, found, _show))


def _describe(
    cluster: Cluster,
    item: MetadataResponseTopic,
    offsets: Mapping[int, Mapping[Place, int]],
    lags: Mapping[Place, Mapping[int, int]],
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
                "replicas": partition.replica_nodes,
                "followers": [{"node": node_id, "lag": lag} for node_id, lag in sorted(lags.get(place, {}).items())],
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
        console.print(f"  {key} = {shown_value(value)}", highlight=False, markup=False)
    numbers = ("first", "end", "offsets")
    table = make_table(
        "partition", "leader", "epoch", "replicas", *numbers, right=("partition", "leader", "epoch", *numbers)
    )
    for each in found["partitions"]:
        leader = "none" if each["leader"] is None else str(each["leader"])
        behind = {follower["node"]: follower["lag"] for follower in each["followers"]}
        replicas = ", ".join(_replica_text(node_id, behind.get(node_id)) for node_id in each["replicas"])
        offsets = [number_text(each[name]) for name in numbers]
        table.add_row(str(each["partition"]), leader, str(each["epoch"]), replicas, *offsets)
    console.print(table)


def _replica_text(node_id: int, lag: int | None) -> str:
    if lag is None:
        return str(node_id)
    return f"{node_id} ({number_text(lag)} behind)" if lag else f"{node_id} (follows)"
