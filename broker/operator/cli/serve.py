"""`anabranch serve`: run a node until a signal or a failure. Flags are generated from the settings."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.broker.node.logging import logs, stacks
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.data_dir import DataDirError
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
from anabranch.broker.node.settings.processes import process_count
from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.cli.node_process import FAILED, LOG_FLUSH_TIMEOUT_S, log, loop_factory, skip_existing
from anabranch.broker.operator.cli.options import BadSetting
from anabranch.broker.operator.cli.processes import OwnProcess, own_process, process_option, run_processes
from anabranch.broker.operator.cli.welcome import welcome

if TYPE_CHECKING:
    from anabranch.broker.cluster.node import Node

SECOND_SIGNAL = 130
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
STOP_GRACE_S = 20
"""Time of a stop beyond the settings' limits for draining and uploading, before the process exits by force. Half of it
is for an object log's last writes (`ObjectWalSettings.close_ms`)."""


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
@process_option
def serve(
    config: Path | None,
    stores: Sequence[str],
    table_catalogs: Sequence[str],
    process: tuple[int, str, int, int] | None,
    **flags: str | None,
) -> None:
    """Run a node, or several (--processes), until SIGTERM or SIGINT.

    SIGUSR1 writes the stacks of all threads and tasks of a node to standard error.

    Settings are taken from flags, then environment (ANABRANCH_...), then a TOML file, then defaults.
    """
    try:
        named = {STORES.key: stores, TABLE_CATALOGS.key: table_catalogs}
        settings = load({**{name.replace("__", "."): value for name, value in flags.items()}, **named}, None, config)
        own = None if process is None else own_process(settings, process)
        if own is not None:
            settings = own.settings
        levels, writer = LogLevels(), LineWriter()
        logs.configure(settings.log, levels, writer, None if own is None else settings.node.node_id)
        if own is None and (count := process_count(settings)) > 1:
            run_processes(settings, count, wait_s=stop_limit_s(settings), writer=writer)
    except SettingsError as error:
        raise BadSetting(str(error)) from None
    except (DataDirError, OSError) as error:
        raise click.ClickException(str(error)) from None
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(_serve(settings, levels, writer, own))
    finally:
        writer.flush(LOG_FLUSH_TIMEOUT_S)
    sys.exit(code)


def stop_limit_s(settings: Settings) -> float:
    """Return the time after which a node that stops exits by force."""
    # Each limit is used twice: for moves and for the upload, for requests of clients and for those of nodes.
    return 2 * (settings.node.drain_timeout_ms + settings.node.stop_upload_timeout_ms) / 1000 + STOP_GRACE_S


async def _serve(settings: Settings, levels: LogLevels, writer: LineWriter, own: OwnProcess | None) -> int:
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

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number.name)
    environment = None
    if own is not None:
        environment = own.environment()
        own.watch(loop, lambda: exit_now(0))
    try:
        async with run_node(settings, levels, environment) as node:
            serving.set()
            if own is not None:
                own.watch(loop, partial(_stop_with_all, node, own, stop), node.upkeep.failover.note_ended)
                own.say_serving(loop)
            elif os.isatty(writer.fd):
                _welcome(node, writer)
            skip_existing()
            try:
                return await _until_stopped(node, stop)
            finally:
                stacks.exit_after(stop_limit_s(settings), dump)
    except StartError as error:
        writer.line(f"Error: {error}")
        return FAILED


def _welcome(node: "Node", writer: LineWriter) -> None:
    """Say on a terminal where the node is."""
    settings = node.serving.settings
    objects = settings.objects
    store = settings.objects_path if objects.store == "local" else f"the bucket {objects.bucket}"
    place = f"{settings.node.data_dir}, objects in {store}"
    for line in welcome(node, place, "Ctrl-C stops the node; its data stays."):
        writer.line(line)  # as the log does: a terminal that is held must not stop the node


def _stop_with_all(node: "Node", own: OwnProcess, stop: asyncio.Event) -> None:
    """Stop the node because all processes stop: it leaves them nothing."""
    for number in STOP_SIGNALS:  # a process manager may have sent one to each of them
        asyncio.get_running_loop().add_signal_handler(number, lambda: None)
    node.serving.members.stop_with(own.siblings)
    if not stop.is_set():
        log.info("stopping: all processes stop")
        stop.set()


async def _until_stopped(node: "Node", stop: asyncio.Event) -> int:
    node.failed.add_done_callback(lambda _: stop.set())
    node.removed.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if node.removed.done():
        log.info("stopping", reason="the node was drained, and is to be removed from the cluster")
    return FAILED if node.failed.done() else 0
