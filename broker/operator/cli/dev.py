"""`anabranch dev`: run a node whose data is in memory, until a signal."""

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from anabranch.broker.kafka.topics.names import check_topic_name
from anabranch.broker.node.logging import logs, stacks
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.names import all_settings
from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.cli.node_process import FAILED, LOG_FLUSH_TIMEOUT_S, loop_factory, skip_existing
from anabranch.broker.operator.cli.options import BadSetting
from anabranch.broker.operator.cli.welcome import welcome
from anabranch.broker.operator.dev.folder import MemoryFolder
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.errors import StorageError
from anabranch.spelling import near_text

if TYPE_CHECKING:
    from anabranch.broker.cluster.node import Node

DEFAULTS: Final[Mapping[str, object]] = {
    "wal.capacity_bytes": "32MiB",
    "wal.allow_volatile": "true",
    "wal.durability": "direct",  # its data ends with it: there is nothing to flush for
    "storage.log_cache_bytes": "64MiB",
    "storage.block_cache_bytes": "32MiB",
    "network.slab_pool_bytes": "32MiB",
    "admin.on_demand": "true",
    "topic.any_replication_factor": "true",
    "group.initial_rebalance_delay_ms": "0",
    "group.offsets_partitions": "4",
    "transaction.state_partitions": "4",
    "share.state_partitions": "4",
    "log.level": "warning",
}
"""Settings that differ from those of a node: small, quick to start, and open to what programs ask of a cluster."""


class _CannotStart(Exception):
    """The node does not serve. The text is the one line to show."""


class _Ended(Exception):
    """The end of the node: its data is no longer needed, so nothing is uploaded first."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="Port; 0: any free port.")
@click.option(
    "--admin-port", type=click.IntRange(0, 65535), default=9644, show_default=True, help="Admin port; 0: any free port."
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:PARTITIONS]",
    multiple=True,
    help="Topic to create at the start; repeatable. Others are created when clients use them.",
)
@click.option(
    "--set",
    "settings",
    metavar="AREA.NAME=VALUE",
    multiple=True,
    help="Setting, as in a settings file (`topic.num_partitions=3`); repeatable.",
)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True, help="Folder for the data, which ends with it.")
@click.option("--controlled", is_flag=True, hidden=True, help="Take orders from standard input, and end with it.")
@click.option("--ahead-ms", type=int, default=0, hidden=True, help="Time by which its clocks are ahead.")
def dev(
    host: str,
    port: int,
    admin_port: int,
    topics: Sequence[str],
    settings: Sequence[str],
    folder: Path | None,
    controlled: bool,  # noqa: FBT001 - click passes options by name
    ahead_ms: int,
) -> None:
    """Run a node whose data is in memory until Ctrl-C, when all its data is gone.

    Flags are its only settings: there is no settings file, and ANABRANCH_... in the environment does not count.
    """
    wanted = dict(_topic(text) for text in topics)
    flags: dict[str, object] = {
        **DEFAULTS,
        "listener.host": host,
        "listener.port": port,
        "admin.port": admin_port,
        **dict(_setting(text) for text in settings),
    }
    place = MemoryFolder(folder)
    code = FAILED
    try:
        try:
            loaded = load({**flags, "node.data_dir": place.path / "data"}, {})
        except SettingsError as error:
            raise BadSetting(str(error)) from None
        code = _run(loaded, wanted, place, is_controlled=controlled, ahead_ms=ahead_ms)
    finally:
        if folder is None or not code:  # after a failure its owner wants to read the log
            place.remove()
    sys.exit(code)


def _topic(text: str) -> tuple[str, int]:
    name, separator, count = text.partition(":")
    if separator and (not count.isdecimal() or not int(count)):
        raise click.BadParameter(f"expected NAME or NAME:PARTITIONS, found {text!r}", param_hint="--topic")
    try:
        check_topic_name(name)
    except KafkaError as error:
        raise click.BadParameter(error.message, param_hint="--topic") from None
    return name, int(count or 1)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"expected AREA.NAME=VALUE, found {text!r}", param_hint="--set")
    names = [f"{each.area}.{each.name}" for each in all_settings()]
    if name not in names:
        advice = near_text(name, names) or "; `anabranch serve --help` lists them"
        raise BadSetting(f"unknown setting {name!r}{advice}")
    return name, value


def _run(
    settings: Settings, topics: Mapping[str, int], place: MemoryFolder, *, is_controlled: bool, ahead_ms: int
) -> int:
    """Run the node until its end; return the exit code."""
    levels, writer = LogLevels(), LineWriter()
    logs.configure(settings.log, levels, writer)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(
                _serve(settings, levels, writer, topics, place, is_controlled=is_controlled, ahead_ms=ahead_ms)
            )
    except _CannotStart as error:
        writer.line(f"Error: {error}")
        return FAILED
    finally:
        writer.flush(LOG_FLUSH_TIMEOUT_S)


async def _serve(
    settings: Settings,
    levels: LogLevels,
    writer: LineWriter,
    topics: Mapping[str, int],
    place: MemoryFolder,
    *,
    is_controlled: bool,
    ahead_ms: int,
) -> int:
    stacks.install(asyncio.get_running_loop(), writer.fd, writer.line)
    # After validating the settings: it imports the whole broker.
    from anabranch.broker.app import run_node
    from anabranch.broker.operator.dev.controls import Controls
    from anabranch.broker.operator.dev.orders import create_topic
    from anabranch.broker.operator.dev.owner import Owner
    from anabranch.broker.operator.dev.time_travel import MovedClock

    skip_existing()  # a node is none of it: it may be stopped, and another started
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    owner = await Owner.connected() if is_controlled else None
    controls = Controls(MovedClock(ahead_ms))
    with closing(controls.ports):
        while True:
            stopped = False
            async with _running(run_node(settings, levels, controls.environment())) as node:
                for name, partitions in topics.items():
                    await create_topic(node.serving, name, partitions, {})
                node.failed.add_done_callback(lambda _: ended.set())
                if owner is None:
                    _welcome(node, place)
                    await ended.wait()
                else:
                    stopped = await owner.serve(node, controls, ended)
            if owner is None or not stopped or not await owner.wait_for_start(controls, ended):
                return FAILED if node.failed.done() else 0
            del node
            gc.collect()  # what was imported is skipped, so it takes milliseconds


@asynccontextmanager
async def _running(started: "AbstractAsyncContextManager[Node]") -> AsyncIterator["Node"]:
    """Run a node, which ends as in a crash: its data is no longer needed. Raises _CannotStart, also for the body."""
    from anabranch.broker.app import StartError

    with suppress(_Ended):
        try:
            async with started as node:
                yield node
                raise _Ended
        except (StartError, KafkaError, StorageError) as error:
            raise _CannotStart(str(error)) from None


def _welcome(node: "Node", place: MemoryFolder) -> None:
    """Say where the node is."""
    where = "memory" if place.is_in_memory else f"{place.path}, since this machine has no room in memory"
    for line in welcome(node, where, "Ctrl-C ends the node; its data is gone then."):
        click.echo(line)
