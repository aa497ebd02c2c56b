"""`anabranch catalog ...`: back up a node's catalog, or rebuild it from the object store."""

from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from broker.cli.catalog_advance import advance
from broker.cli.catalog_rebuild import rebuild
from broker.cli.options import config_option, data_dir_option, read_settings
from s3stream.catalog.backup import Backup, back_up, sqlite_path
from s3stream.errors import StorageError


@click.group()
def catalog() -> None:
    """Back up a node's catalog, or rebuild it from the object store."""


catalog.add_command(rebuild)
catalog.add_command(advance)


@catalog.command(short_help="Copy the catalog of a node, running or stopped.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@config_option
@data_dir_option
def backup(file: Path, force: bool, config_file: Path | None, data_dir: Path | None) -> None:  # noqa: FBT001
    """Write a consistent copy of the SQLite catalog to FILE, and check it. The node may be running.

    Back up a catalog on PostgreSQL with PostgreSQL's tools, such as pg_dump.
    """
    settings = read_settings(config_file, data_dir)
    try:
        source = sqlite_path(settings.catalog_url)
        if source is None:
            raise click.ClickException("the catalog is on PostgreSQL: back it up with pg_dump --format=custom")
        made = _with_progress(source, file, overwrite=force)
    except StorageError as error:
        hint = "; --force overwrites it" if not force and file.exists() else ""
        raise click.ClickException(f"{error}{hint}") from None
    _print_backup(made)


def _with_progress(source: Path, target: Path, *, overwrite: bool) -> Backup:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("copying")
        return back_up(
            source,
            target,
            overwrite=overwrite,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _print_backup(made: Backup) -> None:
    counts = made.counts
    click.echo(
        f"{made.path}: {decimal(made.size_bytes)}, sound; cluster {made.cluster!r}, schema version "
        f"{made.schema_version}, {counts['topics']:,} topics with {counts['partitions']:,} partitions, "
        f"{counts['detached_topics']:,} detached topics, {counts['objects']:,} objects"
    )
