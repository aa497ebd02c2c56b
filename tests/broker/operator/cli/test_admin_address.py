"""The admin port of a node that commands find by Kafka's addresses, as the node announces it."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from anabranch.broker.operator.cli import admin_address, admin_port, main
from anabranch.broker.operator.cli.admin_address import Announced, reachable_address
from anabranch.client.cluster import Cluster
from anabranch.client.configs import Config, Resource, describe_configs
from anabranch.client.errors import NodeLost
from tests.support.certificates import Authority
from tests.support.node import running_node, running_nodes

TOKEN = "a-token-that-may-operate"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANABRANCH_CONFIG", "ANABRANCH_ADMIN_HOST", "ANABRANCH_ADMIN_PORT"):
        monkeypatch.delenv(name, raising=False)


async def run(*arguments: object) -> tuple[int, str]:
    """Return the exit code and the output of a command, without what the node of this process logs meanwhile."""
    done = await asyncio.to_thread(CliRunner().invoke, main, [str(each) for each in arguments])
    return done.exit_code, "".join(line for line in done.output.splitlines(keepends=True) if not line.startswith("20"))


async def node_found(*arguments: object) -> int:
    """Return the id of the only node, as its admin port answers."""
    code, output = await run("node", "list", "--output", "json", *arguments)
    assert code == 0, output
    (node,) = json.loads(output)
    return int(node["id"])


async def test_one_address_is_enough_for_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path, node_id=7) as node:
        assert await node_found("-b", node.bootstrap) == 7
        monkeypatch.setenv("ANABRANCH_ADMIN_PORT", "1")
        assert await node_found("-b", node.bootstrap) == 7, "an option counts more than the environment"
        assert await node_found("-b", "127.0.0.1:1", "--admin", node.ports.admin_address) == 7, "--admin overrides it"
        monkeypatch.delenv("ANABRANCH_ADMIN_PORT")
        assert (await run("profile", "create", "here", "-b", node.bootstrap))[0] == 0
        assert await node_found() == 7, "the profile names Kafka's address only"
        no_tls = (1, f"Error: {node.ports.admin_address} does not answer with TLS: leave out https://\n")
        assert await run("node", "list", "--admin", f"https://{node.ports.admin_address}") == no_tls
        code, output = await run("node", "list", "--catalog-url", "sqlite:///x.db", "-b", node.bootstrap)
        assert (code, "of which no node runs" in output) == (2, True)


async def test_tls_is_that_of_kafkas_connection_and_a_token_is_given(tmp_path: Path) -> None:
    authority, token = Authority(tmp_path / "ca"), tmp_path / "token"
    issued = authority.issue("node")
    token.write_text(TOKEN)
    certificates = {
        f"{area}ssl_{name}_file": file
        for area in ("", "admin_")
        for name, file in (("certificate", issued.certificate), ("key", issued.key))
    }
    settings = {"listeners": "SSL://127.0.0.1:0", "admin_operate_token": TOKEN, **certificates}
    async with running_node(tmp_path, **settings) as node:
        kafka = ("-b", node.bootstrap, "--command-property", "security.protocol=SSL")
        trusting = (*kafka, "--command-property", f"ssl.ca.location={authority.file}")
        assert await node_found(*trusting, "--admin-token-file", token) == 1
        code, output = await run("node", "list", *trusting)
        assert (code, output.count("\n")) == (1, 1)
        assert output.endswith("certificate is needed; see --admin-token-file\n")
        assert (await run("profile", "create", "here", *trusting, "--admin-token-file", token))[0] == 0
        assert await node_found() == 1, "the token of a profile is for the port that its cluster announces"


async def test_what_a_node_does_not_tell_is_the_default_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older node, or one whose ACLs forbid the client to see configs."""
    async with running_node(tmp_path, authorizer_enabled=True) as node:
        monkeypatch.setattr(admin_address, "ADMIN_PORT", int(node.ports.admin_address.rpartition(":")[2]))
        assert await node_found("-b", node.bootstrap) == 1


