"""The commands that are Kafka clients, over each protocol; their errors of one line; no secret gets out."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.topic import topic
from broker.cli.user import PASSWORD_ENV, user
from tests.broker.sasl.provider import AUDIENCE, ISSUER, claims, key_set, rsa_key, sign
from tests.support.certificates import Authority
from tests.support.node import NodeProcess
from tests.support.secrets import MARK, assert_unmarked, node_output
from tests.support.waiting import wait_until

pytestmark = pytest.mark.interop

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
        self, properties: Mapping[str, str], *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Result:
        """Run a topic command; its output must have no secret."""
        file = self.folder / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        result = CliRunner().invoke(
            topic, [*arguments, "--command-config", str(file)], env={"COLUMNS": "200", **(environment or {})}
        )
        assert_unmarked({"output": result.output, "error": repr(result.exception)})
        return result


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    made = SecureNode(tmp_path_factory.mktemp("secure"))
    with made.process as process:
        for name in ("admin", "bob"):
            made.user("add", name, "--catalog-url", f"sqlite:///{made.folder}/data/catalog.db")
        bob = made.properties("SASL_SSL", **login("bob"))
        wait_until(lambda: made.run(bob, "list").exit_code == 0, "the node follows the command")
        yield made
        shown = node_output(process)
        assert process.terminate() == 0
    assert_unmarked({**shown, "log": "\n".join(process.lines)})


def login(name: str, password: str = PASSWORD, module: str = SCRAM) -> dict[str, str]:
    return {"sasl.jaas.config": f'{module} required username="{name}" password="{password}";'}


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_each_protocol(node: SecureNode, protocol: str) -> None:
    name = f"over-{protocol}"
    properties = node.properties(protocol)
    for arguments, said in (
        (("create", name, "--partitions", "2"), f"created topic {name} with 2 partitions"),
        (("list",), name),
        # Connects to the leader, too.
        (("describe", name), "partition"),
        (("delete", name, "--yes"), f"deleted topic {name}"),
    ):
        result = node.run(properties, *arguments)
        assert result.exit_code == 0, result.output
        assert said in result.output


def test_names_of_librdkafka_the_environment_and_flags(node: SecureNode) -> None:
    properties = {
        "bootstrap.servers": node.server("SASL_SSL"),
        "ssl.ca.location": str(node.authority.file),
        "sasl.mechanisms": "PLAIN",
    }
    flags = ["--command-property", "security.protocol=SASL_SSL", "--command-property", "sasl.username=admin"]
    result = node.run(properties, "list", *flags, environment={"KAFKA_CLIENT_SASL_PASSWORD": PASSWORD})
    assert result.exit_code == 0, result.output


def test_a_token(node: SecureNode, tmp_path: Path) -> None:
    token = tmp_path / "token"
    properties = {
        **node.properties("SASL_SSL"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    assert f"{token}: No such file or directory" in fails(node, properties)

    def write(audience: str) -> None:
        token.write_text(sign(rsa_key(), claims(int(time.time()), jti=MARK, sub="admin", aud=audience)) + "\n")

    write(AUDIENCE)
    assert node.run(properties, "list").exit_code == 0
    write("other")
    line = fails(node, properties)
    assert "does not accept the token with OAUTHBEARER" in line
    assert token.read_text().split(".")[2].strip() not in line


def test_a_secret_on_the_command_line_is_refused(node: SecureNode) -> None:
    for given in (f"sasl.password={PASSWORD}", f"sasl.jaas.config={PASSWORD}", f"ssl.key.password={PASSWORD}"):
        result = node.run({}, "list", "--command-property", given)
        assert result.exit_code == 2
        assert "is a secret: it must not be on a command line" in result.output
    result = node.run({}, "list", "--command-property", PASSWORD)
    assert "expected NAME=VALUE" in result.output


def fails(node: SecureNode, properties: Mapping[str, str], *arguments: str) -> str:
    """Run a command that must fail with one line; return the line."""
    result = node.run(properties, *(arguments or ("list",)))
    assert result.exit_code == 1, result.output
    (line,) = result.output.splitlines()
    return line


def test_what_is_wrong_is_said_in_one_line(node: SecureNode, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    plaintext, tls = node.server("PLAINTEXT"), node.server("SSL")
    sasl = node.properties("SASL_SSL")
    cases: list[tuple[Mapping[str, str], str]] = [
        ({**sasl, "ssl.truststore.location": str(other.file)}, f"its certificate was not issued by {other.file}"),
        ({**sasl, **login("admin", WRONG)}, "does not accept the user admin with SCRAM-SHA-512: Authentication failed"),
        ({**sasl, **login("admin", WRONG, PLAIN), "sasl.mechanism": "PLAIN"}, "the user admin with PLAIN: Authentic"),
        ({**sasl, "sasl.mechanism": "SCRAM-SHA-256"}, "SCRAM-SHA-256 is not enabled; enabled are SCRAM-SHA-512"),
        ({**sasl, "bootstrap.servers": plaintext}, f"{plaintext} does not answer with TLS"),
        (
            {**node.properties("PLAINTEXT"), "bootstrap.servers": tls},
            "where it expects TLS: security.protocol is PLAIN",
        ),
        ({**node.properties("SASL_PLAINTEXT"), "bootstrap.servers": plaintext}, "no SASL here: set security.protocol="),
        (
            {**node.properties("PLAINTEXT"), "bootstrap.servers": node.server("SASL_PLAINTEXT")},
            "where it expects SASL: security.protocol is PLAINTEXT",
        ),
        ({**sasl, "security.protocol": "SSL", "bootstrap.servers": tls}, "it requires a certificate of the client"),
        ({**sasl, "security.protocol": "SSL"}, "where it expects SASL: security.protocol is SSL"),
        (
            {**node.properties("SSL"), "ssl.keystore.location": str(other.issue("client").both)},
            "does not accept the certificate of the client",
        ),
    ]
    for properties, reason in cases:
        assert reason in fails(node, properties), properties["security.protocol"]


def test_a_denial_is_said_in_one_line(node: SecureNode) -> None:
    bob = node.properties("SASL_SSL", **login("bob"))
    assert "topic mine: TOPIC_AUTHORIZATION_FAILED" in fails(node, bob, "create", "mine")
    assert "topic mine: TOPIC_AUTHORIZATION_FAILED" in fails(node, bob, "describe", "mine")
    assert "topic mine: TOPIC_AUTHORIZATION_FAILED" in fails(node, bob, "delete", "mine", "--yes")


@contextmanager
def tls_server(certificate: Path, host: str = "127.0.0.1") -> Iterator[int]:
    """A server that only shakes hands."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server((host, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join()


