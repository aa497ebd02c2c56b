"""Text of docs/cli.md: the help of every command, so that page and commands cannot differ.

Options that many commands, or several of one group, share are described once.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Final, TypeAlias

import click

from anabranch.broker.operator.cli import COMMANDS, main

WIDTH: Final = 100
ELSEWHERE: Final = {
    "serve": "Its options are the settings of a node ([configuration](configuration.md)).",
    "spark": "Its jobs and their options are described with [Spark](spark.md).",
}
"""Commands whose options another page lists."""
SHARED_MIN: Final = 6
"""Number of commands from which on an option is described once for all of them."""
COMPANIONS: Final = {
    "--admin-token-file",
    "--admin-ca-file",
    "--admin-certificate-file",
    "--command-config",
    "--command-property",
    "--profile",
}
"""Shared options that a command has beside `--admin` or `--bootstrap-server`, which stand for them."""
PROGRAM: Final = "anabranch"
Record: TypeAlias = tuple[str, str]
"""An option and its text, as in a command's help."""
INTRODUCTION: Final = """\
# Command line

<!-- Generated from the commands by `python -m anabranch.broker.operator.cli.documentation`; a test compares. -->

For operators and developers: what each command of `anabranch` does, with its options. Commands that speak Kafka's
protocol also work with other brokers that serve the same APIs.

```console
$ anabranch topic create orders --partitions 6
$ anabranch produce orders --key-separator : < lines
$ anabranch consume orders --from "2h ago" --format json | jq .value
$ anabranch consume orders --use-schema-registry --format raw | jq .total
$ anabranch group seek readers --to 2026-11-25T08:00 --plan
$ anabranch topic alter orders --set retention.ms=7d
$ anabranch transaction list --open
$ anabranch doctor --config anabranch.toml
```

## What all commands have in common

**Connections.** `--bootstrap-server` names a node; its port is 9092 unless given. TLS and SASL come from Kafka's client
properties: `--command-config`, `--command-property` for what is not secret, or the environment
([security](security.md#commands-as-clients)). What Kafka's protocol does not have is asked of a node's
[admin port](security.md#the-admin-port), which a node of `--bootstrap-server` announces (its config `admin.listener`);
`--admin` names another. Its token comes from `--admin-token-file`. A [profile](#profiles) has all of it under a name.

**Settings.** Commands with `--data-dir` find a stopped node by its file, or by the options of `serve` (but `user`).

**Output.** `--output table` is for people, `json` and `yaml` are for programs: names of fields stay, columns of tables
may change. A check that finds something wrong prints its result before it fails. Results go to standard output;
questions, progress, warnings and errors go to standard error. In a pipe or a file a row is one line without colours;
`NO_COLOR` turns them off on terminals, too, and `COLUMNS` sets the width.

**Sizes** are shown in binary units (KiB, MiB, GiB). When read, `512MiB`, `512M` and `536870912` are the same; `512MB`
is 512 million bytes. JSON and YAML have bytes. Configs ending in `.bytes`
and quotas of bytes take sizes, and configs ending in `.ms` take times such as `90s`, `12h` and `7d`.

**Times** are ISO 8601, in UTC when shown. When read, a time without a zone is local.

**Questions.** What cannot be undone is asked about first; `--yes` answers. Without both a terminal and `--yes` the
command changes nothing.

| exit code | meaning |
|---|---|
| 0 | done; also when the reader of a pipe ended first, as `head` does |
| 1 | failed, or refused by the cluster, or a question was not answered with yes, or the output could not be written |
| 2 | an argument, option, setting or property is invalid, and nothing was begun |
| 3 | `cluster status`: partitions have no leader |
| 130 | ended by Ctrl-C. Not `serve` and `dev`, for which it is the way to stop: 0; `serve`: 130 at the second one |

### Profiles

```console
$ anabranch profile create staging -b kafka-1.example.com:9094 --command-config staging.properties \\
    --admin-token-file staging.token
$ anabranch topic list
$ anabranch topic list --profile prod
```

A command takes each value from its options, else from the environment, else from the profile (that of `--profile`, of
`ANABRANCH_PROFILE`, or of the last `profile create` or `profile use`), else it has its default. Profiles are in
`~/.config/anabranch/profiles.toml`, or below `XDG_CONFIG_HOME`, with the names of the options as keys, and may be
edited there. They hold paths and no secrets.

A profile is used as a whole, so that no login reaches a stranger: where an option, a property or settings name another
node or admin port, nothing of the profile is used for it. `--command-config` replaces the properties of the profile.

### Fields

Names are in snake case; those of bytes end in `_bytes`, those of times since 1970 in `_ms`. What is unknown or unset is
null. Lists and descriptions have the columns of their tables as fields. These commands have fields of their own:

| command | fields |
|---|---|
| `topic create` | `topic`, `id`, `partitions` |
| `topic alter` | `topic`, `changed` (false with `--plan`, and if nothing is to change), `partitions` (`from`, `to`), \
`configs` (`name`, `from`, `to`) |
| `topic delete`, `group delete`, `profile delete` | `deleted`: names |
| `topic detach`, `attach`, `clone` | `topic`, `id`, `partitions`; `clone` also `from` |
| `config set`, `unset` | `kind`, `name`, `changed` (as above), `configs` (`name`, `from`, `to`; null: the default) |
| `group seek` | `group`, `changed`: offsets, `partitions` (`topic`, `partition`, `from`, `to`, `by`) |
| `transaction abort` | `id`, `producer`, `partitions` |
| `topic list` | `topic`, `id`, `partitions`, `leaders`; with `--size` `records`, `size_bytes`; \
with `--rates` `records_per_s`, `bytes_per_s` |
| `user create`, `passwd`, `delete`, `hash` | `user`; `credentials` (`mechanism`, `iterations`); `removed`; `line` |
| `acl list`, `add`, `remove` | a row for each: `principal`, `host`, `permission`, `operation`, \
`resource_type`, `resource`, `pattern` |
| `quota list` | a row for each entity: `entity` (`type`, `name`; null: the default), `quotas` |
| `quota set`, `remove` | `entity`, `changed`, `quotas` (`name`, `from`, `to`; null: unset) |
| `profile create`, `use`, `list`, `show` | `profile`, `in_use`, `bootstrap_server`, `command_config`, \
`properties`, `admin`, `admin_token_file`, `admin_ca_file`, `admin_certificate_file`; `show` also `file` |
| `security init` | `directory`, `files` (`name`, `about`) |
| `security check` | a row for each use: `used_by`, `tls`, `subject`, `expires_ms`, `days_left`, `error` |
| `storage verify` | `sound`, `deep`, counts, `findings` (`finding`, `where`, `detail`), `not_checked` |
| `storage inspect` | the row in the catalog, `ranges`, `footer`, `blocks` |
| `wal verify` | `sound`, and the fields of `wal inspect` |
| `wal resize` | `device`, `capacity_bytes` |
| `wal repair` | `needed`, `repaired`, `saved_to`, `damaged_headers`, \
`damages` (`start_offset`, `end_offset`, `position`, `reason`, `losses`), `given_up_bytes`, \
`kept_records`, `kept_streams` |
| `wal sweep` | `deleted`: objects, `logs` (`log`, `ends`, `late`, `young`, `kept`) |
| `wal give-up` | `node`, `logs` (`id`, `location`, `last_opened_ms`), `partitions` (`partition`, `from_offset`) |
| `catalog advance` | `catalog` and `store`, each with its newest `manifest` and `object` |
| `catalog rebuild`, `restore` | the plan: `manifest`, `manifest_errors`, `backup`, what is taken and \
`left_out`, `has_loss`, `missing`, `damaged`, `gaps`, \
`not_reached`, `rows_in_tables`; then `rebuilt` (`records`, `partitions`, ...), null with `--plan` |
"""
SHARED: Final = """\
Described here once; a command names those that it has. `--admin` stands for the other `--admin-...`,
`--bootstrap-server` for `--command-...`, and both for `--profile`, too.
"""


