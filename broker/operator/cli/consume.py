"""`anabranch consume`: records of topics as lines."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

import click

from anabranch.broker.operator.cli.arguments import PointType
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.consume_group import GroupRead
from anabranch.broker.operator.cli.consume_ranges import find_bounds, plan_ranges
from anabranch.broker.operator.cli.consume_source import RangeRead, Read
from anabranch.broker.operator.cli.points import Point
from anabranch.broker.operator.cli.record_lines import TEMPLATE, BadLine, ReadRecord, Writer, make_writer

Decode = Callable[[Sequence[ReadRecord]], Sequence[ReadRecord]]
"""Returns records as they are shown."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Records that are shown. None: all are."""

    key: bytes | None
    contains: bytes | None

    def select(self, records: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """Return the records that are shown."""
        if self.key is not None:
            records = [each for each in records if each.key == self.key]
        if self.contains is not None:
            records = [each for each in records if self.contains in (each.value or b"")]
        return records


@click.command(short_help="Print the records of topics.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-f",
    "--format",
    "form",
    default="text",
    metavar="FORMAT",
    show_default=True,
    help=f"text, json (one object a line), raw (values), hex, or a template: {TEMPLATE}.",
)
@click.option(
    "-o",
    "--from",
    "start",
    type=PointType(),
    metavar="PLACE",
    help="earliest, latest, OFFSET, -N (the last N records), a time (2026-11-25T08:00), or an age (2h ago)."
    "  [default: earliest; with --follow: latest]",
)
@click.option("--json-values", is_flag=True, help="With json: show values that are objects or lists as such.")
@click.option("--until", type=PointType(), metavar="PLACE", help="End before this place, given as for --from.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Partition; repeatable.")
@click.option("-k", "--key", help="Show only records with this key.")
@click.option("--contains", metavar="TEXT", help="Show only records whose value contains this text.")
@click.option("-n", "--limit", type=click.IntRange(1), help="End after so many shown records.")
@click.option("--follow", is_flag=True, help="Wait for new records at the end.")
@click.option(
    "-g", "--group", metavar="NAME", help="Read as a member of this group, from its offsets, and commit them."
)
@click.option(
    "--share",
    metavar="GROUP",
    help="Take records as a member of this share group: no other member gets what this one has.",
)
@click.option(
    "--ack",
    "acknowledgement",
    type=click.Choice(["accept", "release", "reject"]),
    help="With --share: accept what was printed, release it to be delivered again (after the command has ended), or"
    " reject it.  [default: accept]",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    help="read_uncommitted also shows records of open and aborted transactions. A share group has a config for that."
    "  [default: read_committed]",
)
@click.option(
    "--use-schema-registry",
    is_flag=True,
    help="Show keys and values that begin with the id of a schema as JSON: Avro, Protobuf, JSON Schema.",
)
@click.option(
    "--schema-registry",
    "registry_url",
    metavar="URL",
    help="The same, with the schema registry at this URL"
    "  [default: the property schema.registry.url, else that of the cluster, at its admin port]",
)
@client_options
def consume(  # noqa: PLR0913 - its options
    topics: Sequence[str],
    *,
    form: str,
    start: Point | None,
    until: Point | None,
    partitions: Sequence[int],
    key: str | None,
    contains: str | None,
    limit: int | None,
    group: str | None,
    share: str | None,
    acknowledgement: str | None,
    isolation_level: str | None,
    client: CommandClient,
    follow: bool,
    json_values: bool,
    use_schema_registry: bool,
    registry_url: str | None,
) -> None:
    """Print the records of TOPIC... until the end that they have now.

    Records of one partition are in order. Lines of text begin with partition and offset, and of several topics with
    the topic, too. Ctrl-C ends the command with exit code 130.

    With --share it prints what the group delivers to it, and ends when nothing is left, or nothing has come for three
    seconds because other members have the rest.
    """
    try:
        writer = make_writer(form, names_topics=len(set(topics)) > 1, json_values=json_values)
    except BadLine as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    if json_values and form != "json":
        raise click.UsageError("--json-values needs --format json")
    uses_registry = use_schema_registry or registry_url is not None
    if uses_registry and form == "hex":
        raise click.UsageError("a schema registry shows JSON: give another --format than hex")
    shown = Filter(None if key is None else key.encode(), None if contains is None else contains.encode())
    read_committed = isolation_level != "read_uncommitted"
    if start is not None and until is not None and start.is_after(until):
        raise click.UsageError("--from is after --until")
    read: Read
    if share is not None:
        others = {"--group": group, "--partition": partitions, "--until": until, "--isolation-level": isolation_level}
        if refused := [name for name, value in others.items() if value]:
            raise click.UsageError(f"--share: not with {refused[0]}")
        if key is not None or contains is not None:
            raise click.UsageError("--share: not with --key or --contains, which would hide records that are taken")
        read = _share_read(client, topics, share, start, acknowledgement or "accept", limit, follow=follow)
    elif acknowledgement is not None:
        raise click.UsageError("--ack needs --share")
    elif group is not None:
        if partitions or until is not None or (start is not None and start.kind not in {"earliest", "latest"}):
            raise click.UsageError(
                "--group: its offsets say where to read; --from may be earliest or latest, for a new group"
            )
        with client.cluster() as cluster:
            cluster.topics(topics)
        read = GroupRead(
            client, topics, group, start or Point("earliest"), follow=follow, read_committed=read_committed
        )
    else:
        read = _range_read(client, topics, partitions, start, until, follow=follow, read_committed=read_committed)
    with ExitStack() as stack:
        decode: Decode = list
        if uses_registry:
            # Imported late: it loads what decodes, which most calls do not need.
            from anabranch.broker.operator.cli.consume_schemas import SchemaView, find_registry

            decode = stack.enter_context(SchemaView(find_registry(client, registry_url))).decode
        _print(read, sys.stdout.buffer, writer, shown, limit, decode)


def _range_read(
    client: CommandClient,
    topics: Sequence[str],
    partitions: Sequence[int],
    start: Point | None,
    until: Point | None,
    *,
    follow: bool,
    read_committed: bool,
) -> Read:
    place = start or Point("latest" if follow else "earliest")
    with client.cluster() as cluster:
        bounds = find_bounds(cluster, dict.fromkeys(topics, partitions), read_committed=read_committed)
        ranges = plan_ranges(cluster, bounds, place, until, follow=follow)
    if not ranges and (start or until) is not None:
        where = (
            "before --until"
            if start is None
            else "at or after --from"
            if until is None
            else "between --from and --until"
        )
        click.echo(f"no record is {where}: {bounds}", err=True)
    return RangeRead(client, ranges, follow=follow, read_committed=read_committed)


def _share_read(
    client: CommandClient,
    topics: Sequence[str],
    group: str,
    start: Point | None,
    acknowledgement: str,
    limit: int | None,
    *,
    follow: bool,
) -> Read:
    if start is not None and start.kind not in {"earliest", "latest"}:
        raise click.UsageError("--share: --from may be earliest or latest, for a new group")
    if follow and acknowledgement == "release":
        raise click.UsageError("--ack release gives records back at the end: not with --follow")
    # Imported late: it loads messages that most calls do not need.
    from anabranch.broker.operator.cli.consume_share import ShareRead

    return ShareRead(client, topics, group, start, acknowledgement=acknowledgement, limit=limit, follow=follow)


def _print(read: Read, output: BinaryIO, writer: Writer, shown: Filter, limit: int | None, decode: Decode) -> None:
    left = limit
    with read:
        for stored in read.batches():
            position = 0
            while position < len(stored) and left != 0:
                # As many as may be shown at most: those behind the last one are neither read nor decoded.
                records = decode(stored[position : None if left is None else position + left])
                chosen = shown.select(records)
                output.write(b"".join(map(writer, chosen)))
                read.done(records)
                position += len(records)
                left = None if left is None else left - len(chosen)
            output.flush()
            read.flushed()
            if left == 0:
                return
