"""`anabranch spark verify` and `anabranch spark compact`: jobs over a cluster's storage.

Like `cli`, it imports PySpark only where it is used.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from anabranch.s3stream.errors import StorageError
from anabranch.spark.jars import SparkVersionError
from anabranch.spark.java import JavaNotFoundError, SessionError, SparkNotFoundError
from anabranch.spark.pipeline.errors import reason_of
from anabranch.spark.pipeline.sections import is_in_s3
from anabranch.spark.storage import STORES, LocationError, StorageLocation, find_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.compact import SparkCompactionSummary
    from anabranch.spark.verify import VerifySummary

MIB = 1 << 20
FINDINGS_SHOWN = 20
LOCATION_OPTIONS = {
    "config": ("--config", "FILE", "The node's settings file (TOML)."),
    "dataDir": ("--data-dir", "FOLDER", "The node's data directory, on this machine."),
    "cluster": ("--cluster", "NAME", "The cluster's name."),
    "catalog": ("--catalog", "URL", "The catalog: sqlite:///PATH or postgresql://USER@HOST/DB."),
    "objects": ("--objects", "PLACE", "The objects: a folder, or s3://BUCKET."),
    "endpoint": ("--endpoint", "URL", "The S3 service; credentials come from the environment, as for boto."),
    "region": ("--region", "NAME", "Region of the bucket."),
}
STORE_HELP = "A field of a further store, as for a node: cold.type=s3, cold.bucket=archive."


class PairType(click.ParamType):  # type: ignore[type-arg]  # it is generic from click 8.4 on
    """Option type for `name=value`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        name, sign, text = str(value).partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name, text


PAIR = PairType()


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a Spark session to a command."""
    conf = click.option("--conf", "settings", type=PAIR, multiple=True, help="Settings of the Spark session.")
    return click.option(
        "--master", help="Where Spark runs. Default: the pipeline file's, else all cores of this machine."
    )(conf(command))


def on_storage(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the storage and Spark to a command, and pass it session and location."""

    def run(
        *,
        master: str | None,
        settings: tuple[tuple[str, str], ...],
        stores: tuple[tuple[str, str], ...],
        **rest: Any,
    ) -> None:
        given = {name: value for name in LOCATION_OPTIONS if (value := rest.pop(name.lower())) is not None}
        given |= {f"{STORES}.{name}": value for name, value in stores}
        try:
            location = find_storage(given)
            s3, formats = _needs_of_report(rest.get("report"), rest.get("report_format"))
            name = f"anabranch {command.__name__}"
            with started(name, master, dict(settings), s3=s3, table_formats=formats) as spark:
                command(spark, location, **rest)
        except LocationError as error:
            raise click.UsageError(str(error)) from error
        except (StorageError, JavaNotFoundError, SessionError, SparkNotFoundError, SparkVersionError) as error:
            raise click.ClickException(str(error)) from error

    made = click.option("--store", "stores", type=PAIR, multiple=True, metavar="NAME.FIELD=VALUE", help=STORE_HELP)(
        update_wrapper(run, command)
    )
    for name, (flag, metavar, text) in reversed(LOCATION_OPTIONS.items()):
        made = click.option(flag, name.lower(), metavar=metavar, help=text)(made)
    return session_options(made)


def _needs_of_report(report: str | None, report_format: str | None) -> tuple[bool, Sequence[str]]:
    """Return whether a report is in S3, and the format that the session must be able to write, unless Spark can."""
    if report is None:
        return False, ()
    from anabranch.spark.session import EXTENSIONS

    return is_in_s3(report), [name for name in EXTENSIONS if name == report_format]


@contextmanager
def started(
    name: str, master: str | None, settings: Mapping[str, str], *, s3: bool, table_formats: Sequence[str]
) -> "Iterator[SparkSession]":
    """Provide a session for the duration of a command."""
    from pyspark.errors import PySparkException

    from anabranch.spark.session import build_session, quiet_errors

    quiet_errors()
    spark = build_session(name, master=master, settings=settings, s3=s3, table_formats=table_formats)
    try:
        yield spark
    except PySparkException as error:
        raise click.ClickException(f"the job failed: {str(error).strip().splitlines()[0]}") from error
    finally:
        spark.stop()


