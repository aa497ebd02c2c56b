"""`anabranch serve`: run a node until a signal or a failure. Flags are generated from the settings."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch.broker.node.logging import logs, stacks
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.names import (
    STORES,
    TABLE_CATALOGS,
    Setting,
    all_settings,
    allowed_values,
    area_models,
    describe_default,
)
from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.cli.node_process import FAILED, LOG_FLUSH_TIMEOUT_S, log, loop_factory, skip_existing
from anabranch.broker.operator.cli.options import BadSetting
from anabranch.broker.operator.cli.welcome import welcome

if TYPE_CHECKING:
    from anabranch.broker.cluster.node import Node

SECOND_SIGNAL = 130
STOP_GRACE_S = 20
"""Time of a stop beyond the settings' limits for draining and uploading, before the process exits by force."""


class GroupedCommand(click.Command):
    """A command whose help groups the options by area."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each area of settings, and one for other options."""
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for area, model in area_models():
            rows = [records.pop(_parameter(setting)) for setting in _flagged() if setting.area == area]
            with formatter.section(f"{area} - {(model.__doc__ or '').splitlines()[0].rstrip('.')}"):
                formatter.write_dl([row for row in rows if row is not None])
        with formatter.section("Other"):
            formatter.write_dl([row for row in records.values() if row is not None])


def _flagged() -> Iterator[Setting]:
    """Yield the settings that have a flag."""
    return (setting for setting in all_settings() if setting.flag)


def _parameter(setting: Setting) -> str:
    return f"{setting.area}__{setting.name}"


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = f"{setting.definition.description}{allowed_values(setting)} [default: {describe_default(setting)}]"
    kind = "BYTES" if "bytes" in setting.name else "TEXT"
    if setting.definition.kind is int and kind == "TEXT":
        kind = "NUMBER"
    elif setting.definition.kind is bool:
        kind = "true|false"
    return click.option(setting.flag, _parameter(setting), metavar=kind, default=None, help=text.replace("`", ""))


def _with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    for setting in reversed(list(_flagged())):
        function = _option(setting)(function)
    return function


@click.command(cls=GroupedCommand)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with settings.")
@_with_settings
@click.option(
    STORES.flag,
    STORES.key,
    metavar="NAME.FIELD=VALUE",
    multiple=True,
    help="Field of an additional object store (type, path, bucket, ...); repeatable.",
)
@click.option(
    TABLE_CATALOGS.flag,
    TABLE_CATALOGS.key,
    metavar="NAME.FIELD=VALUE",
    multiple=True,
    help="Field of another catalog that tables may be published in (type, uri, ...); repeatable.",
)
def serve(config: Path | None, stores: Sequence[str], table_catalogs: Sequence[str], **flags: str | None) -> None:
    """Run a node until SIGTERM or SIGINT. SIGUSR1 writes the stacks of all threads and tasks to standard error.

    Settings are taken from flags, then environment (ANABRANCH_...), then a TOML file, then defaults.
    """
    try:
        named = {STORES.key: stores, TABLE_CATALOGS.key: table_catalogs}
        settings = load({**{name.replace("__", "."): value for name, value in flags.items()}, **named}, None, config)
    except SettingsError as error:
        raise BadSetting(str(error)) from None
    levels = LogLevels()
    writer = LineWriter()
    logs.configure(settings.log, levels, writer)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(_serve(settings, levels, writer))
    finally:
        writer.flush(LOG_FLUSH_TIMEOUT_S)
    sys.exit(code)


async def _serve(settings: Settings, levels: LogLevels, writer: LineWriter) -> int:
    from anabranch.broker.app import StartError, run_node  # after validating the settings: it imports the whole broker

    stop = asyncio.Event()
    serving = asyncio.Event()
    loop = asyncio.get_running_loop()
    dump = stacks.install(loop, writer.fd, writer.line)

    def exit_now(code: int) -> None:
        writer.flush(LOG_FLUSH_TIMEOUT_S)
        os._exit(code)

    def on_signal(name: str) -> None:
        if stop.is_set():
            log.warning("second signal: exiting at once; acknowledged records are in the log", signal=name)
            exit_now(SECOND_SIGNAL)
        stop.set()
        log.info("stopping", signal=name)
        if not serving.is_set():
            exit_now(0)  # a start may wait for minutes, and is safe to abandon at any point

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        async with run_node(settings, levels) as node:
            serving.set()
            if os.isatty(writer.fd):
                objects = settings.objects
                store = settings.objects_path if objects.store == "local" else f"the bucket {objects.bucket}"
                place = f"{settings.node.data_dir}, objects in {store}"
                for line in welcome(node, place, "Ctrl-C stops the node; its data stays."):
                    writer.line(line)  # as the log does: a terminal that is held must not stop the node
            skip_existing()
            try:
                return await _until_stopped(node, stop)
            finally:
                limit_ms = settings.node.drain_timeout_ms + settings.node.stop_upload_timeout_ms
                stacks.exit_after(limit_ms / 1000 + STOP_GRACE_S, dump)
    except StartError as error:
        writer.line(f"Error: {error}")
        return FAILED


async def _until_stopped(node: "Node", stop: asyncio.Event) -> int:
    node.failed.add_done_callback(lambda _: stop.set())
    await stop.wait()
    return FAILED if node.failed.done() else 0
