"""Options with which commands find a node's settings."""

from pathlib import Path
from typing import Final

import click

from broker.settings.errors import SettingsError
from broker.settings.model import Settings
from broker.settings.sizes import parse_size
from broker.settings.sources import load

config_option: Final = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="The node's settings file (TOML)."
)
data_dir_option: Final = click.option(
    "--data-dir", type=click.Path(path_type=Path), metavar="DIRECTORY", help="The node's data directory."
)
output_option: Final = click.option(
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)


class SizeType(click.ParamType[int]):
    """A size in bytes, with or without a unit."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the text of an option."""
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class BadSetting(click.ClickException):
    """A setting or the settings file is invalid. The exit code is that of an invalid option, as with `serve`."""

    exit_code = 2


def read_settings(config_file: Path | None, data_dir: Path | None = None) -> Settings:
    """Read the settings as the node does. Raises BadSetting."""
    try:
        return load({"node.data_dir": data_dir}, config_file=config_file)
    except SettingsError as error:
        raise BadSetting(str(error)) from None
