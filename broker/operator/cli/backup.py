"""`anabranch backup`: write a backup of the catalog, while the nodes run."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.catalog_access import in_catalog, on_catalog
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand
from anabranch.broker.operator.cli.progress import progress
from anabranch.output import count_text, emit, output_option
from anabranch.s3stream.catalog.backup import BackupHeader
from anabranch.s3stream.catalog.catalog import Catalog


@click.command(cls=SettingsCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@output_option
@in_catalog
def backup(settings: Settings, file: Path, force: bool, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Write a backup of the catalog to FILE. The nodes may be running, and wait for nothing.

    FILE has the state of one moment. With the object stores, `anabranch restore` makes a new catalog from it that has
    all that was acknowledged later, too.
    """
    if file.exists() and not force:
        raise click.ClickException(f"backup {file}: the file exists; --force overwrites it")
    header = run(_run(settings, file, overwrite=force))
    rows, size = header.rows, file.stat().st_size

    def show(console: Console) -> None:
        console.print(
            f"{file}: {size_text(size)}; cluster {header.cluster!r}, schema version {header.schema_version}, "
            f"{count_text(rows['topics'], 'topic')} with {count_text(rows['partitions'], 'partition')}, "
            f"{count_text(rows['detached_topics'], 'detached topic')}, {count_text(rows['objects'], 'object')}",
            markup=False,
            soft_wrap=True,
        )

    emit(output, {"path": str(file), "size_bytes": size, **asdict(header)}, show)


async def _run(settings: Settings, file: Path, *, overwrite: bool) -> BackupHeader:
    from anabranch.broker.cluster.membership.environment import wall_ms  # it imports much

    with progress("copying rows") as update:

        async def write(catalog: Catalog) -> BackupHeader:
            return await catalog.back_up(file, now_ms=wall_ms(), overwrite=overwrite, on_progress=update)

        return await on_catalog(settings, write, read_only=True)