@click.command(short_help="Read every object, and prove that none is damaged.")
@click.option("--report", metavar="PLACE", help="Write a table with a row for each object and finding there.")
@click.option("--format", "report_format", default="parquet", show_default=True, help="Format of the report.")
@on_storage
def verify(spark: "SparkSession", location: StorageLocation, *, report: str | None, report_format: str) -> None:
    """Read every object, and prove that all is complete and undamaged. Exit code 1 if not."""
    from anabranch.spark.verify import verify as verify_storage

    if report is not None:
        check_place(spark, report)
    summary = verify_storage(spark, location, report=report, report_format=report_format)
    print_verified(summary, Console())
    if report is not None:
        click.echo(f"report: {report} ({report_format})")
    if not summary.ok:
        raise click.exceptions.Exit(1)


def check_place(spark: "SparkSession", report: str) -> None:
    """Look at the report's place before everything is read for it. Raises ClickException."""
    from anabranch.spark.pipeline.files import HadoopFolder

    try:
        HadoopFolder(spark, report).has("_SUCCESS")
    except Exception as error:  # of Java; its class depends on the file system
        raise click.ClickException(f"--report {report}: {reason_of(error)}") from error


def print_verified(summary: "VerifySummary", console: Console) -> None:
    """Print totals and the first findings."""
    table = Table(box=None, show_header=False)
    for name, value in (
        ("objects", f"{summary.objects:,} ({decimal(summary.size_bytes)})"),
        ("blocks", f"{summary.blocks:,}"),
        ("record batches", f"{summary.batches:,}"),
        ("records", f"{summary.records:,}"),
        ("partitions", f"{summary.streams:,}"),
        ("findings", f"{summary.findings:,}"),
    ):
        table.add_row(f"[bold]{name}[/bold]", value)
    console.print(table)
    for finding in summary.shown[:FINDINGS_SHOWN]:
        console.print(
            f"[red]{finding.kind.value}[/red]: {escape(finding.where)}: {escape(finding.detail)}", highlight=False
        )
    if summary.findings > FINDINGS_SHOWN:
        console.print(f"(the first {FINDINGS_SHOWN} of {summary.findings:,}; --report writes all)")


@click.command(short_help="Compact a backlog that is too large for a node, with Spark. Nodes may be running.")
@click.option("--node", "nodes", type=int, multiple=True, help="Only this node's objects; may be repeated.")
@click.option(
    "--task-mib", type=click.IntRange(32), default=200, show_default=True, help="Memory for data of one task, MiB."
)
@click.option("--timed", is_flag=True, help="Do only what a node's periodic compaction would do.")
@on_storage
def compact(
    spark: "SparkSession", location: StorageLocation, *, nodes: tuple[int, ...], task_mib: int, timed: bool
) -> None:
    """Compact a backlog too large for a node with Spark's tasks; nodes may run. Exit code 1: some work is left."""
    from anabranch.compaction.settings import CompactionSettings
    from anabranch.spark.compact import SparkCompaction

    rng = random.Random()  # noqa: S311 - tells writers apart, hides nothing
    run = SparkCompaction(
        spark,
        location,
        replace(CompactionSettings(), memory_bytes=task_mib * MIB),
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_writer_id=lambda: f"{rng.getrandbits(128):032x}",
        report=click.echo,
    )
    summary = asyncio.run(run.run(node_ids=nodes, full=not timed))
    print_compacted(summary, Console())
    if summary.refused or summary.left_alone:
        raise click.exceptions.Exit(1)


def print_compacted(summary: "SparkCompactionSummary", console: Console) -> None:
    """Print the result of a run."""
    table = Table(box=None, show_header=False)
    for name, value in (
        ("objects", f"{summary.objects_in:,} -> {summary.objects_out:,}"),
        ("read", decimal(summary.bytes_read)),
        ("written", decimal(summary.bytes_written)),
        ("tasks, commits", f"{summary.tasks:,}, {summary.commits:,}"),
    ):
        table.add_row(f"[bold]{name}[/bold]", value)
    console.print(table)
    if summary.overtaken:
        console.print(f"planned again: {summary.overtaken:,} times, when nodes had compacted the same objects first")
    for text in summary.refused:
        console.print(f"[red]left undone[/red]: {escape(text)}", highlight=False)
    if summary.left_alone:
        console.print(f"[red]unreadable objects[/red]: {', '.join(map(str, summary.left_alone))}", highlight=False)