def test_certificates_of_other_hosts_and_times(node: SecureNode) -> None:
    with tls_server(node.authority.issue("elsewhere").both, "127.0.0.2") as other:
        properties = node.properties("SASL_SSL", **{"bootstrap.servers": f"127.0.0.2:{other}"})
        assert "its certificate is not one of 127.0.0.2" in fails(node, properties)
    with tls_server(node.authority.issue("elsewhere").both, "127.0.0.2") as other:
        properties = node.properties("SASL_SSL", **{"bootstrap.servers": f"127.0.0.2:{other}"})
        unchecked = {**properties, "ssl.endpoint.identification.algorithm": ""}
        assert "or is no broker" in fails(node, unchecked)
    for days, reason in (((-9, -1), "its certificate has expired"), ((1, 9), "its certificate is not valid yet")):
        with tls_server(node.authority.issue("timed", days=days).both) as other:
            assert reason in fails(node, node.properties("SASL_SSL", **{"bootstrap.servers": f"127.0.0.1:{other}"}))


def test_the_status_has_the_principals(node: SecureNode) -> None:
    """The search for secrets is worth something: the names of the users are found where secrets must not be."""
    assert node.run(node.properties("SASL_SSL"), "list").exit_code == 0
    assert json.loads(node_output(node.process)["/status"])
    assert any("User:admin" in line for line in node.process.lines)
