"""Real clients that authenticate themselves with SASL, with and without TLS, and secrets that must not get out."""

import asyncio
import base64
import hmac
import logging
import sqlite3
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioKafkaTokenProvider
from aiokafka.errors import KafkaConnectionError
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from anabranch.broker.operator.cli.user import PASSWORD_ENV, user
from tests.broker.kafka.sasl.provider import AUDIENCE, ISSUER, claims, key_set, rsa_key, sign
from tests.interop.test_java import TIMEOUT_S, command
from tests.interop.values import (
    read_with_confluent,
    send_and_read_with_aiokafka,
    send_and_read_with_kafka_python,
    send_with_confluent,
)
from tests.support.certificates import Authority
from tests.support.kafka_tools import CONFIGS, CONSUMER, PRODUCER, TOPICS, run_tool
from tests.support.node import NodeProcess
from tests.support.secrets import MARK, assert_unmarked, node_output
from tests.support.tools import kcat
from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaProducer  # it reads its own schemas so
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

USERS: Any = confluent_kafka.admin  # its types for users are not exported
RECORDS = [f"record {number}" for number in range(100)]
TOKENS: list[str] = []
"""Tokens that clients have presented."""
PASSWORD = f"{MARK}-of-alice"
TOKEN_KEY = f"{MARK}-key-of-delegation-tokens-0123456789"
DELEGATION_TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
WRONG = f"{MARK}-wrong"
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
COMBINATIONS = [("SASL_SSL", SHA_256), ("SASL_SSL", "PLAIN"), ("SASL_PLAINTEXT", SHA_512), ("SASL_PLAINTEXT", "PLAIN")]
combinations = pytest.mark.parametrize(("protocol", "mechanism"), COMBINATIONS)


def run_user(*arguments: str) -> str:
    done = CliRunner().invoke(user, [*arguments], env={PASSWORD_ENV: PASSWORD})
    assert done.exit_code == 0, done.output
    return done.output


