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
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from anabranch.broker.operator.cli.consume import consume
from anabranch.broker.operator.cli.produce import produce
from tests.broker.kafka.sasl.provider import AUDIENCE, claims, rsa_key, sign
from tests.support.certificates import Authority
from tests.support.secrets import MARK, node_output
from tests.support.secure_node import PASSWORD, PLAIN, STORE_PASSWORD, WRONG, SecureNode, login, secure_node

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("secure")) as made:
        yield made


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


def records(node: SecureNode, properties: Mapping[str, str], name: str) -> None:
    """Write a record by one command, and read it by another."""
    assert node.run(properties, "create", name).exit_code == 0
    done = node.run(properties, name, command=produce, typed="secured\n")
    assert done.exit_code == 0, done.output
    read = node.run(properties, name, "--format", "raw", command=consume)
    assert (read.exit_code, read.stdout) == (0, "secured\n"), read.output
    assert node.run(properties, "delete", name, "--yes").exit_code == 0


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_records_over_each_protocol(node: SecureNode, protocol: str) -> None:
    records(node, node.properties(protocol), f"records-{protocol}")


def test_records_with_java_stores_and_a_token(node: SecureNode, tmp_path: Path) -> None:
    store = node.folder / "client.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client",
            load_pem_private_key(node.client.both.read_bytes(), STORE_PASSWORD.encode()),  # type: ignore[arg-type]
            x509.load_pem_x509_certificates(node.client.both.read_bytes())[0],
            x509.load_pem_x509_certificates(node.authority.file.read_bytes()),
            BestAvailableEncryption(STORE_PASSWORD.encode()),
        )
    )
    stores = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(store),
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": STORE_PASSWORD,
    }
    records(node, {**node.properties("SSL"), **stores}, "records-stores")
    token = tmp_path / "token"
    token.write_text(sign(rsa_key(), claims(int(time.time()), jti=MARK, sub="admin", aud=AUDIENCE)) + "\n")
    bearer = {
        **node.properties("SASL_SSL"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    records(node, bearer, "records-token")


def test_records_are_denied_in_one_line(node: SecureNode) -> None:
    admin, bob = node.properties("SASL_SSL"), node.properties("SASL_SSL", **login("bob"))
    assert node.run(admin, "create", "denied").exit_code == 0
    read = node.run(bob, "denied", command=consume)
    assert (read.exit_code, read.output) == (
        1,
        "Error: topic denied: TOPIC_AUTHORIZATION_FAILED: this user may not do that with the topic (ACLs)\n",
    )
    written = node.run(bob, "denied", command=produce, typed="x\n")
    assert written.exit_code == 1
    assert "Error: topic denied: TOPIC_AUTHORIZATION_FAILED" in written.output


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
    assert json.loads(node_output(node.process)["/api/v1/status"])
    assert any("User:admin" in line for line in node.process.lines)
