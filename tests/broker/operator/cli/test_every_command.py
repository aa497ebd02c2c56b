"""All commands of the parser: each that prints a result prints it as JSON and YAML, too, on real nodes."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition

from anabranch.broker.operator.cli import main
from tests.broker.cluster.membership.test_failover import cluster
from tests.support.node import NodeProcess
from tests.support.waiting import WAIT_S, wait_until

WITHOUT_OUTPUT: Final = {
    "serve": "it runs until it is stopped, and its log has a form of its own",
    "dev": "it runs until it is stopped",
    "console": "it prints one address",
    "produce": "it prints no result, only counts on standard error",
    "consume": "its records have --format, which has json",
    "spark": "its jobs print what Spark does",
    "completion": "it prints a script",
}
"""Commands without `--output`, and why."""
SHOWN_ELSEWHERE: Final = {
    "storage discard": "tests/broker/operator/cli/test_stopped.py: a node must have stopped a partition"
}
FURTHER_FORMS: Final = {"table query": ("csv",)}
READ: Final = {"json": json.loads, "yaml": yaml.safe_load}


def commands() -> Mapping[str, click.Command]:
    """All commands that are no groups, by their words."""
    return dict(_below(main, click.Context(main), ()))


def _below(group: click.Command, context: click.Context, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group) or words == ("spark",):
        yield " ".join(words), group
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from _below(command, click.Context(command, parent=context, info_name=name), (*words, name))


def test_each_command_that_prints_a_result_has_the_option() -> None:
    found = commands()
    without = {name for name, command in found.items() if all(each.name != "output" for each in command.params)}
    assert without == set(WITHOUT_OUTPUT)
    for name in found.keys() - without:
        (option,) = (each for each in found[name].params if each.name == "output")
        assert isinstance(option.type, click.Choice)
        assert list(option.type.choices) == ["table", "json", "yaml", *FURTHER_FORMS.get(name, ())], name


class Checker:
    """Runs commands, checks that standard output is JSON or YAML and nothing else, and records which were run."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def run(self, form: str, *arguments: str | Path, code: int = 0) -> Any:
        """Run a command in one form, and return what it printed."""
        texts = [str(each) for each in arguments]
        result: Result = CliRunner().invoke(main, [*texts, "--output", form])
        assert result.exit_code == code, (texts, result.output)
        found = READ[form](result.stdout)
        assert isinstance(found, dict | list), texts
        _check_names(found, texts)
        self.seen.add(next(name for name in commands() if name.split() == texts[: len(name.split())]))
        return found

    def both(self, *arguments: str | Path, code: int = 0) -> Any:
        """Run a command in both forms, and return what it printed as JSON."""
        self.run("yaml", *arguments, code=code)
        return self.run("json", *arguments, code=code)


NAME: Final = re.compile("[a-z][a-z0-9_]*")
NAMES_FROM_OUTSIDE: Final = {"configs", "failed", "rows", "nodes", "properties", "summary"}
"""Fields whose own fields are named by the user, the catalog or Iceberg."""


def _check_names(found: Any, where: object) -> None:
    """Names of fields are in snake case."""
    if isinstance(found, list):
        for each in found:
            _check_names(each, where)
    elif isinstance(found, dict):
        for name, value in found.items():
            if name not in NAMES_FROM_OUTSIDE or not isinstance(value, dict):
                _check_names(value, where)
            assert NAME.fullmatch(name), (where, name)


@pytest.fixture
def check() -> Checker:
    return Checker()


def settings_of(folder: Path, node: NodeProcess) -> Path:
    """A settings file with which commands find what a node has."""
    file = folder / "commands.toml"
    wal = "allow_volatile = true\ncapacity_bytes = 8388608"
    file.write_text(
        f'[node]\ndata_dir = "{node.data_dir}"\n[catalog]\nurl = "{node.settings["catalog_url"]}"\nlease_ms = 3000\n'
        f'[objects]\npath = "{node.settings["objects_path"]}"\n[wal]\n{wal}\n'
    )
    return file


