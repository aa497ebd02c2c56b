"""`anabranch compact`: compact now, in the node that runs, or in the storage of one that is stopped.

A running node is asked over its admin port. A stopped one is taken over: its data directory is locked, and its id is
registered anew, so that a process that still believes to be it is fenced.
"""

import asyncio
import json
import logging
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import structlog
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker.cli.admin_port import AdminPort, admin_option, configured, parse_admin
from broker.cli.options import config_option, data_dir_option, read_settings
from broker.settings.model import Settings

if TYPE_CHECKING:
    from s3stream.catalog.catalog import Catalog

POLL_S: Final = 0.2
STATUS_TIMEOUT_S: Final = 30.0
"""A node at work may be slow to tell how far it is."""

Report = Callable[[str, int, int], None]
"""Stage, bytes done, bytes in all."""


@click.command()
@config_option
@data_dir_option
@admin_option
@click.option("--plan", "plan_only", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def compact(
    config_file: Path | None,
    data_dir: Path | None,
    admin: str | None,
    plan_only: bool,  # noqa: FBT001 - click passes by name
    as_json: bool,  # noqa: FBT001
) -> None:
    """Compact a node's objects now.

    Small objects are joined to fewer, larger ones; data past retention is dropped. Asks the node that runs; where none
    answers, works on the stopped node's storage.
    """
    console = Console()
    settings = read_settings(config_file, data_dir)
    answer = _on_node(settings, admin, data_dir, console, plan_only=plan_only)
    if answer is None:
        answer = _on_stopped(settings, console, plan_only=plan_only)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif plan_only:
        print_plan(answer, console)
    else:
        print_summary(answer, console)


# a running node


def _on_node(settings: Settings, admin: str | None, data_dir: Path | None, console: Console, *, plan_only: bool) -> Any:
    """What the node answers; None when none runs where the settings say, or one with another data directory."""
    port = parse_admin(admin) if admin is not None else configured(settings)
    if port is None:
        return None
    try:
        status = port.status()
    except OSError as error:
        if admin is not None:
            raise click.ClickException(f"cannot reach {admin}: {error.strerror or error}") from None
        return None
    if admin is None and data_dir is not None and status["node"].get("data_dir") != str(data_dir.resolve()):
        return None  # two nodes on one machine: the one on the usual port is not the one that was named
    try:
        if plan_only:
            return port.call("GET", "/compact/plan", None)
        return _follow(port, console)
    except OSError as error:
        raise click.ClickException(f"{port} went away: {error.strerror or error}") from None


def _follow(port: AdminPort, console: Console) -> Any:
    """Ask for a run, and show how far it is until the answer comes."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(port.call("POST", "/compact", None))
        except (OSError, click.ClickException) as error:
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)  # noqa: TID251 - a blocking call beside a progress bar
    with progress_bar(console) as report:
        asking.start()
        while asking.is_alive():
            asking.join(POLL_S)
            found = (
                port.call("GET", "/status", STATUS_TIMEOUT_S)["compaction"].get("progress")
                if asking.is_alive()
                else None
            )
            if found:
                report(found["stage"], found["done_bytes"], found["total_bytes"])
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


# a stopped node


def _on_stopped(settings: Settings, console: Console, *, plan_only: bool) -> Any:
    if not settings.catalog.url and not (settings.node.data_dir / "catalog.db").is_file():
        raise click.ClickException(
            f"its node does not answer at {settings.admin.host}:{settings.admin.port}, and there is no catalog in the "
            f"data directory {settings.node.data_dir}: name the node's with --admin, --data-dir or --config"
        )
    from broker.settings.data_dir import DataDirError
    from s3stream.errors import StorageError

    try:
        with warnings_only():
            return asyncio.run(_compact_stopped(settings, console, plan_only=plan_only))
    except DataDirError as error:
        raise click.ClickException(f"{error}; if that is the node, ask it with --admin HOST:PORT") from None
    except StorageError as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def warnings_only() -> Iterator[None]:
    """What compaction has to say goes to standard error, and only if it is a warning: the summary tells the rest."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


async def _compact_stopped(settings: Settings, console: Console, *, plan_only: bool) -> Any:
    from broker.app import now_ms
    from broker.configs.broker import BrokerConfigs
    from broker.configs.cluster import ClusterConfigs
    from broker.configs.topic import parse_topic_config
    from broker.partitions.cleaning import KafkaBatches, clean_policies, history_of
    from broker.settings.data_dir import DataDirLock
    from broker.settings.stores import check_stores_hold_objects, make_stores
    from compaction.interface import Cleaning
    from compaction.node import CompactionNode
    from compaction.node import Progress as Step
    from compaction.service import CompactionService
    from compaction.settings import CompactionSettings
    from s3stream.catalog.catalog import Catalog
    from s3stream.maintain.manifest_keeper import check_catalog_is_newest

    async with AsyncExitStack() as stack:
        lock = DataDirLock(settings.node.data_dir)
        stack.callback(lock.release)
        catalog = Catalog(settings.catalog_url, read_only=plan_only)
        stack.push_async_callback(catalog.close)
        if await catalog.is_blank():
            raise click.ClickException(f"there is nothing in the catalog {catalog.where}: check catalog.url")
        await catalog.open(cluster=settings.node.cluster)
        rng = random.Random()  # noqa: S311 - spreads retries and tells writers apart, hides nothing
        stores = make_stores(settings, rng, read_only=plan_only)
        for store in stores.values():
            stack.push_async_callback(store.close)
            await store.open()
        await check_catalog_is_newest(catalog, stores[settings.objects.store], settings.node.cluster)
        await check_stores_hold_objects(catalog, stores, settings.node.cluster)
        topics = await catalog.list_topics()
        configs = ClusterConfigs(catalog)
        await configs.load()
        defaults = BrokerConfigs(configs, settings, settings.node.node_id)
        configured = [(topic, parse_topic_config(topic.configs, defaults)) for topic in topics]
        policies = clean_policies(configured)
        placement = {
            partition.stream_id: config.store for topic, config in configured for partition in topic.partitions
        }
        epoch = -1
        if not plan_only:
            epoch = await _register(settings, catalog, lock.lock_id, now_ms)
        Console(stderr=True).print(
            f"node {settings.node.node_id} is stopped: its storage is {'looked at' if plan_only else 'worked on'}",
            highlight=False,
        )
        node = CompactionNode(
            catalog=catalog,
            stores=stores,
            settings=CompactionSettings(
                split_bytes=settings.storage.split_bytes, delete_delay_ms=settings.storage.delete_delay_ms
            ),
            cluster=settings.node.cluster,
            node_id=settings.node.node_id,
            node_epoch=epoch,
            now_ms=now_ms,
            new_writer_id=lambda: f"{rng.getrandbits(128):032x}",
            cleaning=Cleaning(KafkaBatches(), lambda: policies, history_of),
            placement=placement.get,
        )
        service = CompactionService(node)
        if plan_only:
            return (await service.plan()).as_json(node)
        with progress_bar(console) as report:

            def show(step: Step) -> None:
                report(step.stage, step.done_bytes, step.total_bytes)

            summary = (await service.run_once(show)).as_json()
        await catalog.stop_node(settings.node.node_id, epoch, drained_wal=None, now_ms=now_ms())
        return summary


async def _register(settings: Settings, catalog: "Catalog", lock_id: str, now_ms: Callable[[], int]) -> int:
    """Take the stopped node's id; return its new epoch. Raises NodeInUse when it runs, here or elsewhere."""
    from broker.membership.lease import Claimant, wait_until_free
    from s3stream.catalog.values import NodeHolder

    host_name, node_id = socket.gethostname(), settings.node.node_id
    claimant = Claimant(lock_id, host_name, settings.one_machine, settings.catalog.lease_ms)
    seen = await wait_until_free(catalog, node_id, claimant)
    info = await catalog.register_node(
        node_id,
        settings.listener.host,
        settings.listener.port,
        now_ms=now_ms(),
        lease_ms=0,
        holder=NodeHolder(host_name, os.getpid(), lock_id),
        after_epoch=0 if seen is None else seen.epoch,
    )
    return info.epoch


# output


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """A progress bar on a terminal; nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("planning", total=None)

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield report


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """What a run did."""
    table = Table(box=None, show_header=False)
    calls = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in summary["calls"].items() if count)
    for name, value in (
        ("stream set objects", f"{summary['sso_before']:,} -> {summary['sso_after']:,}"),
        ("stream objects", f"{summary['so_before']:,} -> {summary['so_after']:,}"),
        ("read", decimal(summary["bytes_read"])),
        ("written", decimal(summary["bytes_written"])),
        ("copied by the store", decimal(summary["bytes_copied"])),
        (
            "cleaned by key",
            f"{counted(summary['streams_cleaned'], 'stream')}, {counted(summary['records_removed'], 'record')} removed",
        ),
        ("write amplification", f"{summary['write_amplification']:.2f}"),
        ("store calls", calls or "none"),
        ("iterations, commits", f"{summary['iterations']:,}, {summary['commits']:,}"),
        ("seconds", f"{summary['seconds']:.2f}"),
    ):
        table.add_row(f"[bold]{name}[/bold]", value)
    console.print(table)
    for error in summary["errors"]:
        console.print(f"[red]left undone[/red]: {escape(error)}", highlight=False)


def print_plan(plan: Mapping[str, Any], console: Console) -> None:
    """What a run would do."""
    if not any(plan.values()):
        console.print("nothing to do")
        return
    for sets in plan["stream_sets"]:
        console.print(
            f"store {sets['store']}: {counted(len(sets['inputs']), 'stream set object')} with "
            f"{counted(sets['streams'], 'stream')} in {counted(sets['blocks'], 'live block')} "
            f"({decimal(sets['live_bytes'])}; {decimal(sets['dead_bytes'])} expired) become "
            f"{counted(sets['stream_set_objects'], 'stream set object')} and "
            f"{counted(sets['stream_objects'], 'stream object')}",
            highlight=False,
        )
        table = Table("iteration", "bytes", "reads", "outputs", box=None, header_style="bold")
        for number, each in enumerate(sets["iterations"], 1):
            table.add_row(str(number), decimal(each["size_bytes"]), str(each["reads"]), str(each["outputs"]))
        console.print(table)
    print_streams("Stream objects to join", plan["stream_objects"], console)
    print_streams("Streams to clean by key", plan["cleanings"], console)
    if plan["stream_sets"]:
        console.print("What comes of the stream set objects is joined and cleaned by key in the same run.")


def print_streams(title: str, rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Streams of which objects are rewritten."""
    if not rows:
        return
    table = Table("stream", "first", "end", "objects", "bytes", box=None, header_style="bold")
    table.title, table.title_justify = title, "left"
    for row in rows:
        table.add_row(
            str(row["stream_id"]),
            f"{row['start_offset']:,}",
            f"{row['end_offset']:,}",
            f"{len(row['objects']):,}",
            decimal(row["size_bytes"]),
        )
    console.print(table)


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
