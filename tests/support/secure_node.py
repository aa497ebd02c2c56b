"""A node with listeners of each protocol, and users whose passwords are marked secrets."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.topic import topic
from anabranch.broker.operator.cli.user import PASSWORD_ENV, user
from tests.broker.kafka.sasl.provider import AUDIENCE, ISSUER, key_set, rsa_key
from tests.support.certificates import Authority
from tests.support.node import NodeProcess
from tests.support.secrets import MARK, assert_unmarked, node_output
from tests.support.waiting import wait_until

PASSWORD, WRONG, STORE_PASSWORD = f"{MARK}-password", f"{MARK}-wrong", f"{MARK}-store"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecureNode:
    """A node with a listener of each protocol, an authorizer, and the users admin and bob."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.client = self.authority.issue("client", password=STORE_PASSWORD)
        users = folder / "users"
        users.write_text(self.user("hash", "admin"))
        keys = folder / "keys"
        keys.write_bytes(key_set(rsa_key()))
        protocols = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        self.process = NodeProcess(
            folder,
            listeners=",".join(f"{each}://127.0.0.1:0" for each in protocols),
            sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            sasl_oauthbearer_jwks_url=keys.as_uri(),
            sasl_oauthbearer_expected_issuer=ISSUER,
            sasl_oauthbearer_expected_audience=AUDIENCE,
            sasl_plain_users_file=users,
            ssl_certificate_file=self.authority.issue("node").both,
            ssl_ca_file=self.authority.file,
            ssl_client_auth="required",
            authorizer_enabled=True,
            authorizer_super_users="User:admin;User:CN=client;User:ANONYMOUS",
            log_level="debug",
        )

    def user(self, *arguments: str) -> str:
        done = CliRunner().invoke(user, arguments, env={PASSWORD_ENV: PASSWORD})
        assert done.exit_code == 0, done.output
        return done.output

    def server(self, protocol: str) -> str:
        listeners: str = self.process.events("serving")[-1]["listeners"]
        return next(each for each in listeners.split(",") if each.startswith(f"{protocol}://")).split("://")[1]

    def properties(self, protocol: str, **changed: str) -> dict[str, str]:
        found = {"bootstrap.servers": self.server(protocol), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority.file)}
        if protocol == "SSL":
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.client.both)}
            found |= {"ssl.key.password": STORE_PASSWORD}
        if protocol.startswith("SASL"):
            found |= {"sasl.mechanism": "SCRAM-SHA-512"}
            found |= {"sasl.jaas.config": f'{SCRAM} required username="admin" password="{PASSWORD}";'}
        return found | changed

    def run(
        self,
        properties: Mapping[str, str],
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        command: click.Command = topic,
        typed: str = "",
    ) -> Result:
        """Run a command, one of `topic` by default; its output must have no secret."""
        file = self.folder / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        result = CliRunner().invoke(
            command,
            [*arguments, "--command-config", str(file)],
            env={"COLUMNS": "200", **(environment or {})},
            input=typed,
        )
        assert_unmarked({"output": result.output, "error": repr(result.exception)})
        return result


def login(name: str, password: str = PASSWORD, module: str = SCRAM) -> dict[str, str]:
    return {"sasl.jaas.config": f'{module} required username="{name}" password="{password}";'}


@contextmanager
def secure_node(folder: Path) -> Iterator[SecureNode]:
    """Run such a node; at the end nothing that it has shown may have a secret."""
    made = SecureNode(folder)
    with made.process as process:
        for name in ("admin", "bob"):
            made.user("create", name, "--catalog-url", f"sqlite:///{made.folder}/data/catalog.db")
        bob = made.properties("SASL_SSL", **login("bob"))
        wait_until(lambda: made.run(bob, "list").exit_code == 0, "the node follows the command")
        yield made
        shown = node_output(process)
        assert process.terminate() == 0
    assert_unmarked({**shown, "log": "\n".join(process.lines)})