class SaslNode:
    """A node process with listeners of both protocols, and the user alice."""

    def __init__(self, folder: Path, **wanted: object) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = Authority(folder / "ca")
        users = folder / "users"
        users.write_text(run_user("hash", "alice"))
        key = folder / "token-key"
        key.write_text(TOKEN_KEY)
        keys = folder / "keys"
        keys.write_bytes(key_set(rsa_key()))
        self.process = NodeProcess(
            folder,
            listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
            sasl_enabled_mechanisms=f"{SHA_512},{SHA_256},PLAIN,OAUTHBEARER",
            sasl_oauthbearer_jwks_url=keys.as_uri(),
            sasl_oauthbearer_expected_issuer=ISSUER,
            sasl_oauthbearer_expected_audience=AUDIENCE,
            sasl_plain_users_file=users,
            delegation_token_secret_key_file=key,
            ssl_certificate_file=self.authority.issue("node").both,
            wal_capacity_bytes=64 << 20,
            log_level="debug",
            **wanted,
        )

    def add_user(self, name: str) -> None:
        run_user("create", name, "--catalog-url", f"sqlite:///{self.folder}/data/catalog.db")

    def servers(self, protocol: str) -> str:
        listeners: str = self.process.events("serving")[-1]["listeners"]
        return next(each for each in listeners.split(",") if each.startswith(f"{protocol}://")).split("://")[1]

    def confluent(self, protocol: str, mechanism: str, password: str = PASSWORD, name: str = "alice") -> dict[str, Any]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": self.servers(protocol),
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.file),
            "log_level": 0,
        }

    def java(
        self, protocol: str, mechanism: str, password: str = PASSWORD, name: str = "alice", options: str = ""
    ) -> Path:
        """A file with settings of Java's clients."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        properties: Mapping[str, object] = {
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
            f'username="{name}" password="{password}"{options};',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
        }
        path = self.folder / f"{protocol}-{mechanism}-{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def failures(self) -> list[dict[str, Any]]:
        return self.process.events("authentication failed")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    made = SaslNode(tmp_path_factory.mktemp("sasl"))
    with made.process as process:
        made.add_user("alice")
        wait_until(lambda: knows(made, "alice"), "the node follows the command")
        yield made
        shown = node_output(process)
        assert process.terminate() == 0
    entries, secrets = stored_entries(made), secrets_of_tokens(made)
    shown["log"] = "\n".join(process.lines)
    assert_unmarked(shown, ["scrypt", *entries, *secrets, *(token.split(".")[2] for token in TOKENS)])
    assert "alice" in shown["log"]


def stored_entries(node: SaslNode) -> list[str]:
    """Keys and salts of all users, as the catalog has them, and hashes of the file."""
    with closing(sqlite3.connect(node.folder / "data" / "catalog.db")) as database:
        rows = database.execute("SELECT entries FROM configs WHERE kind = 'scram'").fetchall()
    found = [part.partition("=")[2] for (entries,) in rows for part in entries.replace('"', "").split(",")]
    hashed = (node.folder / "users").read_text().strip().split("$")[-2:]
    assert len(found) >= 8
    return [each for each in (*found, *hashed) if len(each) > 8]


def secrets_of_tokens(node: SaslNode) -> list[str]:
    """HMACs of the delegation tokens that are left, as they could be shown. None of them is in the catalog."""
    catalog = node.folder / "data" / "catalog.db"
    with closing(sqlite3.connect(catalog)) as database:
        ids = [token_id for (token_id,) in database.execute("SELECT token_id FROM delegation_tokens")]
    made = [hmac.digest(TOKEN_KEY.encode(), token_id.encode(), "sha512") for token_id in ids]
    content = b"".join(path.read_bytes() for path in catalog.parent.glob("catalog.db*"))
    for each in made:
        assert not any(form in content for form in (each, each.hex().encode(), base64.b64encode(each)))
    assert MARK.encode() not in content
    return [form for each in made for form in (each.hex(), base64.b64encode(each).decode(), str(each)[2:-1])]


def scram_admin(settings: dict[str, Any]) -> Any:
    """A client whose calls for users have no types."""
    return AdminClient(settings)


def knows(node: SaslNode, name: str) -> bool:
    admin = scram_admin({"bootstrap.servers": node.servers("PLAINTEXT")})
    return name in admin.describe_user_scram_credentials().result(30)


def run_java(node: SaslNode, settings: Path, protocol: str, tool: str, *arguments: str, stdin: str = "") -> Any:
    where = ["--bootstrap-server", node.servers(protocol), "--command-config", str(settings)]
    return run_tool(tool, [*where, *arguments], stdin=stdin)


def test_java_with_delegation_tokens(node: SaslNode) -> None:
    """Apache Kafka's tool makes, shows, renews and removes tokens, and its clients use one."""
    of_alice = node.java("SASL_SSL", SHA_256)

    def tool(*arguments: str, settings: Path = of_alice) -> str:
        done = run_java(node, settings, "SASL_SSL", DELEGATION_TOKENS, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def row(shown: str, token_id: str) -> list[str]:
        return next((line.split() for line in shown.splitlines() if line.startswith(token_id)), [])

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    token_id = made.partition("tokenId : ")[2].split()[0]
    _, password, owner, requester, renewers, *_ = row(made, token_id)
    assert (owner, requester, renewers) == ("User:alice", "User:alice", "[User:bob]")
    assert base64.b64decode(password) == hmac.digest(TOKEN_KEY.encode(), token_id.encode(), "sha512")
    assert row(tool("--describe", "--owner-principal", "User:alice"), token_id)[1] == password
    assert "Completed renew operation" in tool("--renew", "--renew-time-period", "-1", "--hmac", password)

    with_token = node.java("SASL_SSL", SHA_512, password, token_id, ' tokenauth="true"')
    done = run_java(node, with_token, "SASL_SSL", PRODUCER, "--topic", "delegated", stdin="\n".join(RECORDS))
    assert done.returncode == 0, done.stdout + done.stderr
    limits = ["--max-messages", str(len(RECORDS)), "--timeout-ms", "30000", "--group", "delegated-group"]
    done = run_java(node, with_token, "SASL_SSL", CONSUMER, "--topic", "delegated", "--from-beginning", *limits)
    assert done.stdout.splitlines() == RECORDS, done.stderr
    used = [line for line in node.process.events("authenticated") if line["delegation_token"]]
    assert {(line["principal"], line["mechanism"]) for line in used} == {("User:alice", SHA_512)}
    done = run_java(node, with_token, "SASL_SSL", DELEGATION_TOKENS, "--describe")
    assert "DelegationTokenDisabledException" not in done.stderr + done.stdout
    assert "Delegation Token requests are not allowed" in done.stderr + done.stdout

    tool("--create", "--max-life-time-period", "-1")  # stays: its secrets are looked for in all output
    assert secrets_of_tokens(node)
    tool("--expire", "--expiry-time-period", "-1", "--hmac", password)
    assert not row(tool("--describe"), token_id)
    done = run_java(node, with_token, "SASL_SSL", TOPICS, "--list")
    assert "SaslAuthenticationException: Authentication failed" in done.stdout + done.stderr

    def refusals() -> list[dict[str, Any]]:
        return [line for line in node.failures() if line.get("user") == token_id]

    wait_until(lambda: bool(refusals()), "the log line of a refusal is read")
    refused = refusals()[0]
    assert refused["reason"] == "unknown or expired delegation token"
    events = [line for line in node.process.events("changed") if line["resource_type"] == "DELEGATION_TOKEN"]
    assert [line["api"] for line in events if line["resource"].startswith(token_id)] == [
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
    ]


@pytest.mark.parametrize(("protocol", "mechanism"), [("SASL_SSL", SHA_512), ("SASL_PLAINTEXT", "PLAIN")])
def test_java(node: SaslNode, protocol: str, mechanism: str) -> None:
    topic = f"java-{mechanism}"
    settings = node.java(protocol, mechanism)
    done = run_java(node, settings, protocol, PRODUCER, "--topic", topic, stdin="\n".join(RECORDS))
    assert done.returncode == 0, done.stdout + done.stderr
    limits = ["--max-messages", str(len(RECORDS)), "--timeout-ms", "30000", "--group", f"{topic}-group"]
    done = run_java(node, settings, protocol, CONSUMER, "--topic", topic, "--from-beginning", *limits)
    assert done.stdout.splitlines() == RECORDS, done.stderr
    connected = [line for line in node.process.events("authenticated") if line["mechanism"] == mechanism]
    assert {line["principal"] for line in connected} == {"User:alice"}


def test_kafkas_tool_manages_users(node: SaslNode) -> None:
    settings = node.java("SASL_SSL", SHA_256)
    of_bob = ["--alter", "--entity-type", "users", "--entity-name", "bob"]
    added = f"SCRAM-SHA-256=[iterations=8192,password={PASSWORD}]"
    done = run_java(node, settings, "SASL_SSL", CONFIGS, *of_bob, "--add-config", added)
    assert done.returncode == 0, done.stdout + done.stderr
    admin = scram_admin(node.confluent("SASL_PLAINTEXT", SHA_256, name="bob"))
    found = admin.describe_user_scram_credentials(["bob"])["bob"].result(30)
    assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
        (USERS.ScramMechanism.SCRAM_SHA_256, 8192)
    ]
    done = run_java(node, settings, "SASL_SSL", CONFIGS, *of_bob, "--delete-config", "SCRAM-SHA-256")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not knows(node, "bob")


