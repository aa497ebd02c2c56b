"""`anabranch group ...`: groups of a running cluster, their members, offsets and lag."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click
from rich.console import Console

from anabranch.broker.operator.cli.arguments import PointType, parse_partitions, plan_option, yes_option
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.consume_ranges import find_bounds
from anabranch.broker.operator.cli.points import Point
from anabranch.broker.operator.cli.questions import confirm
from anabranch.client.cluster import LATEST, Cluster, Place
from anabranch.client.errors import ClientError
from anabranch.client.groups import (
    SHARE,
    STREAMS,
    GroupDescription,
    GroupMissing,
    commit_offsets,
    committed_offsets,
    delete_groups,
    delete_offsets,
    delete_share_offsets,
    describe_group,
    list_groups,
    set_share_offsets,
    share_offsets,
)
from anabranch.output import count_text, emit, make_table, number_text, output_option, plain, show_each, show_plan


@click.group()
def group() -> None:
    """List, describe, move and delete groups: consumer, share and streams groups."""


@group.command(name="list", short_help="List the groups.")
@output_option
@client_options
def list_(client: CommandClient, output: str) -> None:
    """List the groups of all nodes, with their protocols, states and coordinators."""
    with client.cluster() as cluster:
        found = list_groups(cluster)
    rows = [
        {"group": each.name, "type": each.kind, "state": each.state, "coordinator": each.coordinator} for each in found
    ]
    table = make_table("group", "type", "state", "coordinator", right=("coordinator",))
    for row in rows:
        table.add_row(*(plain(str(value)) for value in row.values()))
    emit(output, rows, lambda console: console.print(table))


@group.command(short_help="Show members, offsets and lag.")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@output_option
@client_options
def describe(names: Sequence[str], client: CommandClient, output: str) -> None:
    """Show the members of each GROUP, the partitions they read, the committed offsets and the lag behind the end.

    The committed offset of a share group is the first one that is not yet processed. Of a Kafka Streams application
    (group.protocol=streams) the tasks of its members are shown, too.
    """
    with client.cluster() as cluster:
        found = [_describe(cluster, name) for name in names]

    emit(output, found, partial(show_each, found, _show))


def _describe(cluster: Cluster, name: str) -> Mapping[str, Any]:
    described = describe_group(cluster, name)
    shared = share_offsets(cluster, name) if described.kind == SHARE else None
    committed = _starts(shared) if shared is not None else committed_offsets(cluster, name)
    readers = {place: member for member in described.members for place in member.assigned}
    places = sorted({*committed, *readers})
    # A topic may have been deleted since: its metadata has an error and no partitions.
    topics = cluster.describe_topics({topic for topic, _ in places}).topics if places else ()
    ends = cluster.list_offsets(topics, LATEST)
    partitions = []
    for place in places:
        offset, end, reader = committed.get(place), ends.get(place), readers.get(place)
        lag = None if offset is None or end is None else max(0, end - offset)
        if shared is not None:  # Records are processed in any order: only the coordinator knows how many are left.
            lag = shared.get(place, (None, None))[1]
        partitions.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "end": end,
                "lag": lag,
                "member": reader.member_id if reader else None,
                "client": reader.client_id if reader else None,
                "host": reader.host if reader else None,
            }
        )
    return {
        "group": name,
        "type": described.kind,
        "state": described.state,
        "assignor": described.assignor or None,
        "members": [
            {
                "member": each.member_id,
                "client": each.client_id,
                "host": each.host,
                "partitions": len(each.assigned),
                "tasks": None if each.tasks is None else asdict(each.tasks),
            }
            for each in described.members
        ],
        "topology": [asdict(each) for each in described.topology] if described.kind == STREAMS else None,
        "lag": sum(each["lag"] or 0 for each in partitions),
        "partitions": partitions,
    }


def _starts(shared: Mapping[Place, tuple[int | None, int | None]]) -> Mapping[Place, int | None]:
    return {place: start for place, (start, _) in shared.items()}


def _show(found: Mapping[str, Any], console: Console) -> None:
    console.print(f"[bold]{plain(found['group'])}[/]  {found['state']}, {found['type']} protocol", highlight=False)
    console.print(f"{count_text(len(found['members']), 'member')}, lag {found['lag']:,}", highlight=False)
    numbers = ("partition", "committed", "end", "lag")
    table = make_table("topic", *numbers, "client", "host", right=numbers)
    for each in found["partitions"]:
        figures = [number_text(each[name]) for name in numbers[1:]]
        reader = (plain(each["client"] or "-"), plain(each["host"] or "-"))
        table.add_row(each["topic"], str(each["partition"]), *figures, *reader)
    console.print(table)
    if found["topology"] is not None:
        _show_tasks(found, console)
        return
    idle = [each for each in found["members"] if not each["partitions"]]
    if idle:
        console.print(f"without a partition: {', '.join(plain(each['member']) for each in idle)}", highlight=False)


def _show_tasks(found: Mapping[str, Any], console: Console) -> None:
    """Show subtopologies and tasks, each of which is named by its subtopology and a partition."""
    topics = ("sources", "repartition_sources", "repartition_sinks", "changelogs")
    table = make_table("subtopology", "reads", "writes", "state")
    for each in found["topology"]:
        sources, repartitioned, sinks, changelogs = (", ".join(each[name]) for name in topics)
        reads = ", ".join(filter(None, (sources, repartitioned)))
        table.add_row(plain(each["subtopology"]), reads, sinks or "-", changelogs or "-")
    console.print(table)
    kinds = ("active", "standby", "warmup")
    table = make_table("client", "host", *kinds)
    for each in found["members"]:
        tasks = (plain(", ".join(each["tasks"][kind])) or "-" for kind in kinds)
        table.add_row(plain(each["client"]), plain(each["host"]), *tasks)
    if found["members"]:
        console.print(table)


@group.command(short_help="Move the offsets of a group.")
@click.argument("name", metavar="GROUP")
@click.option(
    "--to",
    "target",
    type=PointType(),
    required=True,
    metavar="PLACE",
    help="earliest, latest, OFFSET, -N (the last N), a time (2026-11-25T08:00), or an age (2h ago).",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    help="Partitions to move; repeatable.  [default: all that the group has committed]",
)
@plan_option
@yes_option
@output_option
@client_options
def seek(
    name: str,
    *,
    target: Point,
    topics: Sequence[str],
    plan_only: bool,
    yes: bool,
    client: CommandClient,
    output: str,
) -> None:
    """Set the committed offsets of GROUP, so that it continues from PLACE. Its members must have stopped.

    The changes are shown before they are made. A place that a partition does not have is replaced by its nearest one.
    A share group begins anew there: what it has processed behind it is delivered again. Of a Kafka Streams application
    its input topics are moved; it keeps its internal topics, and so its state.
    """
    wanted = parse_partitions(topics, "--topic")
    with client.cluster() as cluster:
        try:
            described = describe_group(cluster, name)
        except GroupMissing:
            if not wanted:
                raise ClientError(
                    f"group {name} does not exist; --topic creates it with offsets of these partitions"
                ) from None
            is_share, inputs = False, None
        else:
            is_share, inputs = described.kind == SHARE, _inputs(described)
            if described.members and not plan_only:
                raise ClientError(f"group {name} has {count_text(len(described.members), 'member')}: stop them first")
        committed = _starts(share_offsets(cluster, name)) if is_share else committed_offsets(cluster, name)
        if not wanted:
            moved = [place for place in committed if inputs is None or place[0] in inputs]
            if not moved:
                raise ClientError(f"group {name} has committed no offsets: name the partitions with --topic")
            wanted = {topic: sorted(index for of, index in moved if of == topic) for topic, _ in moved}
        bounds = find_bounds(cluster, wanted)
        targets = {place: bounds.limit(place, offset) for place, offset in bounds.resolve(cluster, target).items()}
        rows = [_change(place, committed.get(place), offset) for place, offset in sorted(targets.items())]
        # A share group may have processed records behind its start offset: they are delivered again from there, too.
        changed = {place: offset for place, offset in targets.items() if is_share or committed.get(place) != offset}
        asks = bool(changed) and not (yes or plan_only)
        show_plan(output, lambda console: _show_changes(rows, console), asks=asks)
        if asks:
            confirm(f"Set {count_text(len(changed), 'offset')} of group {name}?")
        if changed and not plan_only:
            (set_share_offsets if is_share else commit_offsets)(cluster, name, changed)
    done = len(changed) if not plan_only else 0
    text = f"set {count_text(done, 'offset')} of group {name}" if not plan_only else "nothing was changed"
    emit(output, {"group": name, "changed": done, "partitions": rows}, text)


def _inputs(described: GroupDescription) -> Collection[str] | None:
    """Return the topics that a Kafka Streams application does not write itself; None for other groups."""
    if described.kind != STREAMS:
        return None
    return {topic for each in described.topology for topic in each.sources}


def _change(place: Place, old: int | None, new: int) -> Mapping[str, Any]:
    return {"topic": place[0], "partition": place[1], "from": old, "to": new, "by": None if old is None else new - old}


def _show_changes(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    numbers = ("partition", "from", "to", "by")
    table = make_table("topic", *numbers, right=numbers)
    for row in rows:
        by = "new" if row["by"] is None else f"{row['by']:+,}" if row["by"] else "-"
        table.add_row(row["topic"], str(row["partition"]), number_text(row["from"]), number_text(row["to"]), by)
    console.print(table)


@group.command(short_help="Delete groups with their offsets.")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@output_option
@client_options
def delete(names: Sequence[str], yes: bool, client: CommandClient, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Delete each GROUP, with its offsets. Their members must have stopped. If one does not exist, none is deleted."""
    with client.cluster() as cluster:
        for name in names:
            describe_group(cluster, name)
        if not yes:
            which = f"group {names[0]}" if len(names) == 1 else f"the groups {', '.join(names)}"
            confirm(f"Delete {which}, with all offsets?")
        outcomes = delete_groups(cluster, names)
    deleted = [name for name, reason in outcomes.items() if reason is None]
    if deleted:
        emit(output, {"deleted": deleted}, "\n".join(f"deleted group {name}" for name in deleted))
    failures = [f"group {name}: {reason}" for name, reason in outcomes.items() if reason is not None]
    if failures:
        raise ClientError("; ".join(failures))


