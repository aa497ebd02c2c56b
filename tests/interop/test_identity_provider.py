"""OAUTHBEARER with tokens of a real identity provider, which publishes its keys over TLS."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioKafkaTokenProvider
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.protocol.errors import ErrorCode
from tests.broker.kafka.sasl.clients import LISTENERS, handshake
from tests.broker.kafka.sasl.clients import token as send_token
from tests.broker.kafka.sasl.provider import message
from tests.interop.values import read_with_confluent
from tests.support.certificates import Authority
from tests.support.hydra import SECRET, IdentityProvider, identity_provider, kid_of
from tests.support.kafka_tools import CONSUMER, PRODUCER, run_tool
from tests.support.node import NodeProcess, running_node
from tests.support.raw_client import raw_client
from tests.support.waiting import until, wait_until

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaProducer  # it reads its own schemas so
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]
RECORDS = [f"record {number}" for number in range(100)]
SCOPE, AUDIENCE = "kafka", "kafka-cluster"
JAVA_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"


@pytest.fixture(scope="module")
def provider(postgres: "PostgresServer", tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with (
        identity_provider(postgres.new_database(), tmp_path_factory.mktemp("provider")) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SSL_CERT_FILE", str(running.authority.file))  # nodes verify the provider with its authority
        running.add_client("alice", scopes=[SCOPE, "other"], audiences=[AUDIENCE, "another-service"])
        running.add_client("brief", scopes=[SCOPE], audiences=[AUDIENCE], lifespan="5s")
        running.add_client("expiring", scopes=[SCOPE], audiences=[AUDIENCE], lifespan="1s")
        good_token(running)  # the first one makes it create its key
        yield running


class TokenNode:
    """A node process that expects tokens of the provider, with a scope: not all clients can ask for an audience."""

    def __init__(self, folder: Path, provider: IdentityProvider) -> None:
        self.folder = folder
        self.provider = provider
        self.authority = Authority(folder / "ca")
        self.process = NodeProcess(
            folder,
            listeners="PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
            sasl_enabled_mechanisms="OAUTHBEARER",
            sasl_oauthbearer_jwks_url=provider.keys_url,
            sasl_oauthbearer_expected_issuer=provider.url,
            sasl_oauthbearer_required_scopes=SCOPE,
            ssl_certificate_file=self.authority.issue("node").both,
            log_level="debug",
        )

    @property
    def servers(self) -> str:
        listeners: str = self.process.events("serving")[-1]["listeners"]
        return next(each for each in listeners.split(",") if each.startswith("SASL_SSL")).split("://")[1]

    def confluent(self, client: str, scope: str = SCOPE) -> dict[str, Any]:
        """Settings of librdkafka, which gets its tokens by itself."""
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.file),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": SECRET + client,
            "sasl.oauthbearer.scope": scope,
            "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            "https.ca.location": str(self.provider.authority.file),
            "log_level": 0,
        }

    def run_java(self, tool: str, *arguments: str, scope: str = SCOPE, stdin: str = "") -> Any:
        """Run a tool of Kafka, which gets its tokens by itself, too."""
        settings = self.folder / f"{scope}.properties"
        trusted = f'ssl.truststore.type="PEM" ssl.truststore.location="{self.provider.authority.file}"'
        settings.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority.file}\n"
            f"sasl.oauthbearer.token.endpoint.url={self.provider.token_url}\n"
            f"sasl.login.callback.handler.class={JAVA_LOGIN}CallbackHandler\n"
            f'sasl.jaas.config={JAVA_LOGIN}Module required clientId="alice" clientSecret="{SECRET}alice" '
            f'scope="{scope}" {trusted};\n'
        )
        where = ["--bootstrap-server", self.servers, "--command-config", str(settings)]
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.provider.token_url}"
        return run_tool(tool, [*where, *arguments], stdin=stdin, options=[allowed])

    def authenticated(self, client: str) -> list[dict[str, Any]]:
        return [line for line in self.process.events("authenticated") if line["principal"] == f"User:{client}"]


@pytest.fixture(scope="module")
def node(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenNode]:
    made = TokenNode(tmp_path_factory.mktemp("tokens"), provider)
    with made.process as process:
        yield made
        assert process.terminate() == 0
    log = "\n".join(made.process.lines)
    assert "User:alice" in log
    assert SECRET not in log
    assert not [token for token in provider.tokens if token.split(".")[2] in log]


# clients


def test_java(node: TokenNode) -> None:
    done = node.run_java(PRODUCER, "--topic", "java", stdin="\n".join(RECORDS))
    assert done.returncode == 0, done.stdout + done.stderr
    limits = ["--max-messages", str(len(RECORDS)), "--timeout-ms", "30000", "--group", "java"]
    done = node.run_java(CONSUMER, "--topic", "java", "--from-beginning", *limits)
    assert done.stdout.splitlines() == RECORDS, done.stderr
    assert node.authenticated("alice")
    done = node.run_java(CONSUMER, "--topic", "java", "--timeout-ms", "30000", scope="other")
    assert 'SaslAuthenticationException: {"status":"invalid_token"}' in done.stdout + done.stderr


def test_librdkafka_authenticates_itself_again_with_new_tokens(node: TokenNode) -> None:
    failures: list[KafkaError] = []
    producer = Producer(node.confluent("brief"))
    sent = 0

    def again() -> bool:
        nonlocal sent
        sent += 1
        producer.produce("confluent", "x", on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.poll(0)
        return any(line["again"] for line in node.authenticated("brief"))

    wait_until(again, "a new token on the same connection")
    assert producer.flush(30) == 0
    assert not failures
    assert read_with_confluent(node.confluent("alice"), "confluent", sent) == ["x"] * sent


def test_librdkafka_without_the_scope_is_refused(node: TokenNode) -> None:
    def failures() -> list[dict[str, Any]]:
        return node.process.events("authentication failed")

    before = len(failures())
    client = AdminClient(node.confluent("alice", scope="other"))
    wait_until(lambda: len(failures()) > before, "the node refuses its token")
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.1)
    assert {line["reason"] for line in failures()[before:]} == {"the token does not have the scopes that are required"}


class AioKafkaToken(AioKafkaTokenProvider):  # type: ignore[misc]
    """Tokens for aiokafka."""

    def __init__(self, provider: IdentityProvider) -> None:
        self._provider = provider

    async def token(self) -> str:
        return await asyncio.to_thread(partial(self._provider.token, "alice", scope=SCOPE))


async def test_aiokafka(node: TokenNode) -> None:
    before = len(node.authenticated("alice"))
    async with AIOKafkaProducer(
        bootstrap_servers=node.servers,
        security_protocol="SASL_SSL",
        ssl_context=node.authority.client_context(),
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=AioKafkaToken(node.provider),
    ) as producer:
        await producer.send_and_wait("aiokafka", b"x")
    assert len(node.authenticated("alice")) > before


class KafkaPythonToken(KafkaPythonTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python."""

    def __init__(self, provider: IdentityProvider) -> None:
        self._provider = provider

    def token(self) -> str:
        return self._provider.token("alice", scope=SCOPE)


