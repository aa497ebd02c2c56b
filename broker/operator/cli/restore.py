"""`anabranch restore`: make a new catalog from a backup and the object stores."""

import asyncio
from pathlib import Path

import click

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.catalog_access import in_catalog
from anabranch.broker.operator.cli.catalog_rebuild import (
    FillOptions,
    accept_loss_option,
    fill_catalog,
    keep_hours_option,
    plan_option,
)
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand
from anabranch.broker.operator.cli.progress import progress
from anabranch.output import output_option
from anabranch.s3stream.catalog.backup import read_backup


@click.command(cls=SettingsCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@plan_option
@accept_loss_option
@keep_hours_option
@output_option
@in_catalog
def restore(
    settings: Settings, file: Path, *, only_plan: bool, accept_loss: bool, keep_hours: int, output: str
) -> None:
    """Make a new catalog from the backup FILE, and from all that the object stores have received since.

    Stop all nodes first. The catalog in the settings must be empty or missing, in any database. Records that
    are only in a node's log are replayed by its next start.
    """
    run(_run(settings, file, FillOptions(output, only_plan, accept_loss, keep_hours)))


async def _run(settings: Settings, file: Path, options: FillOptions) -> None:
    with progress("reading the backup") as update:
        backup = await asyncio.to_thread(read_backup, file, on_progress=update)
    await fill_catalog(settings, backup, options)