def documentation() -> str:
    """Return the page."""
    root = click.Context(main, info_name=PROGRAM, **main.context_settings)
    commands = {name: main.get_command(root, name) for name in COMMANDS if name not in ELSEWHERE}
    counts = Counter(record for command in commands.values() for record in _all_records(command, root))
    shared = [record for record, count in counts.items() if count >= SHARED_MIN]
    parts = [INTRODUCTION, "### Shared options\n", SHARED, "```text", _rows(shared, root), "```\n", "## Commands\n"]
    parts += [", ".join(f"[`{name}`](#anabranch-{name})" for name in COMMANDS)]
    for name, text in COMMANDS.items():
        parts.append(f"\n## anabranch {name}")
        if name in ELSEWHERE:
            parts.append(f"\n{text} {ELSEWHERE[name]}")
        else:
            parts += _described(commands[name], root, name, shared)
    return "\n".join(parts) + "\n"


def _described(command: click.Command | None, parent: click.Context, name: str, shared: list[Record]) -> Iterator[str]:
    assert command is not None, f"{name} is installed"
    context = _context(command, parent, name)
    if isinstance(command, click.Group):
        yield f"\n{inspect.cleandoc(command.help or '')}"
        commands = {each: command.get_command(context, each) for each in command.list_commands(context)}
        counts = Counter(record for each in commands.values() for record in _all_records(each, context))
        common = [record for record, count in counts.items() if count > 1 and record not in shared]
        if common:
            yield f"\nOptions of several of these commands:\n\n```text\n{_rows(common, parent)}\n```"
        for each, its in commands.items():
            yield f"\n### {name} {each}"
            yield from _described(its, context, each, shared + common)
        return
    own = copy.copy(command)
    own.params = [each for each in command.params if each.get_help_record(context) not in shared]
    own.add_help_option = False
    own.options_metavar = None  # they follow
    text = "\n".join(line.rstrip() for line in own.get_help(_context(own, parent, name)).splitlines())
    left_out = [each.opts[-1] for each in command.params if each not in own.params]
    if left_out:
        names = " ".join(option for option in left_out if option not in COMPANIONS)
        text += "\n\n" + fill(f"Shared: {names}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield f"\n```text\n{text.removeprefix('Usage: ')}\n```"


def _all_records(command: click.Command | None, parent: click.Context) -> Iterator[Record]:
    assert command is not None, "it is installed"
    context = _context(command, parent, command.name or "")
    options = (each for each in command.get_params(context) if isinstance(each, click.Option))
    yield from (record for each in options if (record := each.get_help_record(context)))
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _all_records(command.get_command(context, each), context)


def _context(command: click.Command, parent: click.Context, name: str) -> click.Context:
    return click.Context(
        command, parent=parent, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, color=False
    )


def _rows(records: list[Record], root: click.Context) -> str:
    formatter = _context(main, root, PROGRAM).make_formatter()
    formatter.write_dl(records)
    return formatter.getvalue().rstrip("\n")


if __name__ == "__main__":
    target = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
    target.write_text(documentation(), encoding="utf-8")