def test_kafka_python(node: TokenNode) -> None:
    before = len(node.authenticated("alice"))
    producer = KafkaProducer(
        bootstrap_servers=node.servers,
        security_protocol="SASL_SSL",
        ssl_cafile=str(node.authority.file),
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=KafkaPythonToken(node.provider),
    )
    producer.send("kafka-python", b"x").get(30)
    producer.close()
    assert len(node.authenticated("alice")) > before


# tokens, by requests


@asynccontextmanager
async def token_node(folder: Path, provider: IdentityProvider, **wanted: Any) -> AsyncIterator[Node]:
    settings = {
        "listeners": LISTENERS,
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "sasl_failed_authentication_delay_ms": 0,
        "sasl_oauthbearer_jwks_url": provider.keys_url,
        "sasl_oauthbearer_expected_issuer": provider.url,
        "sasl_oauthbearer_expected_audience": AUDIENCE,
        "sasl_oauthbearer_required_scopes": SCOPE,
        "sasl_oauthbearer_clock_skew_s": 0,
        **wanted,
    }
    async with running_node(folder, **settings) as running:
        yield running


async def outcome(node: Node, token: str) -> str:
    """Present a token; return the user, or why it is refused."""
    with capture_logs() as logs:
        async with raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}") as client:
            assert (await handshake(client, "OAUTHBEARER")).error_code == ErrorCode.NONE
            answer = await send_token(client, message(token))
            if answer.error_code == ErrorCode.NONE:
                return next(each.principal for each in node.ports.clients.connections)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    (reason,) = [line["reason"] for line in logs if line["event"] == "authentication failed"]
    return str(reason)