def test_a_password_changes_mechanism_by_mechanism(node: SaslNode) -> None:
    """As docs/security.md rotates passwords: each mechanism has its own, so clients can move one after the other."""

    def set_password(command: str, password: str, *mechanisms: str) -> None:
        chosen = [word for mechanism in mechanisms for word in ("--mechanism", mechanism)]
        url = f"sqlite:///{node.folder}/data/catalog.db"
        done = CliRunner().invoke(user, [command, "dora", *chosen, "--catalog-url", url], env={PASSWORD_ENV: password})
        assert done.exit_code == 0, done.output

    def accepted(mechanism: str, password: str) -> bool:
        admin = AdminClient(node.confluent("SASL_PLAINTEXT", mechanism, password, "dora"))
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    new = f"{PASSWORD}-new"
    set_password("create", PASSWORD)
    wait_until(lambda: accepted(SHA_512, PASSWORD), "the node follows the command")
    set_password("passwd", new, SHA_256)
    wait_until(lambda: accepted(SHA_256, new), "the node follows the command")
    wait_until(lambda: accepted(SHA_512, PASSWORD), "the other mechanism has its old password")
    set_password("passwd", new, SHA_512)
    wait_until(lambda: accepted(SHA_512, new), "the node follows the command")
    assert not accepted(SHA_512, PASSWORD)


@combinations
def test_librdkafka(node: SaslNode, protocol: str, mechanism: str) -> None:
    topic = f"confluent-{protocol}-{mechanism}"
    settings = node.confluent(protocol, mechanism)
    send_with_confluent(settings, topic, RECORDS)
    assert sorted(read_with_confluent(settings, topic, len(RECORDS))) == sorted(RECORDS)


