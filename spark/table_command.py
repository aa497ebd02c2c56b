"""`anabranch spark table`: the command. Like `cli`, it imports PySpark only where it is used."""

import asyncio
import os
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from anabranch.extras import MissingExtra
from anabranch.output import make_console
from anabranch.s3stream.errors import StorageError
from anabranch.spark.storage import StorageLocation
from anabranch.spark.storage_commands import on_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.table_backlog import SparkTableSummary


@click.command(short_help="Bring a topic's table that is far behind up to date, with Spark. Nodes may be running.")
@click.argument("topic")
@click.option("--registry", metavar="URL", help="Schema registry, if the table's schemas are in one.")
@click.option(
    "--registry-credentials-env", metavar="NAME", help="Environment variable with USER:PASSWORD for the registry."
)
@on_storage
def table(
    spark: "SparkSession",
    location: StorageLocation,
    *,
    topic: str,
    registry: str | None,
    registry_credentials_env: str | None,
) -> None:
    """Make the rows that the table of TOPIC lacks with Spark's tasks, and commit them; nodes may run.

    What was committed stays when it is stopped or fails: the same command goes on from there.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from anabranch.spark.table_backlog import SparkTable
    from anabranch.tables.process import ColumnsError
    from anabranch.tables.requests import Registry

    if registry is None and registry_credentials_env is not None:
        raise click.UsageError("--registry-credentials-env: set, but there is no --registry")
    place = None if registry is None else Registry(registry, _credentials(registry_credentials_env))
    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"table {topic}", total=None)
        run = SparkTable(
            spark,
            location,
            topic,
            registry=place,
            progress=lambda done, total: bar.update(task, completed=done, total=max(done, total)),
        )
        try:
            asyncio.run(run.run())
        except KeyboardInterrupt:
            raise click.ClickException(f"stopped: {_kept(run.summary)}") from None
        except (StorageError, ColumnsError, MissingExtra, OSError) as error:
            kept = f": {_kept(run.summary)}" if run.summary.commits else ""
            raise click.ClickException(f"{error}{kept}") from error
        finally:
            bar.stop()
    print_caught_up(run.summary, Console())


def _credentials(name: str | None) -> str | None:
    if name is None:
        return None
    if name not in os.environ:
        raise click.UsageError(f"--registry-credentials-env: the environment has no {name}")
    return os.environ[name]


def _kept(summary: "SparkTableSummary") -> str:
    return f"{summary.rows:,} rows were committed, and the same command goes on from there"


def print_caught_up(summary: "SparkTableSummary", console: Console) -> None:
    """Print the result of a run."""
    shown = Table(box=None, show_header=False)
    per_cpu_s = f"{summary.rows / summary.cpu_s:,.0f}" if summary.cpu_s else "-"
    for name, value in (
        ("rows", f"{summary.rows:,}" + (f" ({summary.errors:,} with an error)" if summary.errors else "")),
        ("files, commits", f"{summary.files:,}, {summary.commits:,}"),
        ("read -> written", f"{decimal(summary.bytes_read)} -> {decimal(summary.bytes_written)}"),
        ("seconds", f"{summary.seconds:,.1f}"),
        ("rows per CPU second", per_cpu_s),
    ):
        shown.add_row(f"[bold]{name}[/bold]", value)
    console.print(shown)
    if summary.overtaken:
        console.print(f"made in vain: {summary.overtaken:,} files, whose rows the node had committed first")
