"""`anabranch quota` on a real node."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli import main
from anabranch.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def run(node: Broker | None, *arguments: str) -> Result:
    servers = [] if node is None else ["-b", node.bootstrap_servers]
    return CliRunner().invoke(main, ["quota", *arguments, *servers], env={"COLUMNS": "200"})


def ok(node: Broker, *arguments: str) -> str:
    done = run(node, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def read(node: Broker, *arguments: str) -> Any:
    return json.loads(ok(node, *arguments, "-o", "json"))


def test_quotas_are_set_listed_and_removed(node: Broker) -> None:
    assert ok(node, "list") == "no quota is set\n"
    both = ("--user", "etl", "--client", "loader")
    assert ok(node, "set", "producer_byte_rate=10MiB", "request_percentage=12.5", *both).splitlines() == [
        "client id loader, user etl: producer_byte_rate = 10 MiB/s (was unset)",
        "client id loader, user etl: request_percentage = 12.5 (was unset)",
    ]
    planned = read(node, "set", "producer_byte_rate=5MiB", *both, "--plan")
    assert planned["changed"] is False
    assert planned["quotas"] == [{"name": "producer_byte_rate", "from": 10 << 20, "to": 5 << 20}]
    ok(node, "set", "consumer_byte_rate=1000", "--user-defaults")
    ok(node, "set", "connection_creation_rate=10", "--ip-defaults")
    assert read(node, "list", "--user", "etl") == [
        {
            "entity": [{"type": "client-id", "name": "loader"}, {"type": "user", "name": "etl"}],
            "quotas": {"producer_byte_rate": 10 << 20, "request_percentage": 12.5},
        }
    ]
    assert read(node, "list", "--user-defaults") == [
        {"entity": [{"type": "user", "name": None}], "quotas": {"consumer_byte_rate": 1000}}
    ]
    assert [" ".join(line.split()) for line in ok(node, "list").splitlines()] == [
        "of quota value",
        "any address connection_creation_rate 10",
        "any user consumer_byte_rate 1,000 bytes/s",
        "client id loader, user etl producer_byte_rate 10 MiB/s",
        "client id loader, user etl request_percentage 12.5",
    ]
    assert ok(node, "remove", "request_percentage", *both) == (
        "client id loader, user etl: request_percentage = unset (was 12.5)\n"
    )
    assert read(node, "remove", *both)["quotas"] == [{"name": "producer_byte_rate", "from": 10 << 20, "to": None}]
    done = run(node, "remove", *both)
    assert (done.exit_code, done.stderr) == (1, "Error: client id loader, user etl has no quota\n")
    done = run(node, "remove", "producer_byte_rate", "--user-defaults")
    assert (done.exit_code, done.stderr) == (1, "Error: any user has no producer_byte_rate\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "producer_byte_rate=1"), "name who: --user and --client"),
        (("set", "producer_byte_rate=1", "--ip", "::1", "--user", "a"), "name who: --user and --client"),
        (("set", "producer_byte_rate=1", "--user", "a", "--user-defaults"), "exclude each other"),
        (("set", "producer_byte_rat=1", "--user", "a"), "Did you mean 'producer_byte_rate'"),
        (("set", "producer_byte_rate=1", "--ip", "::1"), "unknown quota 'producer_byte_rate'"),
        (("set", "producer_byte_rate=fast", "--user", "a"), "producer_byte_rate: 'fast' should be a whole number"),
        (("set", "request_percentage=x", "--user", "a"), "request_percentage: 'x' should be a number"),
        (("set", "request_percentage", "--user", "a"), "expected NAME=VALUE"),
        (("remove",), "name who: --user and --client"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_asked(arguments: tuple[str, ...], said: str) -> None:
    done = run(None, *arguments)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_a_refusal_is_one_line(node: Broker) -> None:
    done = run(node, "set", "request_percentage=0", "--user", "a")
    said = "Error: user a: INVALID_REQUEST: Quota request_percentage must be greater than 0\n"
    assert (done.exit_code, done.stderr) == (1, said)
