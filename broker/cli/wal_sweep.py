"""`anabranch wal sweep`: delete old ends of object logs, and objects that landed there late."""

from pathlib import Path
from typing import Final

import click
from rich.table import Table

from broker.cli.errors import run
from broker.cli.options import config_option, data_dir_option, read_settings
from broker.cli.output import make_console
from broker.cli.storage import NodeStorage, open_storage
from broker.membership.log_store import ObjectLogStore
from broker.membership.object_log import ObjectStartLog
from broker.settings.model import Settings
from wal.object.format import ROOT, LogName
from wal.object.sweep import DAY_MS, Sweep, newest_ms, plan_sweep

HOUR_MS: Final = 3_600_000
_UNITS: Final = {"h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}


def parse_age(text: str) -> int:
    """Parse an age such as 36h, 30d or 8w, of a day at least; returns ms."""
    unit, number = text[-1:], text[:-1]
    if unit not in _UNITS or not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not an age such as 36h, 30d or 8w")
    age_ms = int(number) * _UNITS[unit]
    if age_ms < DAY_MS:
        raise click.BadParameter(f"{text!r}: a day at least, since an end that is needed is worth more than 120 bytes")
    return age_ms


@click.command(short_help="Delete old ends of object logs.")
@click.option(
    "--older-than",
    "age_ms",
    required=True,
    type=parse_age,
    metavar="AGE",
    help="Age of what is deleted, by the store's clock, such as 30d.",
)
@click.option("--yes", is_flag=True, help="Delete; without, only show what would be deleted.")
@config_option
@data_dir_option
def sweep(age_ms: int, config_file: Path | None, data_dir: Path | None, *, yes: bool) -> None:
    """Delete fences and closed objects of former epochs of all object logs, and objects that landed there late.

    An end, 120 bytes for each start of a node, keeps a process that was paused when its node was taken over from
    acknowledging records that nobody reads. So the age must be one at which no such process, nor any of its requests,
    can be left. Nothing that a log still needs is deleted. Nodes may be running.
    """
    run(_sweep(read_settings(config_file, data_dir), age_ms, execute=yes))


async def _sweep(settings: Settings, age_ms: int, *, execute: bool) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("log", overflow="fold")
    for heading in ("ends", "late objects", "too young", "kept"):
        table.add_column(heading, justify="right")
    count = 0
    async with open_storage(settings, read_only=not execute) as opened:
        for store_name, name in await _object_logs(opened):
            store = ObjectLogStore(opened.stores[store_name], "sweep")
            newest = await newest_ms(store, f"{ROOT}/{settings.node.cluster}/")
            plan = await plan_sweep(store, name, before_ms=newest - age_ms)
            if plan is None:
                continue
            count += len(plan.ends) + len(plan.orphans)
            _add_row(table, f"{store_name}:{name.prefix}", plan)
            if execute and (left := await plan.execute(store)):
                raise click.ClickException(f"{len(left):,} objects could not be deleted: repeat the command")
    if not table.row_count:
        click.echo("there are no object logs")
        return
    make_console().print(table)
    what = f"{count:,} object{'s' if count != 1 else ''}"
    click.echo(f"deleted {what}" if execute else f"nothing was deleted; --yes deletes {what}")


def _add_row(table: Table, where: str, plan: Sweep) -> None:
    table.add_row(where, f"{len(plan.ends):,}", f"{len(plan.orphans):,}", f"{plan.young:,}", f"{plan.kept:,}")


async def _object_logs(opened: NodeStorage) -> list[tuple[str, LogName]]:
    """Return the store and the name of each object log that the catalog knows, in a store that is configured."""
    found = []
    for wal in await opened.catalog.list_all_wals():
        store_name = wal.location.partition(":")[0]
        if wal.kind == ObjectStartLog.kind and store_name in opened.stores:
            found.append((store_name, LogName(opened.cluster, wal.node_id, opened.catalog.identity())))
    return sorted(found, key=lambda each: (each[0], each[1].node_id))