def test_librdkafka_manages_users(node: SaslNode) -> None:
    admin = scram_admin(node.confluent("SASL_SSL", SHA_512))
    info = USERS.ScramCredentialInfo(USERS.ScramMechanism.SCRAM_SHA_256, 5000)
    changes = [USERS.UserScramCredentialUpsertion("carol", info, PASSWORD.encode())]
    admin.alter_user_scram_credentials(changes)["carol"].result(30)
    AdminClient(node.confluent("SASL_PLAINTEXT", SHA_256, name="carol")).list_topics(timeout=30)
    removal = [USERS.UserScramCredentialDeletion("carol", USERS.ScramMechanism.SCRAM_SHA_256)]
    admin.alter_user_scram_credentials(removal)["carol"].result(30)
    with pytest.raises(KafkaException, match="does not exist"):
        admin.alter_user_scram_credentials(removal)["carol"].result(30)
    with pytest.raises(KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials(["carol"])["carol"].result(30)


def of_python(node: SaslNode, protocol: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.servers(protocol),
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@combinations
async def test_aiokafka(node: SaslNode, protocol: str, mechanism: str) -> None:
    topic = f"aiokafka-{protocol}-{mechanism}"
    settings = of_python(node, protocol, mechanism)
    if protocol == "SASL_SSL":
        settings["ssl_context"] = node.authority.client_context()
    assert await send_and_read_with_aiokafka(settings, topic, RECORDS) == RECORDS


@combinations
def test_kafka_python(node: SaslNode, protocol: str, mechanism: str) -> None:
    topic = f"kafka-python-{protocol}-{mechanism}"
    settings = of_python(node, protocol, mechanism)
    if protocol == "SASL_SSL":
        settings["ssl_cafile"] = str(node.authority.file)
    assert send_and_read_with_kafka_python(settings, topic, RECORDS) == RECORDS


def token_of_alice(**changed: Any) -> str:
    """A token of the provider; its id is a marked secret."""
    TOKENS.append(sign(rsa_key(), claims(int(time.time()), jti=MARK, **changed)))
    return TOKENS[-1]


class KafkaPythonToken(KafkaPythonTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python."""

    def token(self) -> str:
        return token_of_alice()


class AioKafkaToken(AioKafkaTokenProvider):  # type: ignore[misc]
    """Tokens for aiokafka."""

    async def token(self) -> str:
        return token_of_alice()


async def test_clients_with_tokens(node: SaslNode) -> None:
    def confluent_settings(token: str) -> dict[str, Any]:
        removed = {"sasl.username", "sasl.password"}
        settings = {
            key: value for key, value in node.confluent("SASL_SSL", "OAUTHBEARER").items() if key not in removed
        }
        return {**settings, "oauth_cb": lambda _: (token, time.time() + 600)}

    def authenticated() -> int:
        lines = [line for line in node.process.events("authenticated") if line["mechanism"] == "OAUTHBEARER"]
        assert {line["principal"] for line in lines} <= {"User:alice"}
        return len(lines)

    def confluent() -> None:
        admin = AdminClient(confluent_settings(token_of_alice()))
        admin.poll(0)
        assert admin.list_topics(timeout=30).brokers
        wrong = AdminClient(confluent_settings(token_of_alice(aud="other")))
        wrong.poll(0)
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=3)

    def kafka_python() -> None:
        settings = {
            "bootstrap_servers": node.servers("SASL_PLAINTEXT"),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": KafkaPythonToken(),
        }
        producer = KafkaProducer(**settings)
        producer.send("tokens", b"x").get(30)
        producer.close()

    def java() -> None:
        path = node.folder / "token"
        path.write_text(token_of_alice())
        settings = node.java("SASL_PLAINTEXT", "OAUTHBEARER")
        settings.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
            f"sasl.oauthbearer.token.endpoint.url={path.as_uri()}\n"
            "sasl.login.callback.handler.class="
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
            "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;\n"
        )
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        done = run_tool(
            TOPICS,
            ["--bootstrap-server", node.servers("SASL_PLAINTEXT"), "--command-config", str(settings), "--list"],
            options=[f"{allowed}.urls={path.as_uri()}", f"{allowed}.files={path}"],
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def is_more(before: int) -> bool:
        return authenticated() > before

    for work in (confluent, kafka_python, java):
        before = authenticated()
        await asyncio.to_thread(work)
        wait_until(partial(is_more, before), work.__name__)
    reasons = {line["reason"] for line in node.failures() if line.get("mechanism") == "OAUTHBEARER"}
    assert reasons == {"the token is for another audience"}
    settings = {"bootstrap_servers": node.servers("SASL_PLAINTEXT"), "security_protocol": "SASL_PLAINTEXT"}
    oauth = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": AioKafkaToken()}
    async with AIOKafkaProducer(**settings, **oauth) as producer:
        await producer.send_and_wait("tokens", b"x")


def test_kcat(node: SaslNode) -> None:
    """By PLAIN: librdkafka before 2.6.1 sends another nonce in SCRAM, which RFC 5802 and Apache Kafka 4 refuse."""
    shown = {name: value for name, value in node.confluent("SASL_SSL", "PLAIN").items() if name.startswith("s")}
    options = [option for name, value in shown.items() for option in ("-X", f"{name}={value}")]
    program: list[str | Path] = [kcat(), "-b", node.servers("SASL_SSL"), "-q", *options, "-t", "kcat"]
    subprocess.run([*program, "-P"], input="\n".join(RECORDS).encode(), timeout=TIMEOUT_S, check=True)
    done = subprocess.run([*program, "-C", "-o", "beginning", "-e"], capture_output=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.decode().splitlines() == RECORDS


@pytest.mark.parametrize("mechanism", [SHA_256, "PLAIN"])
async def test_wrong_passwords_are_refused_with_one_line(
    node: SaslNode, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(node.failures())
    client = AdminClient(node.confluent("SASL_SSL", mechanism, password=WRONG))  # it goes on trying to connect
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)
    wait_until(lambda: len(node.failures()) > before, "the node says why")
    del client
    producer = AIOKafkaProducer(**of_python(node, "SASL_PLAINTEXT", mechanism, WRONG))
    with caplog.at_level(logging.CRITICAL), pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    wait_until(lambda: len(node.failures()) >= before + 2, "the node says why")
    reasons = {(line["reason"], line["user"], line["mechanism"]) for line in node.failures()[before:]}
    reason = "unknown user or wrong password" if mechanism == "PLAIN" else "wrong password"
    assert reasons == {(reason, "alice", mechanism)}


def test_java_is_told_that_its_password_is_wrong(node: SaslNode) -> None:
    settings = node.java("SASL_PLAINTEXT", SHA_256, WRONG)
    done = run_java(node, settings, "SASL_PLAINTEXT", CONFIGS, "--describe", "--entity-type", "topics")
    message = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    assert f"SaslAuthenticationException: {message}" in done.stdout + done.stderr


async def test_a_client_without_sasl_is_refused_with_one_line(node: SaslNode, caplog: pytest.LogCaptureFixture) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=node.servers("SASL_PLAINTEXT"))
    with caplog.at_level(logging.CRITICAL), pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    reason = "Metadata request before authentication: this listener expects SASL"
    wait_until(lambda: reason in {line["reason"] for line in node.process.events("connection closed")}, reason)


def test_clients_authenticate_themselves_again(tmp_path: Path) -> None:
    """Java's producer and librdkafka, on connections that stay open."""
    node = SaslNode(tmp_path / "again", sasl_max_reauth_ms=1500)
    with node.process as process:
        node.add_user("alice")
        wait_until(lambda: knows(node, "alice"), "the node follows the command")
        failures: list[KafkaError] = []
        producer = Producer(node.confluent("SASL_SSL", SHA_256))
        java = subprocess.Popen(
            command(
                node.servers("SASL_PLAINTEXT"),
                PRODUCER,
                ["--command-config", str(node.java("SASL_PLAINTEXT", SHA_512)), "--topic", "java-again"],
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert java.stdin

        def again(mechanism: str) -> bool:
            producer.produce("again", "x", on_delivery=lambda error, _: failures.append(error) if error else None)
            producer.poll(0)
            assert java.stdin
            java.stdin.write("x\n")
            java.stdin.flush()
            lines = [line for line in process.events("authenticated") if line["mechanism"] == mechanism]
            return any(line["again"] for line in lines)

        try:
            wait_until(lambda: again(SHA_256), "librdkafka authenticates itself again")
            wait_until(lambda: again(SHA_512), "Java authenticates itself again")
            assert producer.flush(30) == 0
            assert not failures
            assert not process.events("authentication failed")
            java.stdin.close()
            assert java.wait(30) == 0
        finally:
            java.kill()
            java.wait()
        assert process.terminate() == 0
