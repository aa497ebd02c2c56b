"""`anabranch wal sweep`: delete old ends of object logs, and objects that were put there too late."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.broker.cluster.membership.object_log import ObjectStartLog
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.durations import parse_duration
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.storage import NodeStorage, open_storage
from anabranch.output import count_text, emit, make_table, output_option
from anabranch.wal.object.format import ROOT, LogName
from anabranch.wal.object.sweep import DAY_MS, newest_ms, plan_sweep


def parse_age(text: str) -> int:
    """Parse an age such as 36h, 30d or 8w, of a day at least; returns ms."""
    age_ms = parse_duration(text)
    if age_ms is None:
        raise click.BadParameter(f"{text!r} is not an age such as 36h, 30d or 8w")
    if age_ms < DAY_MS:
        raise click.BadParameter(f"{text!r}: a day at least, since an end that is needed is worth more than 120 bytes")
    return age_ms


@click.command(cls=SettingsCommand, short_help="Delete old ends of object logs.")
@click.option(
    "--older-than",
    "age_ms",
    required=True,
    type=parse_age,
    metavar="AGE",
    help="Age of what is deleted, by the store's clock, such as 30d.",
)
@click.option("--yes", is_flag=True, help="Delete; without, only show what would be deleted.")
@output_option
@config_option
@data_dir_option
def sweep(age_ms: int, config_file: Path | None, data_dir: Path | None, *, yes: bool, output: str) -> None:
    """Delete fences and closed objects of former epochs of all object logs, and objects that were put there too late.

    An end, 120 bytes for each start of a node, keeps a paused process from acknowledging records that nobody
    reads. Choose an age at which no such process or request can be left. Nothing that a log needs is deleted.
    Nodes may be running.
    """
    rows, left = run(_sweep(read_settings(config_file, data_dir), age_ms, execute=yes))
    count = sum(row["ends"] + row["late"] for row in rows)
    what = count_text(count, "object")

    def show(console: Console) -> None:
        if not rows:
            console.print("there are no object logs")
            return
        numbers = ("ends", "late objects", "too young", "kept")
        table = make_table("log", *numbers, right=numbers)
        for row in rows:
            table.add_row(row["log"], *(f"{row[name]:,}" for name in ("ends", "late", "young", "kept")))
        console.print(table)
        if not left:
            console.print(f"deleted {what}" if yes else f"nothing was deleted; --yes deletes {what}")

    emit(output, {"deleted": count - left if yes else 0, "logs": rows}, show)
    if left:
        raise click.ClickException(f"{count_text(left, 'object')} could not be deleted: repeat the command")


async def _sweep(settings: Settings, age_ms: int, *, execute: bool) -> tuple[list[dict[str, Any]], int]:
    """Return what is swept in each log, and the number of objects that could not be deleted."""
    rows = []
    left = 0
    async with open_storage(settings, read_only=not execute) as opened:
        for store_name, name in await _object_logs(opened):
            store = ObjectLogStore(opened.stores[store_name], "sweep")
            newest = await newest_ms(store, f"{ROOT}/{settings.node.cluster}/")
            plan = await plan_sweep(store, name, before_ms=newest - age_ms)
            if plan is None:
                continue
            rows.append(
                {
                    "log": f"{store_name}:{name.prefix}",
                    "ends": len(plan.ends),
                    "late": len(plan.orphans),
                    "young": plan.young,
                    "kept": plan.kept,
                }
            )
            if execute:
                left += len(await plan.execute(store))
    return rows, left


async def _object_logs(opened: NodeStorage) -> list[tuple[str, LogName]]:
    """Return the store and the name of each object log that the catalog knows, in a store that is configured."""
    found = []
    for wal in await opened.catalog.list_all_wals():
        store_name = wal.location.partition(":")[0]
        if wal.kind == ObjectStartLog.kind and store_name in opened.stores:
            found.append((store_name, LogName(opened.cluster, wal.node_id, opened.catalog.identity())))
    return sorted(found, key=lambda each: (each[0], each[1].node_id))