@group.command(name="delete-offsets", short_help="Delete the offsets of topics.")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    required=True,
    help="Partitions whose offsets are deleted; repeatable. Of a share group only whole topics.",
)
@yes_option
@output_option
@client_options
def delete_offsets_(name: str, *, topics: Sequence[str], yes: bool, client: CommandClient, output: str) -> None:
    """Delete the offsets of GROUP in topics that its members do not read, or no longer. A share group must be empty.

    When the group reads such a topic again, it begins as a new group does.
    """
    wanted = parse_partitions(topics, "--topic")
    with client.cluster() as cluster:
        is_share = describe_group(cluster, name).kind == SHARE
        if is_share and any(wanted.values()):
            raise click.UsageError(f"group {name} is a share group: name whole topics with --topic")
        known = share_offsets(cluster, name) if is_share else committed_offsets(cluster, name)
        places = sorted(
            place for place in known if place[0] in wanted and (not (of := wanted[place[0]]) or place[1] in of)
        )
        if not places:
            raise ClientError(f"group {name} has no offsets of {', '.join(topics)}")
        if not yes:
            confirm(f"Delete {count_text(len(places), 'offset')} of group {name}?")
        if is_share:
            delete_share_offsets(cluster, name, sorted({topic for topic, _ in places}))
        else:
            delete_offsets(cluster, name, places)
    rows = [{"topic": topic, "partition": index} for topic, index in places]
    text = f"deleted {count_text(len(places), 'offset')} of group {name}"
    emit(output, {"group": name, "deleted": rows}, text)
