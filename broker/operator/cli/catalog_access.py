"""Commands that change the catalog themselves, so that they work while nodes run, and while none does."""

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.options import catalog_option, config_option, data_dir_option, read_settings
from anabranch.s3stream.catalog.catalog import Catalog

T = TypeVar("T")


def in_catalog(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find the catalog; the command receives the settings first."""

    def wrapped(config_file: Path | None, data_dir: Path | None, catalog_url: str | None, **arguments: Any) -> None:
        command(read_settings(config_file, data_dir, catalog_url=catalog_url), **arguments)

    return config_option(data_dir_option(catalog_option(update_wrapper(wrapped, command))))


async def on_catalog(settings: Settings, act: Callable[[Catalog], Awaitable[T]], *, read_only: bool = False) -> T:
    """Open the catalog, and act on it. Raises ClickException, StorageError."""
    catalog = Catalog(settings.catalog_url, read_only=read_only)
    try:
        if await catalog.is_blank():
            raise click.ClickException(f"there is nothing in the catalog {catalog.where}: start the node first")
        await catalog.open(cluster=settings.node.cluster)
        return await act(catalog)
    finally:
        await catalog.close()
