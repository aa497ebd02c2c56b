"""`anabranch catalog rebuild`: make a new catalog from the object store when the old one is lost or damaged."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from anabranch.broker.cluster.membership.log_identity import utc
from anabranch.broker.cluster.membership.rebuild import BACKUP, CatalogRebuild, ClockAndIds
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.catalog_rebuild_data import nodes_with_logs, partition_names, plan_data, rebuilt_data
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.progress import progress
from anabranch.output import count_text, emit, make_facts, make_table, output_option
from anabranch.s3stream.catalog.backup import Backup
from anabranch.s3stream.catalog.values import WalState
from anabranch.s3stream.maintain.rebuild_plan import SkipReason
from anabranch.s3stream.maintain.rebuild_read import RebuildReader
from anabranch.s3stream.maintain.rebuild_tables import rows_left

HOUR_MS: Final = 3_600_000
SHOWN: Final = 20
"""Limit of lines of one kind."""


plan_option: Final = click.option("--plan", "only_plan", is_flag=True, help="Only show what would be done.")
accept_loss_option: Final = click.option(
    "--accept-loss", is_flag=True, help="Continue although committed records are missing or damaged."
)
keep_hours_option: Final = click.option(
    "--keep-hours",
    type=click.IntRange(0),
    default=24,
    show_default=True,
    help="Hours before objects that are left out are deleted.",
)


@click.command(cls=SettingsCommand, short_help="Make a new catalog from the object store.")
@plan_option
@click.option("--manifest", metavar="KEY", help="Use this manifest  [default: the newest one]")
@accept_loss_option
@keep_hours_option
@output_option
@config_option
@data_dir_option
def rebuild(
    *,
    only_plan: bool,
    manifest: str | None,
    accept_loss: bool,
    keep_hours: int,
    config_file: Path | None,
    data_dir: Path | None,
    output: str,
) -> None:
    """Make a new catalog for a stopped node from the newest manifest and all objects in its object store.

    Stop all nodes first. The catalog in the settings must be empty or missing. All records are read once, for
    the state of producers and transactions. Records that are only in the log are replayed by the node's next
    start.
    """
    settings = read_settings(config_file, data_dir)
    options = FillOptions(output, only_plan, accept_loss, keep_hours)
    run(fill_catalog(settings, None, options, manifest))


@dataclass(frozen=True, slots=True)
class FillOptions:
    """Options that `rebuild` and `restore` have in common."""

    output: str
    only_plan: bool
    accept_loss: bool
    keep_hours: int


async def fill_catalog(
    settings: Settings, backup: Backup | None, options: FillOptions, manifest: str | None = None
) -> None:
    """Fill an empty catalog from the object stores, and from the backup if there is one; show plan and result."""
    from anabranch.broker.cluster.membership.environment import Environment, wall_ms  # it imports much

    output, console = options.output, Console(soft_wrap=True, highlight=False)
    entropy = ClockAndIds(wall_ms, Environment().new_topic_id, random.Random())  # noqa: S311 - a command is a root, too
    async with CatalogRebuild.opened(settings, entropy, backup) as work:
        if not options.only_plan:
            await work.check_blank()
        with progress("reading indexes") as update:
            await work.make_plan(manifest, update)
        if output == "table":
            _show_plan(work, options.keep_hours, console)
        refused = work.plan.has_loss and not options.accept_loss
        if output != "table" and (refused or options.only_plan):
            emit(output, plan_data(work), "")
        if refused:
            raise click.ClickException(_why_loss(work))
        if options.only_plan:
            return
        with progress("reading records") as update:
            reader = await work.execute(
                accept_loss=options.accept_loss,
                keep_ms=options.keep_hours * HOUR_MS,
                on_progress=lambda report: update(report.bytes_done, report.bytes_total),
            )
    data = {**plan_data(work), "rebuilt": rebuilt_data(work, reader)}
    emit(output, data, lambda _console: _show_done(work, reader, console))


def _why_loss(work: CatalogRebuild) -> str:
    reason = "records that were committed are missing or damaged (above)"
    if work.source == BACKUP:
        why = "; ".join(work.manifest_errors) or "none in the store"
        reason = (
            "the backup is too old for the object store: objects that it lists were replaced and deleted since "
            f"(above), and there is no manifest of a later state ({why}). Use a newer backup, or bring the objects back"
        )
    elif work.plan.replaced:
        newest = "bring back a newer one" if work.manifest_errors else "use the newest manifest"
        reason = f"the state in {work.source} is too old for the object store (above); {newest}"
    return f"{reason}; --accept-loss discards them: of a partition with a gap, only the records after the gap are kept"


def _show_plan(work: CatalogRebuild, keep_hours: int, console: Console) -> None:
    plan, manifest = work.plan, work.manifest
    state = manifest.state
    used = {piece.object_id for chain in plan.chains.values() for piece in chain.pieces}
    partitions = sum(len(topic.stream_ids) for topic in state.topics)
    facts = [
        *_describe_source(work),
        ("topics", f"{len(state.topics):,} with {count_text(partitions, 'partition')}"),
        ("detached topics", f"{len(state.detached):,}"),
        ("partitions without a topic", f"{len(plan.new_streams):,}, kept as recovered-stream-<id>"),
        ("objects taken", f"{len(used):,} ({size_text(sum(work.stored.objects[key].size_bytes for key in used))})"),
        ("objects left out", f"{len(plan.skipped) + len(work.stored.unreadable):,}"),
        ("log", _describe_log(work)),
    ]
    console.print(make_facts(facts))
    for why, count in Counter(plan.skipped.values()).items():
        fate = "" if why is SkipReason.UNCOMMITTED else f", deleted in {keep_hours} hours"
        console.print(f"left out{fate}: {count_text(count, 'object')}: {why.value}")
    names = partition_names(work)
    _show("a committed object is in no store", [str(key) for key in plan.missing], console)
    _show("damaged", [f"object {each.object_id}: {each.reason}" for each in plan.damaged], console)
    gaps = [f"{names[gap.stream_id]}: no object holds [{gap.start_offset}, {gap.end_offset})" for gap in plan.gaps]
    _show("gap", gaps, console)
    left = [
        f"table {each.table} has the rows [{each.start_offset}, {each.end_offset}) of {names[each.stream_id]}"
        + ("" if each.keeps else ", until its next commit, and its snapshots until they expire: copy them from there")
        for each in rows_left(state, plan.gaps)
    ]
    _show("lost records that are in a table", left, console)
    replaced = [
        f"{names.get(gap.stream_id, f'stream {gap.stream_id}')}: [{gap.start_offset}, {gap.end_offset}) is only in "
        "objects that compaction wrote later"
        for gap in plan.replaced
    ]
    _show("not reached", replaced, console)


def _describe_source(work: CatalogRebuild) -> Iterator[tuple[str, str]]:
    """Describe where the state of topics comes from, and how old the backup is."""
    manifest, backup = work.manifest, work.backup
    if backup is not None:
        yield "backup", f"{backup.path}, written {utc(backup.header.written_ms)}"
    if work.source != BACKUP:
        yield "manifest", f"{work.source}, written {utc(manifest.written_ms)} by node {manifest.node.node_id}"
    elif not work.manifest_errors:
        yield "manifest", "none that is newer than the backup"
    for error in work.manifest_errors[:SHOWN]:
        yield "not used", error


def _show(what: str, lines: list[str], console: Console) -> None:
    for line in lines[:SHOWN]:
        console.print(f"[red]{what}[/red]: {line}")
    if len(lines) > SHOWN:
        console.print(f"[red]{what}[/red]: {len(lines) - SHOWN:,} more")


def _describe_log(work: CatalogRebuild) -> str:
    """Describe the node's log."""
    log, node_id = work.log, work.settings.node.node_id
    if log is None:
        lost = [wal for wal in work.manifest.state.wals if wal.node_id == node_id and wal.state is WalState.OPEN]
        found = "missing"
        if lost:
            found += f": log {lost[-1].wal_id} may hold acknowledged records; bring it back to {lost[-1].location}"
        return found
    holds = "may hold records that are in no object" if log.wal.state is WalState.OPEN else "empty after a clean stop"
    return f"{log.wal.wal_id} at {log.wal.location}, {holds}"


