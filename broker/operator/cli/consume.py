"""`anabranch consume`: records of topics as lines."""

import sys
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class Filter:
    """Records that are shown. None: all are."""

    key: bytes | None
    contains: bytes | None

    def accepts(self, record: ReadRecord) -> bool:
        """Return whether a record is shown."""
        if self.key is not None and record.key != self.key:
            return False
        return self.contains is None or self.contains in (record.value or b"")


@click.command(short_help="Print the records of topics.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    default="text",
    metavar="FORMAT",
    show_default=True,
    help=f"text, json (one object a line), raw (values), hex, or a template: {TEMPLATE}.",
)
@click.option(
    "--from",
    "start",
    type=PointType(),
    metavar="PLACE",
    help="start, end, OFFSET, -N (the last N), a time (2026-11-25T08:00), or an age (2h ago).  [default: start; with "
    "--follow: end]",
)
@click.option("--until", type=PointType(), metavar="PLACE", help="End before this place, given as for --from.")
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help="Partition; repeatable.")
@click.option("--key", help="Show only records with this key.")
@click.option("--contains", metavar="TEXT", help="Show only records whose value contains this text.")
@click.option("--limit", type=click.IntRange(1), help="End after so many shown records.")
@click.option("--follow", is_flag=True, help="Wait for new records at the end.")
@click.option("--group", metavar="NAME", help="Read as a member of this group, from its offsets, and commit them.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_uncommitted also shows records of open and aborted transactions.",
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
    isolation_level: str,
    client: CommandClient,
    follow: bool,
) -> None:
    """Print the records of TOPIC... until the end that they have now.

    Records of one partition are in order. Ctrl-C ends the command with exit code 130.
    """
    try:
        writer = make_writer(form)
    except BadLine as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    shown = Filter(None if key is None else key.encode(), None if contains is None else contains.encode())
    read_committed = isolation_level == "read_committed"
    if start is not None and until is not None and start.is_after(until):
        raise click.UsageError("--from is after --until")
    read: Read
    if group is not None:
        if partitions or until is not None or (start is not None and start.kind not in {"start", "end"}):
            raise click.UsageError(
                "--group: its offsets say where to read; --from may be start or end, for a new group"
            )
        with client.cluster() as cluster:
            cluster.topics(topics)
        read = GroupRead(client, topics, group, start or Point("start"), follow=follow, read_committed=read_committed)
    else:
        place = start or Point("end" if follow else "start")
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
        read = RangeRead(client, ranges, follow=follow, read_committed=read_committed)
    _print(read, sys.stdout.buffer, writer, shown, limit)


def _print(read: Read, output: BinaryIO, writer: Writer, shown: Filter, limit: int | None) -> None:
    left = limit
    with read:
        for records in read.batches():
            for record in records:
                if shown.accepts(record):
                    output.write(writer(record))
                    left = None if left is None else left - 1
                read.done(record)
                if left == 0:
                    break
            output.flush()
            read.flushed()
            if left == 0:
                return
