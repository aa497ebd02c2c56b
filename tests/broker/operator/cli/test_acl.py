"""`anabranch acl` on a node that decides by ACLs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli import main
from anabranch.testing import Broker
from tests.support.node import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("acls")
    with NodeProcess(folder, authorizer_enabled=True, authorizer_super_users="User:ANONYMOUS") as process:
        yield process


@pytest.fixture(autouse=True)
def no_acls(node: NodeProcess) -> Iterator[None]:
    yield
    for principal in {row["principal"] for row in read(node, "list")}:
        ok(node, "remove", "--principal", principal, "--yes")


def run(node: NodeProcess | None, *arguments: str, typed: str | None = None) -> Result:
    servers = [] if node is None else ["-b", node.bootstrap]
    return CliRunner().invoke(main, ["acl", *arguments, *servers], input=typed, env={"COLUMNS": "200"})


def ok(node: NodeProcess, *arguments: str) -> str:
    done = run(node, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def read(node: NodeProcess, *arguments: str) -> Any:
    return json.loads(ok(node, *arguments, "-o", "json"))


def rows(found: Any) -> list[str]:
    return [" ".join(each.values()) for each in found]


def test_acls_are_added_listed_and_removed(node: NodeProcess) -> None:
    assert ok(node, "list") == "no ACL is selected\n"
    added = read(node, "add", "--allow-principal", "alice", "--operation", "Read", "--topic", "t", "--group", "g")
    assert rows(added) == ["User:alice * allow read topic t literal", "User:alice * allow read group g literal"]
    options = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--deny-host", "::1", "--cluster")
    ok(node, "add", *options, "--operation", "describe-configs", "--operation", "ALTER_CONFIGS")
    ok(node, "add", "--allow-principal", "alice", "--topic", "t", "--resource-pattern-type", "prefixed")
    assert rows(read(node, "list", "--topic", "t")) == [
        "User:alice * allow read topic t literal",
        "User:alice * allow all topic t prefixed",
    ]
    assert rows(read(node, "list", "--topic", "t2")) == []
    assert rows(read(node, "list", "--topic", "t2", "--resource-pattern-type", "match")) == [
        "User:alice * allow all topic t prefixed"
    ]
    assert rows(read(node, "list", "--deny-principal", "bob", "--deny-host", "::1")) == [
        "User:bob ::1 deny describe_configs cluster kafka-cluster literal",
        "User:bob ::1 deny alter_configs cluster kafka-cluster literal",
    ]
    assert ok(node, "list", "--principal", "alice", "--operation", "read").splitlines()[1].split() == [
        "User:alice", "*", "allow", "read", "topic", "t", "literal",
    ]  # fmt: skip
    done = run(node, "remove", "--principal", "bob", typed="n\n")
    assert (done.exit_code, done.stdout.count("User:bob")) == (1, 4)
    assert "Remove 4 ACLs? [y/N]: n\nError: nothing was changed\n" in done.stderr
    assert ok(node, "remove", "--principal", "bob", "-y").splitlines()[-1] == "removed 4 ACLs"
    assert rows(read(node, "remove", "--topic", "t", "--yes")) == rows(
        [*added[:1], {**added[0], "operation": "all", "pattern": "prefixed"}]
    )
    assert [row["resource_type"] for row in read(node, "list")] == ["group"]


def test_roles_are_those_of_kafka_acls(node: NodeProcess) -> None:
    who = ("--allow-principal", "etl", "--topic", "t")
    assert rows(read(node, "add", *who, "--consumer", "--group", "g")) == [
        "User:etl * allow read topic t literal",
        "User:etl * allow describe topic t literal",
        "User:etl * allow read group g literal",
    ]
    assert rows(read(node, "add", *who, "--producer", "--idempotent", "--transactional-id", "x")) == [
        "User:etl * allow write topic t literal",
        "User:etl * allow describe topic t literal",
        "User:etl * allow create topic t literal",
        "User:etl * allow write transactional_id x literal",
        "User:etl * allow describe transactional_id x literal",
        "User:etl * allow idempotent_write cluster kafka-cluster literal",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "--topic", "t"), "name who: --allow-principal or --deny-principal"),
        (("add", "--allow-host", "::1", "--topic", "t"), "name who: --allow-principal or --deny-principal"),
        (("add", "--allow-principal", "a"), "name resources: --topic, --group"),
        (("add", "--allow-principal", "a", "--group", "g", "--operation", "write"), "a group has no operation write"),
        (("add", "--allow-principal", "a", "--topic", "t", "--operation", "reed"), "expected one of all, read, write"),
        (("add", "--allow-principal", "a", "--topic", "t", "--consumer"), "--consumer needs --group"),
        (("add", "--allow-principal", "a", "--group", "g", "--producer"), "--producer and --consumer need --topic"),
        (("add", "--allow-principal", "a", "--topic", "t", "--idempotent"), "--idempotent needs --producer"),
        (
            ("add", "--allow-principal", "a", "--topic", "t", "--producer", "--cluster"),
            "no role needs a cluster: give --operation for it",
        ),
        (("remove",), "name which: --principal, --topic"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_asked(arguments: tuple[str, ...], said: str) -> None:
    done = run(None, *arguments)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_nothing_to_remove_is_an_error(node: NodeProcess) -> None:
    done = run(node, "remove", "--topic", "t", "--yes")
    assert (done.exit_code, done.stderr) == (1, "Error: no ACL is selected\n")


def test_a_refusal_is_one_line(node: NodeProcess) -> None:
    done = run(node, "add", "--allow-principal", "alice", "--topic", "")
    assert (done.exit_code, done.stderr) == (1, "Error: INVALID_REQUEST: Invalid empty resource name\n")


def test_a_node_without_an_authorizer_says_so() -> None:
    with Broker() as broker:
        for command in (("list",), ("add", "--allow-principal", "a", "--topic", "t"), ("remove", "--topic", "t", "-y")):
            done = CliRunner().invoke(main, ["acl", *command, "-b", broker.bootstrap_servers])
            assert done.exit_code == 1
            assert done.stderr.startswith("Error: SECURITY_DISABLED: No Authorizer is configured")
