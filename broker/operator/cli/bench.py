"""`anabranch bench`: this machine's disk and stores measured, and the bounds that follow for a node."""

import random
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.cli.arguments import SizeType
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.measure import (
    Durations,
    StoreProbe,
    measure,
    no_new_folders,
    probe_file,
    write_repeatedly,
)
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.output import emit, make_console, make_table, output_option

LONE_BYTES: Final = 4096
IN_FLIGHT: Final = 4
"""Writes under way, as a busy log and an upload have."""
READ_BYTES: Final = 1 << 20


@click.command(cls=SettingsCommand, short_help="Measure disk and stores, and say what to expect.")
@click.option("--writes", type=click.IntRange(10, 100_000), default=500, show_default=True, help="Writes to the disk.")
@click.option("--objects", type=click.IntRange(4, 1_000), default=16, show_default=True, help="Objects in each store.")
@click.option(
    "--object-size", type=SizeType(), default="8MiB", show_default=True, metavar="SIZE", help="Size of each object."
)
@config_option
@data_dir_option
@output_option
def bench(
    *,
    writes: int,
    objects: int,
    object_size: int,
    config_file: Path | None,
    data_dir: Path | None,
    output: str,
) -> None:
    """Measure the log's disk and the object stores of the settings, and say what to expect of a node here.

    Bounds for a node follow from the measured disk and stores; its own cost is not measured here. Files and
    objects are removed at the end.
    """
    if not READ_BYTES <= object_size <= 1 << 30:
        raise click.BadParameter("expected 1MiB to 1GiB", param_hint="--object-size")
    settings = read_settings(config_file, data_dir)
    found = run(_measure(settings, writes, objects, object_size))
    emit(output, found, lambda console: _show(found, console))


async def _measure(settings: Settings, writes: int, objects: int, object_size: int) -> Mapping[str, Any]:
    run_id = secrets.token_hex(8)
    rows: list[Mapping[str, Any]] = []
    expected: list[Mapping[str, str]] = []
    rates: list[float] = []
    if settings.wal.kind == "device" and not settings.wal_path.is_block_device():
        folder = next(parent for parent in settings.wal_path.resolve().parents if parent.is_dir())
        with _shown("measuring the log's disk"):
            wal = wal_settings(settings)
            async with probe_file(folder, wal, f".anabranch-check-{run_id}") as device:
                lone = await write_repeatedly(device, LONE_BYTES, count=writes, in_flight=1)
                block = wal.block_bytes_max
                full = await write_repeatedly(device, block, count=writes, in_flight=wal.writes_in_flight_max)
        rows += [
            _row("log: lone durable write", LONE_BYTES, 1, lone),
            _row("log: full blocks", block, wal.writes_in_flight_max, full),
        ]
        text = f"at least {lone.quantile(0.5):.2f} ms (median), {lone.quantile(0.99):.2f} ms (p99)"
        expected.append({"what": "acknowledgement", "expect": text})
        rates.append(full.rate(block))
    async with _open_stores(settings) as stores:
        for name, store in stores.items():
            with _shown(f"measuring the store {name}"):
                puts, gets = await _measure_store(StoreProbe(store, run_id), objects, object_size)
            rows += [
                _row(f"store {name}: PUT", object_size, IN_FLIGHT, puts),
                _row(f"store {name}: GET", READ_BYTES, 1, gets),
            ]
            if name == settings.objects.store:
                rates.append(puts.rate(object_size))
                text = f"first bytes after {gets.quantile(0.5):.1f} ms or more (median)"
                expected.append({"what": "cold read", "expect": text})
    text = f"at most {size_text(min(rates))}/s, the slowest of what all records are written to"
    expected.append({"what": "produce, sustained", "expect": text})
    return {"measured": rows, "expected": expected}


async def _measure_store(probe: StoreProbe, objects: int, object_size: int) -> tuple[Durations, Durations]:
    try:
        puts = await measure(lambda number: probe.put(number, object_size), count=objects, in_flight=IN_FLIGHT)
        gets = await measure(lambda number: probe.get(number, READ_BYTES), count=objects, in_flight=1)
    finally:
        await probe.remove()
    return puts, gets


@contextmanager
def _shown(text: str) -> Iterator[None]:
    """Show on a terminal what is being done."""
    console = make_console(stderr=True)
    with console.status(text) if console.is_terminal else nullcontext():
        yield


@asynccontextmanager
async def _open_stores(settings: Settings) -> AsyncIterator[Mapping[str, Any]]:
    async with AsyncExitStack() as stack:
        stack.enter_context(no_new_folders(settings))
        stores = make_stores(settings, random.Random())  # noqa: S311 - spreads retries, hides nothing
        for store in stores.values():
            stack.push_async_callback(store.close)
            await store.open()
        yield stores


def _row(what: str, size_bytes: int, in_flight: int, found: Durations) -> Mapping[str, Any]:
    return {
        "what": what,
        "size_bytes": size_bytes,
        "in_flight": in_flight,
        "p50_ms": round(found.quantile(0.5), 3),
        "p99_ms": round(found.quantile(0.99), 3),
        "bytes_per_s": round(found.rate(size_bytes)),
    }


def _show(found: Mapping[str, Any], console: Console) -> None:
    table = make_table("measured", "size", "at a time", "p50", "p99", "rate", right=("at a time", "p50", "p99", "rate"))
    for row in found["measured"]:
        times = [f"{row[name]:.2f} ms" for name in ("p50_ms", "p99_ms")]
        rate = f"{size_text(row['bytes_per_s'])}/s"
        table.add_row(row["what"], size_text(row["size_bytes"]), str(row["in_flight"]), *times, rate)
    console.print(table)
    console.print()
    table = make_table("expect of a node here", "")
    for row in found["expected"]:
        table.add_row(row["what"], row["expect"])
    console.print(table)
