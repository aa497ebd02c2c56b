"""Options with which commands find a node's settings.

Settings are loaded when a command reads them, and not with this module: that takes longer than a small command may.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from anabranch.broker.node.settings.errors import SettingsError

if TYPE_CHECKING:
    from anabranch.broker.node.settings.model import Settings

config_option: Final = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="The node's settings file (TOML)."
)
data_dir_option: Final = click.option(
    "--data-dir", type=click.Path(path_type=Path), metavar="DIRECTORY", help="The node's data directory."
)
catalog_option: Final = click.option(
    "--catalog-url",
    metavar="URL",
    help="Catalog of the cluster, in place of the settings or of an admin port (if no node runs).",
)


class BadSetting(click.ClickException):
    """A setting or the settings file is invalid. The exit code is that of an invalid option, as with `serve`."""

    exit_code = 2


def read_settings(
    config_file: Path | None, data_dir: Path | None = None, *, catalog_url: str | None = None
) -> "Settings":
    """Read the settings as the node does. Raises BadSetting."""
    from anabranch.broker.node.settings.sources import load

    try:
        return load({"node.data_dir": data_dir, "catalog.url": catalog_url}, config_file=config_file)
    except SettingsError as error:
        raise BadSetting(str(error)) from None
