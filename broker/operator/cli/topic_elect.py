"""`anabranch topic elect`: partitions get their preferred leaders back, or any leader at the price of a lost log."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import click
from rich.console import Console

from anabranch.broker.operator.cli.arguments import parse_partitions, yes_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.progress import progress
from anabranch.broker.operator.cli.questions import confirm
from anabranch.client.cluster import Cluster, Place
from anabranch.client.connection import Connection, error_text
from anabranch.output import count_text, emit, output_option
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions

PREFERRED, UNCLEAN = 0, 1
REQUEST_PARTITIONS: Final = 64
"""Partitions of a request: a node moves a few at a time, and the answer must come before the connection times out."""
REQUEST_TIMEOUT_MS: Final = 25_000


@click.command(short_help="Bring partitions back to their preferred leaders.")
@click.argument("places", metavar="[TOPIC[:PARTITION,...]...]", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All partitions of all topics.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Partitions without a leader get one: records that only an unreadable log has are lost.",
)
@yes_option
@output_option
@client_options
def elect(places: Sequence[str], *, every: bool, unclean: bool, yes: bool, client: CommandClient, output: str) -> None:
    """Let the preferred leaders of topics, or of some of their partitions, lead them, and wait until they do.

    Clients see no error. Partitions that their preferred leaders lead already, or that have none, are left alone.
    Interrupting this command does not end the moves that have begun.
    """
    if every == bool(places):
        raise click.UsageError("name topics, or give --all, not both")
    with client.cluster() as cluster:
        wanted, leaderless = _find(cluster, None if every else parse_partitions(places, "TOPIC"))
        if unclean and leaderless and not yes:
            confirm(
                f"Let other nodes lead {_names(leaderless)}? Acknowledged records that only logs which no node can "
                "open have are lost for good"
            )
        answers = _elect(cluster.first, leaderless if unclean else wanted, UNCLEAN if unclean else PREFERRED)
    failed = {f"{topic}-{index}": reason for (topic, index), reason in answers.items() if reason}
    elected, needless = len(answers) - len(failed), len(wanted) - len(answers)

    def show(_console: Console) -> None:
        click.echo(f"elected leaders of {count_text(elected, 'partition')}; {needless:,} needed no election")
        for partition, reason in failed.items():
            click.echo(f"{partition} was not elected: {reason}", err=True)

    emit(output, {"elected": elected, "failed": failed, "not_needed": needless}, show)
    if failed:
        raise SystemExit(1)


def _find(cluster: Cluster, named: Mapping[str, Sequence[int]] | None) -> tuple[Sequence[Place], Sequence[Place]]:
    """Return partitions that exist, and those of them without a leader. Raises ClientError, ClickException."""
    topics = cluster.describe_topics().topics if named is None else cluster.topics(list(named))
    leaders = {(str(topic.name), each.partition_index): each.leader_id for topic in topics for each in topic.partitions}
    if named is None:
        wanted = sorted(leaders)
    else:
        wanted = [
            place
            for topic, indexes in named.items()
            for place in ([(topic, index) for index in indexes] or sorted(each for each in leaders if each[0] == topic))
        ]
        for topic, index in wanted:
            if (topic, index) not in leaders:
                raise click.ClickException(f"topic {topic} has no partition {index}")
    return wanted, [place for place in wanted if leaders[place] < 0]


def _names(places: Sequence[Place]) -> str:
    topic, index = places[0]
    return f"{topic}-{index}" if len(places) == 1 else f"{len(places):,} partitions, {topic}-{index} first,"


def _elect(connection: Connection, wanted: Sequence[Place], kind: int) -> Mapping[Place, str]:
    """Elect leaders; return why not by partition, empty where one was elected, without those that need none."""
    answers: dict[Place, str] = {}
    with progress("electing leaders") as show:
        for number, places in enumerate(_pieces(wanted)):
            show(number * REQUEST_PARTITIONS, len(wanted))
            by_topic: dict[str, list[int]] = {}
            for topic, index in places:
                by_topic.setdefault(topic, []).append(index)
            answer: ElectLeadersResponse = connection.call(
                ElectLeadersRequest(
                    election_type=kind,
                    topic_partitions=[
                        TopicPartitions(topic=topic, partitions=found) for topic, found in by_topic.items()
                    ],
                    timeout_ms=REQUEST_TIMEOUT_MS,
                )
            )
            if answer.error_code:
                raise click.ClickException(error_text(answer.error_code))
            for result in answer.replica_election_results:
                for each in result.partition_result:
                    if each.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                        reason = error_text(each.error_code, each.error_message) if each.error_code else ""
                        answers[result.topic, each.partition_id] = reason
    return answers


def _pieces(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    rest = iter(places)
    while piece := list(islice(rest, REQUEST_PARTITIONS)):
        yield piece
