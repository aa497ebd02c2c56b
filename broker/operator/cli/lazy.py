"""Groups of commands that load a subcommand when it is called, so that each starts only what it needs."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import click

from anabranch.extras import MissingExtra, needed
from anabranch.spelling import near_text

PACKAGE: Final = "anabranch.broker.operator.cli"
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""
THIS: Final = "this command"


class LazyGroup(click.Group):
    """Imports the module of a subcommand when it is needed.

    `subcommands` has, by name, the place of the click command, `MODULE:ATTRIBUTE` in this package, and its help text.
    """

    def __init__(self, *arguments: Any, subcommands: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the installed commands, in their order."""
        del ctx
        return [name for name in self._subcommands if importlib.util.find_spec(self._module(name)) is not None]

    def _module(self, name: str) -> str:
        return f"{PACKAGE}.{self._subcommands[name][0].partition(':')[0]}"

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a subcommand. Raises MissingExtra, but not while a shell completes."""
        if cmd_name not in self.list_commands(ctx):
            return None
        place, text = self._subcommands[cmd_name]
        try:
            with needed(THIS):
                command = getattr(importlib.import_module(self._module(cmd_name)), place.partition(":")[2])
        except MissingExtra:
            if not ctx.resilient_parsing:
                raise
            return click.Command(cmd_name, help=text)
        assert isinstance(command, click.Command), f"{cmd_name} is a click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand, or fail with the names that are near."""
        is_unknown = args and args[0] not in self._subcommands and not args[0].startswith("-")
        if is_unknown and (near := near_text(args[0], self.list_commands(ctx))):
            ctx.fail(f"No such command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run a subcommand. Ctrl-C ends it as it ends other programs: quietly."""
        try:
            with needed(THIS):  # parts of a command are imported when it uses them
                super().invoke(ctx)
        except MissingExtra as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._subcommands[name][1]) for name in self.list_commands(ctx)])
