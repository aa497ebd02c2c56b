"""`anabranch wal ...`: inspect, verify, resize and repair the write-ahead log of a stopped node.

The log is opened and locked as by the node, so the log of a running node is refused.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.arguments import SizeType
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsGroup, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.wal_give_up import give_up
from anabranch.broker.operator.cli.wal_repair import find_losses, repair_data, repair_lines, save_damaged, save_path
from anabranch.broker.operator.cli.wal_sweep import sweep
from anabranch.output import count_text, emit, make_facts, output_option
from anabranch.times import second_text
from anabranch.wal.device import FileDevice, extend_file, open_device, shorten_file
from anabranch.wal.format import CATALOG_UNKNOWN, RING_POSITION, Header, Shutdown
from anabranch.wal.repair import plan_repair
from anabranch.wal.repair import repair as repair_log
from anabranch.wal.settings import WalSettings
from anabranch.wal.tools import Examination, examine
from anabranch.wal.tools import resize as resize_log


@click.group(cls=SettingsGroup)
def wal() -> None:
    """Inspect, verify, resize and repair the write-ahead log of a stopped node."""


wal.add_command(give_up)
wal.add_command(sweep)


def on_log(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Add the arguments that find a log; the command receives its path."""

    @click.argument("path", required=False, type=click.Path(path_type=Path))
    @config_option
    @data_dir_option
    def wrapped(path: Path | None, config_file: Path | None, data_dir: Path | None, **arguments: Any) -> None:
        run(command(path or read_settings(config_file, data_dir).wal_path, **arguments))

    return update_wrapper(wrapped, command)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[FileDevice]:
    """Open the device of the log, which must exist."""
    device = await asyncio.to_thread(open_device, path, WalSettings(), create=False)
    try:
        yield device
    finally:
        await device.close()


@wal.command(short_help="Show header, records and fill of a log.")
@output_option
@on_log
async def inspect(path: Path, output: str) -> None:
    """Show header, window, records and fill of the log at PATH (default: from the settings)."""
    async with opened(path) as device:
        found = await examine(device)

        def show(console: Console) -> None:
            _print(device, found, console)

        emit(output, _data(device, found), show)


@wal.command(short_help="Check all headers and records of a log.")
@output_option
@on_log
async def verify(path: Path, output: str) -> None:
    """Verify both header copies and all checksums of the log at PATH. Exit code 1 if durable bytes are damaged."""
    async with opened(path) as device:
        found = await examine(device)
        data = {"sound": found.corrupt is None, **_data(device, found)}
    emit(output, data, lambda console: _print_verified(found, console))
    if found.corrupt is not None:
        raise click.ClickException(str(found.corrupt))


def _print_verified(found: Examination, console: Console) -> None:
    for number, copy in enumerate(found.copies):
        if isinstance(copy, str):
            console.print(f"[yellow]header copy {number} is not valid: {copy}; the other one is used")
    if found.end is None:
        return
    console.print(
        f"[green]sound[/]: {count_text(found.end.records, 'record')} valid, {found.live_records:,} of them not trimmed "
        f"({size_text(found.live_bytes)}); the log ends at offset {found.end.end_offset:,} ({found.end.reason})"
    )
    if found.end.dropped_records:
        console.print(
            f"after its end: {count_text(found.end.dropped_records, 'record')} in flight when the node died and never "
            "acked; dropped by the next start"
        )