def _describe_tail(work: CatalogRebuild) -> str:
    """Say what becomes of records that were acknowledged, and had not been uploaded."""
    log, node_id = work.log, work.settings.node.node_id
    if log is not None and log.wal.state is WalState.OPEN:
        return f"acknowledged, but not uploaded: kept; the next start of node {node_id} replays {log.wal.location}"
    if log is not None:
        return f"acknowledged, but not uploaded: nothing; the log of node {node_id} was empty after a clean stop"
    return (
        f"acknowledged, but not uploaded: [red]lost[/red], if there was anything, unless the log of node {node_id} is "
        "brought back before its next start; all that was uploaded is kept (ends below)"
    )


def _show_done(work: CatalogRebuild, reader: RebuildReader, console: Console) -> None:
    names = partition_names(work)
    _show("damaged", reader.report.damaged, console)
    records = sum(span.record_count for spans in reader.spans.values() for _, span in spans)
    console.print(
        f"[green]rebuilt[/green]: {count_text(len(work.plan.chains), 'partition')}, {count_text(records, 'record')} "
        f"({size_text(reader.report.bytes_done)} read)"
    )
    console.print(_describe_tail(work))
    if others := nodes_with_logs(work):
        console.print(
            f"the logs of nodes {', '.join(map(str, others))} are replayed by their own next starts; the loss of one "
            "is accepted with `anabranch node give-up ID`"
        )
    table = make_table("partition", "first offset", "end", right=("first offset", "end"))
    for stream_id, chain in sorted(work.plan.chains.items(), key=lambda item: names[item[0]])[:SHOWN]:
        table.add_row(names[stream_id], f"{chain.start_offset:,}", f"{chain.end_offset:,}")
    console.print(table)
    if len(names) > SHOWN:
        console.print(f"({count_text(len(names) - SHOWN, 'more partition')})")
