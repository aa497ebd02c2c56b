"""The `anabranch` command. Subcommands are loaded when they are called, so that each starts only what it needs."""

import importlib
import importlib.util
from difflib import get_close_matches
from typing import Final

import click

from anabranch.broker.operator.cli.streams import guarded_streams
from anabranch.extras import MissingExtra, needed

COMMANDS = {
    "serve": "Run a node.",
    "dev": "Run a node in memory, for a trial or for tests.",
    "console": "Open the web console of a running node.",
    "produce": "Write lines as records into a topic.",
    "consume": "Print the records of topics.",
    "topic": "Create, list, describe, alter, move, delete, detach, attach and clone topics of a running node.",
    "group": "List, describe, move and delete consumer groups.",
    "config": "Show and change configs of topics, brokers, loggers and groups.",
    "transaction": "List, describe and abort transactions.",
    "cluster": "Show the state of the whole cluster.",
    "node": "List the nodes of a cluster, drain one, declare one dead, give up its log, remove it.",
    "user": "List, create and delete users that authenticate themselves with SASL, and change passwords.",
    "acl": "List, add and remove access control lists.",
    "quota": "List, set and remove quotas of users, client ids and addresses.",
    "profile": "Create, choose, list, show and delete profiles: named options that find a cluster.",
    "security": "Set up a secure node for a trial, check certificates, replace the secret of a cluster.",
    "compact": "Compact a node's objects now.",
    "storage": "List and verify a node's objects, and handle stopped partitions.",
    "backup": "Write a backup of a cluster's catalog, while its nodes run.",
    "restore": "Make a new catalog from a backup and the object stores.",
    "catalog": "Rebuild a catalog from the object store, or use an older copy of it.",
    "wal": "Inspect, verify, resize and repair a write-ahead log.",
    "spark": "Run Spark jobs over topics.",
    "doctor": "Check disk, clock, limits, stores and catalog, and say what to change.",
    "bench": "Measure this machine's disk and stores, and say what to expect of a node.",
    "completion": "Print the script for completion in a shell.",
}
"""Help texts by name of the command. Each is a click command in the module of the same name in this package."""

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""


class LazyGroup(click.Group):
    """Imports a subcommand's module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the installed commands, in the order above."""
        del ctx
        return [name for name in COMMANDS if importlib.util.find_spec(f"{__name__}.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a subcommand. Raises MissingExtra, but not while a shell completes."""
        if cmd_name not in self.list_commands(ctx):
            return None
        try:
            with needed(f"anabranch {cmd_name}"):
                command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        except MissingExtra:
            if not ctx.resilient_parsing:
                raise
            return click.Command(cmd_name, help=COMMANDS[cmd_name])
        assert isinstance(command, click.Command), f"{cmd_name} is a click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand, or fail with the names that are near."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx))
            if near:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run a subcommand. Ctrl-C ends it as it ends other programs: quietly."""
        try:
            super().invoke(ctx)
        except MissingExtra as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="anabranch")
def main() -> None:
    """A Kafka-compatible broker that keeps its data in object storage."""


def run() -> None:
    """Run the command of this process."""
    with guarded_streams():
        main()
