"""`anabranch compact`: compact now, in a running node over its admin port, or the storage of a stopped node.

See `broker.cluster.membership.stopped_node` for the latter.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TimeElapsedColumn

from anabranch.addresses import host_port
from anabranch.broker.node.settings.data_dir import DataDirError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.admin_port import AdminOptions, AdminPort, admin_option
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.progress import progress_bar
from anabranch.output import count_text, emit, make_console, make_facts, make_table, output_option

POLL_S: Final = 0.2
STATE_TIMEOUT_S: Final = 30.0
"""Limit for the state of a node under load."""

Report = Callable[[str, int, int], None]
"""Show progress: stage, bytes done, bytes in total."""


@click.command(cls=SettingsCommand)
@config_option
@data_dir_option
@admin_option
@click.option("--plan", "plan_only", is_flag=True, help="Only show what would be done.")
@output_option
def compact(
    config_file: Path | None,
    data_dir: Path | None,
    admin: AdminOptions,
    plan_only: bool,  # noqa: FBT001 - click passes by name
    output: str,
) -> None:
    """Compact a node's objects now.

    Joins small objects into fewer, larger ones, and drops data past retention. Runs in the running node; if none
    answers, works on the storage of the stopped node.
    """
    settings = read_settings(config_file, data_dir)
    answer = _on_node(settings, admin.of_node(config_file, data_dir), data_dir, plan_only=plan_only)
    if answer is None:
        answer = _on_stopped(settings, plan_only=plan_only)
    emit(output, answer, partial(print_plan if plan_only else print_summary, answer))


# a running node


def _on_node(settings: Settings, admin: AdminOptions, data_dir: Path | None, *, plan_only: bool) -> Any:
    """Compact in the running node; return None if none runs at the port, or one with another data directory."""
    port = admin.find(settings.admin)
    if port is None:
        return None
    try:
        port.greet()
    except OSError as error:
        if admin.address is not None or admin.profile.admin:
            raise click.ClickException(f"cannot reach {port}: {error.strerror or error}") from None
        return None
    try:
        if admin.address is None and data_dir is not None:
            found = port.call("GET", "/status", STATE_TIMEOUT_S)
            if found["node"]["data_dir"] != str(data_dir.resolve()):
                return None  # two nodes on one machine: the one on the default port has another data directory
        if plan_only:
            return port.call("GET", "/compaction/plan", None)
        return _follow(port)
    except OSError as error:
        raise click.ClickException(f"{port} closed the connection: {error.strerror or error}") from None


def _follow(port: AdminPort) -> Any:
    """Start a run, and show its progress until it ends."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(port.call("POST", "/compaction", None))
        except (OSError, click.ClickException) as error:
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)  # noqa: TID251 - a blocking call next to a progress bar
    with _stages() as report:
        asking.start()
        while asking.is_alive():
            asking.join(POLL_S)
            found = port.call("GET", "/compaction", STATE_TIMEOUT_S)["progress"] if asking.is_alive() else None
            if found:
                report(found["stage"], found["done_bytes"], found["total_bytes"])
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


# a stopped node


def _on_stopped(settings: Settings, *, plan_only: bool) -> Any:
    if not settings.catalog.url and not (settings.node.data_dir / "catalog.db").is_file():
        raise click.ClickException(
            f"its node does not answer at {host_port(settings.admin.host, settings.admin.port)}, and there is no "
            f"catalog in the data directory {settings.node.data_dir}: "
            "find the node with --admin, --data-dir or --config"
        )
    return run(_compact_stopped(settings, plan_only=plan_only))


async def _compact_stopped(settings: Settings, *, plan_only: bool) -> Any:
    from anabranch.broker.cluster.membership.environment import wall_ms  # imported late: they import the whole broker
    from anabranch.broker.cluster.membership.stopped_node import StoppedNode

    rng = random.Random()  # noqa: S311 - spreads retries and tells writers apart, hides nothing
    async with AsyncExitStack() as stack:
        try:
            node = await stack.enter_async_context(StoppedNode.opened(settings, rng, wall_ms, plan_only=plan_only))
        except DataDirError as error:
            raise DataDirError(f"{error}; if that is the node, give its port with --admin HOST:PORT") from None
        make_console(stderr=True).print(
            f"node {settings.node.node_id} is stopped: {'reading' if plan_only else 'compacting'} its storage",
            highlight=False,
        )
        if plan_only:
            return await node.plan()
        with _stages() as report:
            return await node.compact(lambda step: report(step.stage, step.done_bytes, step.total_bytes))


# output


@contextmanager
def _stages() -> Iterator[Report]:
    """Show the progress of a run, stage by stage."""
    with progress_bar(BarColumn(), TaskProgressColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("planning", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total or None)


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print the summary of a run."""
    calls = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in summary["calls"].items() if count)
    facts = (
        ("stream set objects", f"{summary['sso_before']:,} -> {summary['sso_after']:,}"),
        ("stream objects", f"{summary['so_before']:,} -> {summary['so_after']:,}"),
        ("read", size_text(summary["bytes_read"])),
        ("written", size_text(summary["bytes_written"])),
        ("copied by the store", size_text(summary["bytes_copied"])),
        (
            "cleaned by key",
            (
                f"{count_text(summary['streams_cleaned'], 'stream')}, "
                f"{count_text(summary['records_removed'], 'record')} removed"
            ),
        ),
        ("write amplification", f"{summary['write_amplification']:.2f}"),
        ("store calls", calls or "none"),
        ("iterations, commits", f"{summary['iterations']:,}, {summary['commits']:,}"),
        ("seconds", f"{summary['seconds']:.2f}"),
    )
    console.print(make_facts(facts))
    for error in summary["errors"]:
        console.print(f"[red]not done[/red]: {escape(error)}", highlight=False)


def print_plan(plan: Mapping[str, Any], console: Console) -> None:
    """Print the plan of a run."""
    if not any(plan.values()):
        console.print("nothing to do")
        return
    for sets in plan["stream_sets"]:
        console.print(
            f"store {sets['store']}: {count_text(len(sets['inputs']), 'stream set object')} with "
            f"{count_text(sets['streams'], 'stream')} in {count_text(sets['blocks'], 'live block')} "
            f"({size_text(sets['live_bytes'])}; {size_text(sets['dead_bytes'])} expired) become "
            f"{count_text(sets['stream_set_objects'], 'stream set object')} and "
            f"{count_text(sets['stream_objects'], 'stream object')}",
            highlight=False,
        )
        names = ("iteration", "bytes", "reads", "outputs")
        table = make_table(*names, right=names)
        for number, each in enumerate(sets["iterations"], 1):
            table.add_row(str(number), size_text(each["size_bytes"]), str(each["reads"]), str(each["outputs"]))
        console.print(table)
    print_streams("Stream objects to join", plan["stream_objects"], console)
    print_streams("Streams to clean by key", plan["cleanings"], console)
    if plan["stream_sets"]:
        console.print("The same run then joins the resulting stream objects, and cleans streams by key.")


def print_streams(title: str, rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print streams whose objects are rewritten."""
    if not rows:
        return
    names = ("stream", "first", "end", "objects", "bytes")
    table = make_table(*names, right=names, title=title)
    for row in rows:
        table.add_row(
            str(row["stream_id"]),
            f"{row['start_offset']:,}",
            f"{row['end_offset']:,}",
            f"{len(row['objects']):,}",
            size_text(row["size_bytes"]),
        )
    console.print(table)
