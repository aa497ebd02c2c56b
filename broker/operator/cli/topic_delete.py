"""`anabranch topic delete`."""

from typing import Final

import click

from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.questions import confirm
from anabranch.client.cluster import TIMEOUT_MS
from anabranch.client.connection import error_text
from anabranch.output import count_text, emit, output_option
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

DELETE_BY_STATE: Final = 6
"""First version of DeleteTopics that accepts ids as well as names."""


@click.command()
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
