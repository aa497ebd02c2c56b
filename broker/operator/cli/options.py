"""Options with which commands find a node's settings.

Settings are loaded when a command reads them, and not with this module: that takes longer than a small command may.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.broker.node.settings.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anabranch.broker.node.settings.model import Settings

_GIVEN: Final = "anabranch.settings"
"""Key, in the `meta` of a context, of the settings that are given by options of `serve`."""

config_option: Final = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="The node's settings file (TOML)."
)
data_dir_option: Final = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="The node's data directory.",
)
catalog_option: Final = click.option(
    "--catalog-url",
    metavar="URL",
    help="Catalog of the cluster, in place of the settings or of an admin port (if no node runs).",
)


class SettingsCommand(click.Command):
    """A command that also takes the options of `serve`, which its help does not list. `read_settings` returns them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters, and the options of `serve` that it has not."""
        own = super().get_params(ctx)
        if all("--data-dir" not in each.opts for each in own):
            return own
        taken = {text for each in own for text in each.opts}
        return [*own, *(each for each in _serve_options() if taken.isdisjoint(each.opts))]


class SettingsGroup(click.Group):
    """A group of commands, which also take the options of `serve` if they have `--data-dir`."""

    command_class: "type[click.Command] | None" = SettingsCommand


@cache
def _serve_options() -> "Sequence[click.Option]":
    from anabranch.broker.node.settings.names import NAMED_AREAS, all_settings

    flags = [(each.key, each.flag, False) for each in all_settings() if each.flag]
    return [_hidden(*each) for each in (*flags, *((area.key, area.flag, True) for area in NAMED_AREAS))]


def _hidden(key: str, flag: str, multiple: bool) -> click.Option:  # noqa: FBT001 - click's own word
    option = click.Option([flag], multiple=multiple, expose_value=False, hidden=True, callback=_note)
    option.name = key
    return option


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value != ():
        context.meta.setdefault(_GIVEN, {})[parameter.name] = value


class BadSetting(click.ClickException):
    """A setting or the settings file is invalid. The exit code is that of an invalid option, as with `serve`."""

    exit_code = 2


def read_settings(
    config_file: Path | None, data_dir: Path | None = None, *, catalog_url: str | None = None
) -> "Settings":
    """Read the settings as the node does. Raises BadSetting.

    A node that has chosen its id is the one with `--node-id`, or the only one with a folder in the data directory.
    """
    from anabranch.broker.node.settings.sources import load

    context = click.get_current_context(silent=True)
    given: Mapping[str, Any] = {} if context is None else context.meta.get(_GIVEN, {})
    flags = {**given, "node.data_dir": data_dir, "catalog.url": catalog_url or given.get("catalog.url")}
    try:
        settings = load(flags, config_file=config_file)
        choosing = settings if settings.has_auto_id else load({**flags, "node.node_id": None}, config_file=config_file)
    except SettingsError as error:
        raise BadSetting(str(error)) from None
    if not choosing.has_auto_id:
        return settings
    if not settings.has_auto_id:  # the file says auto, an option which one
        return choosing.with_node_id(settings.node.node_id)
    folders = settings.node_folders()
    if (
        len(folders) > 1
        and context is not None
        and "data_dir" in context.params
        and "catalog_url" not in context.params
    ):
        names = ", ".join(map(str, folders))
        raise BadSetting(f"{settings.node.data_dir} has folders of several nodes: give one, {names}, with --node-id")
    return settings.with_node_id(folders[0]) if len(folders) == 1 else settings
