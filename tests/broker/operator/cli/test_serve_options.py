"""Commands on a stopped node take the options that the node was started with, from no file."""

import json
from pathlib import Path

import click
from click.testing import CliRunner

from anabranch.broker.operator.cli import main
from anabranch.broker.operator.cli.options import SettingsCommand
from tests.broker.cluster.membership.test_failover import create_topic
from tests.broker.operator.cli.test_every_command import commands
from tests.support.node import NodeProcess


def test_every_command_with_a_data_directory_takes_them() -> None:
    """But those of users, which ask a running node as a rule, and start fast."""
    for name, command in commands().items():
        is_one = name not in {"serve", "dev"} and not name.startswith("user ")
        if is_one and any("--data-dir" in each.opts for each in command.params):
            assert isinstance(command, SettingsCommand), name


def test_what_a_node_was_started_with_finds_its_files(tmp_path: Path) -> None:
    places = ["--catalog-url", f"sqlite:///{tmp_path}/c.db", "--objects-path", str(tmp_path / "o"), "--node-id", "auto"]
    places += ["--data-dir", str(tmp_path / "d")]
    settings = dict(zip([each.removeprefix("--").replace("-", "_") for each in places[::2]], places[1::2], strict=True))
    with NodeProcess(tmp_path, **settings) as node:
        create_topic(node)
        assert node.terminate() == 0

    def read(*arguments: str) -> dict[str, object]:
        done = CliRunner().invoke(main, [*arguments, *places, "--output", "json"])
        assert done.exit_code == 0, done.output
        found: dict[str, object] = json.loads(done.stdout)
        return found

    assert read("wal", "inspect")["node"] == 1
    assert read("storage", "verify")["sound"]
    assert read("backup", str(tmp_path / "backup"))["cluster"] == "anabranch"
    (tmp_path / "d" / "node-2").mkdir()
    refused = CliRunner().invoke(main, ["wal", "inspect", *places])
    assert (refused.exit_code, "give one, 1, 2, with --node-id" in refused.stderr) == (2, True)
    file = tmp_path / "node.toml"
    file.write_text('[node]\nnode_id = "auto"\n')
    places[4:6] = ["--config", str(file)]
    assert read("wal", "inspect", "--node-id", "1")["node"] == 1
    refused = CliRunner().invoke(main, ["wal", "inspect", *places, "--objects-store", "x"])
    assert (refused.exit_code, "flag --objects-store" in refused.stderr) == (2, True)


def test_help_lists_its_own_options_only() -> None:
    command = commands()["compact"]
    assert "--objects-path" not in command.get_help(click.Context(command))