async def test_a_token_is_not_sent_unencrypted_to_a_port_that_is_only_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have TLS, and whoever listens on the way would have the token."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    assumed = Announced("http://kafka-1.invalid:9644", "c", is_told=False)
    monkeypatch.setattr(admin_port, "announced_port", lambda _client: assumed)
    code, output = await run("node", "list", "-b", "kafka-1.invalid", "--admin-token-file", token)
    assert (code, output.count("\n")) == (1, 1)
    assert output.endswith("and a token is not sent unencrypted unless it does: name the port with --admin\n")


async def test_a_token_of_settings_that_name_a_port_is_for_that_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path, admin_operate_token=TOKEN) as node:
        monkeypatch.setenv("ANABRANCH_ADMIN_OPERATE_TOKEN", TOKEN)
        assert await node_found("-b", node.bootstrap) == 1
        monkeypatch.setenv("ANABRANCH_ADMIN_PORT", "1")
        code, output = await run("node", "list", "-b", node.bootstrap)
        assert (code, output.endswith("certificate is needed; see --admin-token-file\n")) == (1, True)


async def test_a_port_of_another_cluster_is_not_taken_for_that_of_kafkas_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's port is forwarded to this machine, where another cluster has the admin port, for instance."""
    async with (
        running_node(tmp_path / "far", authorizer_enabled=True, cluster="far") as far,
        running_node(tmp_path / "near", cluster="near") as near,
    ):
        monkeypatch.setattr(admin_address, "ADMIN_PORT", int(near.ports.admin_address.rpartition(":")[2]))
        expected = (
            f"Error: the admin port {near.ports.admin_address} belongs to another cluster, 'near', than the nodes of "
            "Kafka's address, 'far': name the right one with --admin\n"
        )
        assert await run("node", "list", "-b", far.bootstrap) == (1, expected)


async def test_another_node_is_asked_for_one_that_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    def describe(cluster: Cluster, resource: Resource) -> Sequence[Config]:
        if not gone:
            gone.append(resource.name)
            raise NodeLost("it has gone")
        return describe_configs(cluster, resource)

    def lose(*_: object) -> Sequence[Config]:
        raise NodeLost("it has gone")

    monkeypatch.setattr(admin_address, "describe_configs", describe)
    async with running_nodes(tmp_path, 2) as (first, second):
        code, output = await run("cluster", "status", "--output", "json", "-b", first.bootstrap)
        assert (code, gone) == (0, ["1"]), output
        monkeypatch.setattr(admin_address, "describe_configs", lose)
        assert await run("cluster", "status", "-b", second.bootstrap) == (1, "Error: it has gone\n")


async def test_a_cluster_without_admin_ports_is_told_in_one_line(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_enabled=False) as node:
        done = await run("topic", "move", "t", "--to", "1", "-b", node.bootstrap)
    assert done == (1, f"Error: no node of {node.bootstrap} has an admin port (admin.enabled)\n")


@pytest.mark.parametrize(
    ("listener", "is_here", "expected"),
    [
        ("http://0.0.0.0:9644", False, "http://kafka-1:9644"),
        ("https://[::]:9700", False, "https://kafka-1:9700"),
        ("http://10.0.0.1:9644", False, "http://10.0.0.1:9644"),
        ("https://[::1]:9644", True, "https://[::1]:9644"),
    ],
)
def test_the_address_is_one_that_this_machine_reaches(listener: str, is_here: bool, expected: str) -> None:
    assert reachable_address(listener, "kafka-1", is_here=is_here) == expected


def test_a_port_on_loopback_of_another_machine_is_not_looked_for_here() -> None:
    with pytest.raises(click.ClickException) as raised:
        reachable_address("http://127.0.0.1:9644", "kafka-1", is_here=False)
    assert raised.value.message == (
        "the admin port of the node at kafka-1 listens on 127.0.0.1 only (admin.host): run this command there, with "
        "--admin 127.0.0.1:9644"
    )