def good_token(provider: IdentityProvider, client: str = "alice") -> str:
    return provider.token(client, scope=SCOPE, audience=AUDIENCE)


async def test_claims_of_the_provider_are_checked(provider: IdentityProvider, tmp_path: Path) -> None:
    async with token_node(tmp_path, provider) as node:
        assert await outcome(node, good_token(provider)) == "User:alice"
        both = provider.token("alice", scope=f"other {SCOPE}", audience=f"another-service {AUDIENCE}")
        assert await outcome(node, both) == "User:alice"
        elsewhere = provider.token("alice", scope=SCOPE, audience="another-service")
        assert await outcome(node, elsewhere) == "the token is for another audience"
        assert await outcome(node, provider.token("alice", scope=SCOPE)) == "the token is for another audience"
        without = provider.token("alice", audience=AUDIENCE)
        assert await outcome(node, without) == "the token does not have the scopes that are required"
    wanted = {"sasl_oauthbearer_expected_issuer": "https://another.example"}
    async with token_node(tmp_path / "issuer", provider, **wanted) as node:
        assert await outcome(node, good_token(provider)) == "the token is of another issuer"


async def test_a_token_expires(provider: IdentityProvider, tmp_path: Path) -> None:
    async with token_node(tmp_path, provider) as node:
        token = good_token(provider, "expiring")
        async with asyncio.timeout(30):
            while (found := await outcome(node, token)) == "User:expiring":
                pass
        assert found == "the token has expired"


async def test_keys_change_and_the_provider_goes_away(
    provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.kafka.sasl.jwks.UNKNOWN_KEY_S", 0)
    async with token_node(tmp_path, provider) as node:
        first = good_token(provider)
        assert await outcome(node, first) == "User:alice"
        provider.add_key("second")
        second = good_token(provider)
        assert kid_of(second) == "second"
        assert await outcome(node, second) == "User:alice", "it is looked for at once"
        assert await outcome(node, first) == "User:alice"

        provider.remove_key(kid_of(first))
        provider.add_key("third")
        third = good_token(provider)
        assert await outcome(node, third) == "User:alice"
        assert await outcome(node, first) == "no key of the provider has signed the token"

        provider.add_key("fourth")
        fourth = good_token(provider)
        await asyncio.to_thread(provider.stop)
        try:
            assert await outcome(node, third) == "User:alice", "keys that are known remain"
            assert await outcome(node, fourth) == "no key of the provider has signed the token"
        finally:
            await asyncio.to_thread(provider.start)
        assert await outcome(node, fourth) == "User:alice"


async def test_a_provider_that_cannot_be_verified_is_not_believed(
    provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path / "other").file))
    with capture_logs() as logs:
        async with token_node(tmp_path, provider) as node:

            def reasons() -> set[str]:
                return {line["reason"] for line in logs if line["event"].startswith("keys of the identity provider")}

            await until(lambda: bool(reasons()))
            assert await outcome(node, good_token(provider)) == "no key of the provider has signed the token"
    (reason,) = reasons()
    assert reason.startswith(f"setting sasl.oauthbearer_jwks_url: {provider.keys_url}: ")
    assert "certificate verify failed" in reason
