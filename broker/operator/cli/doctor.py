"""`anabranch doctor`: checks of a machine, its disk, the stores and the catalog, before a node is started or blamed."""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.doctor_links import check_links
from anabranch.broker.operator.cli.doctor_machine import Finding, check_machine
from anabranch.broker.operator.cli.doctor_storage import check_catalog, check_disk, check_stores
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.measure import no_new_folders
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.output import emit, make_table, output_option, plain

STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command(cls=SettingsCommand, short_help="Check this machine for a node, and say what to change.")
@config_option
@data_dir_option
@output_option
def doctor(config_file: Path | None, data_dir: Path | None, output: str) -> None:
    """Check clock, limits, memory, native part, log's disk, object stores, catalog, and the way to the nodes that run.

    A file beside the log and some objects are written and removed. The node may be running. Exit code 0: a node can
    run here, maybe with warnings. 1: something fails.
    """
    found = run(_check(read_settings(config_file, data_dir)))

    def show(console: Console) -> None:
        table = make_table("check", "status", "found")
        for each in found:
            table.add_row(each.check, f"[{STYLES[each.status]}]{each.status}[/]", plain(each.found))
            if each.advice is not None:
                table.add_row("", "", f"[bold]change:[/] {plain(each.advice)}")
        console.print(table)

    emit(output, [asdict(each) for each in found], show)
    if any(each.status == "failed" for each in found):
        sys.exit(1)


async def _check(settings: Settings) -> Sequence[Finding]:
    run_id = secrets.token_hex(8)
    found = list(check_machine(settings))
    found += [each async for each in check_disk(settings, f".anabranch-check-{run_id}")]
    with no_new_folders(settings):
        found += [each async for each in check_stores(settings, run_id)]
    found += [each async for each in check_catalog(settings)]
    found += [each async for each in check_links(settings)]
    return found
