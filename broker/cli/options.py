"""The options by which commands find a node's settings, and the settings read from there."""

from pathlib import Path
from typing import Final

import click

from broker.settings.errors import SettingsError
from broker.settings.model import Settings
from broker.settings.sources import load

config_option: Final = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="The node's settings file (TOML)."
)
data_dir_option: Final = click.option(
    "--data-dir", type=click.Path(path_type=Path), metavar="DIRECTORY", help="The node's data directory."
)


class BadSetting(click.ClickException):
    """A setting, or the file of them, that cannot be used: as an option that cannot be, and as `serve` tells of it."""

    exit_code = 2


def read_settings(config_file: Path | None, data_dir: Path | None = None) -> Settings:
    """The settings as the node would have them. Raises BadSetting."""
    try:
        return load({"node.data_dir": data_dir}, config_file=config_file)
    except SettingsError as error:
        raise BadSetting(str(error)) from None