@wal.command()
@click.option(
    "--capacity", required=True, type=SizeType(), metavar="SIZE", help="New capacity, headers included, such as 4GiB."
)
@output_option
@on_log
async def resize(path: Path, capacity: int, output: str) -> None:
    """Change the capacity of the log at PATH, keeping its records. A file grows or shrinks accordingly."""
    await asyncio.to_thread(extend_file, path, capacity)
    async with opened(path) as device:
        header = await resize_log(device, capacity, now_ms=lambda: time.time_ns() // 1_000_000)
    await asyncio.to_thread(shorten_file, path, capacity)
    emit(
        output,
        {"device": str(path), "capacity_bytes": header.capacity_bytes},
        f"capacity is now {size_text(header.capacity_bytes)}; "
        f"set wal.capacity_bytes = {capacity} in the node's settings",
    )


@wal.command(short_help="Skip damaged bytes, keeping every valid record.")
@click.option("--yes", is_flag=True, help="Repair the log; without, only show the plan.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Copy of the damaged pages. Default: next to the log; for a device, in the working directory.",
)
@output_option
@on_log
async def repair(path: Path, *, save: Path | None, yes: bool, output: str) -> None:
    """Show what a repair of the log at PATH keeps and loses; with --yes, repair it.

    For a log that a start refuses as damaged. Every record with valid checksums is kept; lost ones are listed
    by stream and offsets, as far as they can be known. Afterwards the node starts. A stream with records
    missing in its middle stays stopped until `anabranch storage discard`.
    """
    async with opened(path) as device:
        plan = await plan_repair(device)
        losses = await find_losses(device, plan)
        save = save or save_path(Path(device.name), time.strftime("%Y%m%d-%H%M%S"))
        data = {"device": device.name, **repair_data(plan, losses)}
        if not plan.needed:
            emit(output, data, lambda console: console.print("[green]sound[/]: there is nothing to repair"))
            return
        lines = repair_lines(plan, losses)
        if not yes:
            lines.append(f"nothing was changed; --yes repairs the log, after copying the damaged pages to {save}")
            emit(output, data, "\n".join(lines))
            return
        if output == "table":
            click.echo("\n".join(lines))  # before the repair, which may fail
        await save_damaged(device, plan, save)
        click.echo(f"the damaged pages are in {save}, at their positions in the log", err=True)
        await repair_log(device, plan, now_ms=lambda: time.time_ns() // 1_000_000)
        data |= {"repaired": True, "saved_to": str(save)}
        emit(output, data, "repaired: start the node, then see `anabranch storage stopped`")


def _data(device: FileDevice, found: Examination) -> Mapping[str, Any]:
    """Return the output of `inspect` for JSON and YAML."""
    header, end = found.header, found.end
    return {
        "device": device.name,
        "description": device.description,
        "header_copies_valid": [isinstance(copy, Header) for copy in found.copies],
        "cluster": header.cluster,
        "node": header.node_id,
        "epoch": header.node_epoch,
        "catalog": None if header.catalog_id == CATALOG_UNKNOWN else header.catalog_id.hex(),
        "last_write_ms": header.last_write_ms,
        "graceful": header.shutdown is Shutdown.GRACEFUL,
        "capacity_bytes": header.capacity_bytes,
        "used_bytes": found.used_bytes,
        "window_bytes": header.window_bytes,
        "head_offset": header.head_offset,
        "trim_offset": header.trim_offset if header.trim_offset >= 0 else None,
        "durable_offset": header.durable_offset,
        "records": found.live_records,
        "record_bytes": found.live_bytes,
        "end_offset": None if end is None else end.end_offset,
        "dropped_records": None if end is None else end.dropped_records,
        "damage": None if found.corrupt is None else str(found.corrupt),
    }


def _print(device: FileDevice, found: Examination, console: Console) -> None:
    header = found.header
    console.print(f"{device.name}: {device.description}", soft_wrap=True, highlight=False)
    copies = ", ".join(
        f"sequence {copy.sequence:,}" if isinstance(copy, Header) else f"not valid ({copy})" for copy in found.copies
    )
    facts = (
        ("header copies", copies),
        ("owner", f"cluster {header.cluster!r}, node {header.node_id}, epoch {header.node_epoch}"),
        ("catalog", "unknown" if header.catalog_id == CATALOG_UNKNOWN else header.catalog_id.hex()),
        ("last write", second_text(header.last_write_ms)),
        ("last stop", "graceful" if header.shutdown is Shutdown.GRACEFUL else "running or crashed"),
        ("capacity", f"{size_text(header.capacity_bytes)}, including {size_text(RING_POSITION)} of headers"),
        ("window", size_text(header.window_bytes)),
        ("head offset", f"{header.head_offset:,} at position {header.position_of(header.head_offset):,}"),
        ("trim offset", f"{header.trim_offset:,}" if header.trim_offset >= 0 else "nothing trimmed"),
        ("durable offset", f"{header.durable_offset:,} when the header was written"),
        ("gaps", ", ".join(f"{gap.start:,} to {gap.end:,}" for gap in header.gaps) or "none"),
        *_record_facts(found),
    )
    console.print(make_facts(facts))


def _record_facts(found: Examination) -> Iterator[tuple[str, str]]:
    yield "records", f"{found.live_records:,} not trimmed, {size_text(found.live_bytes)}"
    if found.end is not None:
        yield "blocks", f"{len(found.end.blocks):,}"
        yield "end offset", f"{found.end.end_offset:,}: {found.end.reason}"
        if found.end.dropped_records:
            yield "never acked", f"{found.end.dropped_records:,} after the end, dropped by the next start"
    else:
        yield "[red]damaged[/]", str(found.corrupt)
    whole = found.header.ring_bytes
    yield "fill", f"{100 * found.used_bytes / whole:.1f} % of {size_text(whole)}"