@pytest.mark.slow
def test_each_command_prints_json_and_yaml(tmp_path: Path, check: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CATALOG_LEASE_MS", "1000")  # commands wait for the leases of killed nodes
    everybody = "User:ANONYMOUS"
    first, second = cluster(tmp_path, 2, wal_kind="object", authorizer_enabled=True, authorizer_super_users=everybody)
    with first, second:
        settings = settings_of(tmp_path, first)
        _topics(check, first, second)
        _groups_and_transactions(check, first)
        _tables(check, first)
        _access(check, first)
        _cluster(check, first, settings, tmp_path)
        check.run("json", "node", "drain", "2", "--admin", first.admin)
        check.run("yaml", "node", "drain", "2", "--cancel", "--admin", first.admin)
        check.run("json", "node", "fail", "2", "--yes", "--admin", first.admin)
        assert second.wait() != 0
        check.run("yaml", "node", "remove", "2", "--admin", first.admin)
        assert first.terminate() == 0
    (found, *_) = check.both("storage", "ls", "--state", "committed", "--config", settings)["objects"]
    assert check.both("storage", "inspect", str(found["id"]), "--config", settings)["footer"]["blocks"] > 0
    check.both("storage", "verify", "--config", settings)
    check.both("wal", "sweep", "--older-than", "1d", "--config", settings)
    _stopped_node(check, tmp_path / "lone")
    assert check.seen == commands().keys() - WITHOUT_OUTPUT.keys() - SHOWN_ELSEWHERE.keys()


def _topics(check: Checker, first: NodeProcess, second: NodeProcess) -> None:
    there, admin = ("--bootstrap-server", first.bootstrap), ("--admin", first.admin)
    for form in READ:
        name, clone = f"topic-{form}", f"clone-{form}"
        made = check.run(form, "topic", "create", name, "--partitions", "2", *there)
        assert (made["topic"], made["partitions"]) == (name, 2)
        altered = check.run(form, "topic", "alter", name, "--partitions", "3", "--set", "retention.ms=1", *there)
        assert altered["partitions"] == {"from": 2, "to": 3}
        assert altered["configs"][0]["to"] == "1"
        cloned = check.run(form, "topic", "clone", name, clone, *admin)
        assert check.run(form, "topic", "detach", clone, *admin)["id"] == cloned["id"]
        assert [each["id"] for each in check.run(form, "topic", "detached", *admin)] == [cloned["id"]]
        assert check.run(form, "topic", "attach", cloned["id"], *admin)["topic"] == clone
        assert check.run(form, "topic", "delete", clone, "--yes", *there) == {"deleted": [clone]}
    assert {each["topic"] for each in check.both("topic", "list", *there)} == {"topic-json", "topic-yaml"}
    (described,) = check.both("topic", "describe", "topic-json", *there)
    assert described["id"] == check.both("topic", "list", *there)[0]["id"]
    wait_until(lambda: len(check.run("json", "node", "list", *admin)) == 2, "the nodes know each other")
    check.both("topic", "move", "topic-json:0", "--to", "2", "--admin", second.admin)
    check.both("topic", "move", "topic-json:0", "--to", "1", "--admin", first.admin)
    assert check.both("topic", "elect", "topic-json", *there)["failed"] == {}
    for form in READ:
        check.run(form, "config", "set", "topic", "topic-json", "retention.ms=5", *there)
        check.run(form, "config", "unset", "topic", "topic-json", "retention.ms", *there)
    check.both("config", "describe", "topic", "topic-json", "--all", *there)


def _groups_and_transactions(check: Checker, node: NodeProcess) -> None:
    there = ("--bootstrap-server", node.bootstrap)
    for form in READ:
        with closing(Consumer({"bootstrap.servers": node.bootstrap, "group.id": form})) as consumer:
            consumer.commit(offsets=[TopicPartition("topic-json", 0, 0)], asynchronous=False)
    check.both("group", "list", *there)
    check.both("group", "describe", "json", "yaml", *there)
    check.both("group", "seek", "json", "--to", "end", "--yes", *there)
    deleted = check.run("json", "group", "delete-offsets", "json", "--topic", "topic-json:0", "--yes", *there)
    assert deleted == {"group": "json", "deleted": [{"topic": "topic-json", "partition": 0}]}
    for form in READ:
        assert check.run(form, "group", "delete", form, "--yes", *there) == {"deleted": [form]}
    for form in READ:
        producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": form})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("topic-json", b"1", partition=0)
        assert producer.flush(WAIT_S) == 0
        check.both("transaction", "list", *there)
        check.both("transaction", "describe", form, *there)
        aborted = check.run(form, "transaction", "abort", form, "--yes", *there)
        assert aborted["partitions"] == ["topic-json-0"]


def _tables(check: Checker, node: NodeProcess) -> None:
    there, admin = ("--bootstrap-server", node.bootstrap), ("--admin", node.admin)
    for form in READ:
        name = f"table_{form}"
        check.run(form, "topic", "create", name, "--table", "raw", *there)
        producer = Producer({"bootstrap.servers": node.bootstrap})
        producer.produce(name, b"1")
        assert producer.flush(WAIT_S) == 0
        assert check.run(form, "table", "commit", name, *admin)["rows"] == 1
    check.both("table", "list", *admin)
    check.both("table", "describe", "table_json", "table_yaml", *admin)
    check.both("table", "snapshots", "table_json", *admin)
    check.both("table", "query", "table_json", "SELECT count(*) AS n FROM table_json", *admin)
    for form in READ:
        assert check.run(form, "table", "drop", f"table_{form}", "--yes", *admin)["rows"] == 1
        check.run(form, "topic", "delete", f"table_{form}", "--yes", *there)


def _access(check: Checker, node: NodeProcess) -> None:
    there = ("--bootstrap-server", node.bootstrap)
    for form in READ:
        check.run(form, "acl", "add", "--allow-principal", form, "--topic", "t", *there)
        assert len(check.run(form, "acl", "list", "--principal", form, *there)) == 1
        check.run(form, "acl", "remove", "--principal", form, "--yes", *there)
        check.run(form, "quota", "set", "producer_byte_rate=1MiB", "--user", form, *there)
        assert len(check.run(form, "quota", "list", "--user", form, *there)) == 1
        check.run(form, "quota", "remove", "--user", form, *there)
        check.run(form, "profile", "create", form, *there)
    for form in READ:
        check.both("profile", "show", form)
        check.run(form, "profile", "use", form)
        check.both("profile", "list")
    for form in READ:
        check.run(form, "profile", "delete", form)


def _cluster(check: Checker, node: NodeProcess, settings: Path, folder: Path) -> None:
    admin, where = ("--admin", node.admin), ("--config", settings)
    check.both("cluster", "status", *admin)
    for what in ("--dry-run", "--history", "--pause", "--resume"):
        check.both("cluster", "balance", what, *admin)
    check.both("cluster", "cost", *admin)
    check.both("cluster", "upgrade", "--dry-run", "--bootstrap-server", node.bootstrap)
    check.both("node", "list", *admin)
    password = folder / "password"
    password.write_text("secret\n")
    for form in READ:
        check.run(form, "user", "create", form, "--password-file", password, *where)
        check.run(form, "user", "passwd", form, "--password-file", password, *where)
        check.run(form, "user", "hash", form, "--password-file", password)
        check.both("user", "list", *where)
        check.run(form, "user", "delete", form, "--yes", *where)
        check.run(form, "security", "init", folder / f"secure-{form}")
        check.run(form, "backup", folder / f"backup-{form}", *where)
    check.both("security", "check", "--config", folder / "secure-json" / "node.toml")
    check.both("security", "rotate-secret", *where)
    (schema := folder / "t.avsc").write_text('"string"')
    for form in READ:
        check.run(form, "schema", "register", form, schema, *admin)
        check.run(form, "schema", "check", form, schema, *admin)
        check.run(form, "schema", "show", form, *admin)
        check.run(form, "schema", "level", form, *admin)
        assert len(check.run(form, "schema", "list", form, *admin)) == 1
        check.run(form, "schema", "delete", form, *admin)
    check.both("compact", *where, *admin)
    check.both("storage", "stopped", *admin)
    check.both("doctor", *where)
    check.both("bench", "--writes", "10", "--objects", "4", "--object-size", "1MiB", *where)


def _stopped_node(check: Checker, folder: Path) -> None:
    with NodeProcess(folder, catalog_lease_ms=1_000) as node:
        create = ("topic", "create", "t", "--bootstrap-server", node.bootstrap)
        check.run("json", *create)
        assert node.terminate() == 0  # the store has a manifest then
        node.start()
        producer = Producer({"bootstrap.servers": node.bootstrap})
        producer.produce("t", b"1")
        assert producer.flush(WAIT_S) == 0
        node.kill9()
    data = node.data_dir
    lost = folder / "lost"
    shutil.copytree(data, lost)
    log = data / "wal"
    check.both("wal", "inspect", log)
    assert check.both("wal", "verify", log)["sound"]
    assert not check.both("wal", "repair", log)["needed"]
    assert check.both("wal", "resize", log, "--capacity", "16MiB")["capacity_bytes"] == 16 << 20
    (lost / "wal").unlink()
    again = folder / "again"
    shutil.copytree(lost, again)
    assert check.run("json", "wal", "give-up", "--yes", "--data-dir", lost)["partitions"]
    check.run("yaml", "node", "give-up", "1", "--yes", "--catalog-url", f"sqlite:///{again}/catalog.db")
    check.both("catalog", "advance", "--yes", "--data-dir", lost)
    check.run("json", "backup", folder / "backup", "--data-dir", data)
    _remove_catalog(data)
    check.both("restore", folder / "backup", "--plan", "--data-dir", data)
    assert check.run("json", "restore", folder / "backup", "--data-dir", data)["rebuilt"]["partitions"]
    _remove_catalog(data)
    assert check.run("json", "catalog", "rebuild", "--plan", "--data-dir", data)["rebuilt"] is None
    assert check.run("yaml", "catalog", "rebuild", "--data-dir", data)["rebuilt"]["partitions"]


def _remove_catalog(data: Path) -> None:
    for file in data.glob("catalog.db*"):
        file.unlink()
