"""A listener with SASL: what is served to whom, in which order, within which limits."""

import asyncio
import threading
import time
from asyncio import IncompleteReadError
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.sasl.plain import WAITING_MAX, PasswordHash
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.kafka.sasl.clients import (
    LISTENERS,
    PASSWORD,
    add_user,
    handshake,
    log_in,
    log_in_plain,
    token,
    users_file,
)
from tests.broker.kafka.sasl.provider import AUDIENCE, ISSUER, claims, message, provider_of, rsa_key, sign
from tests.broker.kafka.sasl.scram_client import ScramClient
from tests.support.certificates import Authority
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client, request_frame
from tests.support.waiting import until

VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")
ASK = MetadataRequest(topics=())
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


@asynccontextmanager
async def sasl_node(tmp_path: Path, **wanted: Any) -> AsyncIterator[Node]:
    settings = {
        "listeners": LISTENERS,
        "sasl_enabled_mechanisms": ",".join(MECHANISMS),
        "sasl_plain_users_file": users_file(tmp_path),
        "sasl_failed_authentication_delay_ms": 0,
        "sasl_authentication_timeout_ms": 600_000,
        **wanted,
    }
    async with running_node(tmp_path, **settings) as node:
        await add_user(node, "alice")
        yield node
        assert node.serving.request_failures == 0


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with sasl_node(tmp_path) as running:
        yield running


def client_of(node: Node, listener: str = "SASL_PLAINTEXT", **options: Any) -> Any:
    return raw_client(f"127.0.0.1:{node.ports.clients.ports[listener]}", **options)


async def assert_served(node: Node, client: RawClient, principal: str = "User:alice") -> None:
    assert [each.port for each in (await client.call(ASK, 9)).brokers] == [node.ports.clients.ports["SASL_PLAINTEXT"]]
    assert principal in {each.principal for each in node.ports.clients.connections}


async def test_an_authenticated_client_is_served(node: Node) -> None:
    async with client_of(node) as client:
        assert (await client.call(VERSIONS, 3)).error_code == ErrorCode.NONE
        answer = await log_in(client)
        assert (answer.error_code, answer.error_message, answer.session_lifetime_ms) == (0, "", 0)
        await assert_served(node, client)
        [connection] = node.ports.clients.connections
        assert (connection.principal, connection.software_name) == ("User:alice", "a")
    assert (node.ports.clients.stats.authenticated, node.ports.clients.stats.failed_authentications) == (1, 0)


async def test_plain(node: Node) -> None:
    for version in range(3):
        async with client_of(node) as client:
            answer = await log_in_plain(client, version=version)
            assert (answer.error_code, answer.auth_bytes) == (0, b"")
            await assert_served(node, client)


async def test_a_flood_of_wrong_passwords_keeps_nobody_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[bytes] = []
    begun, go = threading.Event(), threading.Event()

    def fits(_: PasswordHash, password: bytes) -> bool:
        computed.append(password)
        begun.set()
        assert go.wait(60)
        return password == PASSWORD.encode()

    monkeypatch.setattr(PasswordHash, "fits", fits)
    message = SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong")
    async with AsyncExitStack() as flood:
        for _ in range(80):
            client = await flood.enter_async_context(client_of(node))
            await handshake(client, "PLAIN")
            client.send(message, 2)
        await asyncio.to_thread(begun.wait, 60)
        await until(lambda: len(node.ports.clients.connections) == 1 + WAITING_MAX)  # the others are closed
    await until(lambda: not node.ports.clients.connections)
    go.set()
    async with client_of(node) as client:
        assert (await log_in_plain(client)).error_code == 0
    assert computed == [b"wrong", PASSWORD.encode()], "nothing is computed for those who have left"


async def test_an_authenticated_client_may_send_large_requests(tmp_path: Path) -> None:
    async with sasl_node(tmp_path, sasl_server_max_receive_bytes=1024) as node, client_of(node) as client:
        await log_in(client)
        client.send_bytes(request_frame(3, 99, bytes(5000)))  # an unknown version closes the connection, not the size
        with capture_logs() as logs:
            assert await client.closed()
        assert [line["reason"] for line in logs if line["event"] == "connection closed"] == [
            "Metadata request in version 99, served are 0 to 13"
        ]


async def test_nothing_is_served_before_a_handshake(node: Node) -> None:
    requests = (ASK, ListGroupsRequest(), DescribeClusterRequest(), SaslAuthenticateRequest(auth_bytes=b"\0alice\0x"))
    for request in requests:
        for after_versions in (False, True):
            async with client_of(node) as client:
                if after_versions:
                    await client.call(VERSIONS, 3)
                client.send(request)
                assert await client.closed()
    assert node.ports.clients.stats.closed_bad_input == 2 * len(requests)


async def test_versions_may_be_asked_for_once(node: Node) -> None:
    async with client_of(node) as client:
        client.send_bytes(request_frame(18, 77, b""))
        assert int.from_bytes((await client.receive_bytes())[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
        assert (await client.call(ApiVersionsRequest(client_software_name="-"), 3)).error_code == 42
        assert (await client.call(VERSIONS, 3)).error_code == 0
        client.send(VERSIONS, 3)
        assert await client.closed()


async def test_a_mechanism_that_the_listener_does_not_have_is_answered_with_those_it_has(node: Node) -> None:
    for mechanism in ("GSSAPI", "", "plain", "x" * 1000):
        async with client_of(node) as client:
            answer = await handshake(client, mechanism)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, MECHANISMS)
            assert await client.closed()


async def test_tokens_without_requests_are_refused(node: Node) -> None:
    async with client_of(node) as client:
        answer = await handshake(client, "PLAIN", version=0)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_VERSION, MECHANISMS)
        assert await client.closed()


async def test_another_request_between_tokens_is_out_of_order(node: Node) -> None:
    for request in (VERSIONS, ListGroupsRequest(), SaslHandshakeRequest(mechanism="PLAIN")):
        async with client_of(node) as client:
            await handshake(client)
            await token(client, ScramClient("alice", "x").first())
            assert (await client.call(request, 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client.closed()


async def test_a_request_that_cannot_be_answered_with_an_error_closes_the_connection(node: Node) -> None:
    for frame in (request_frame(3, 9, b""), request_frame(36, 9, b""), request_frame(999, 0, b"")):
        async with client_of(node) as client:
            await handshake(client)
            client.send_bytes(frame)
            assert await client.closed()


async def test_failures_are_answered_and_close_the_connection(node: Node) -> None:
    password, credentials = "Invalid username or password", "invalid credentials with SASL mechanism"
    cases = (
        ("PLAIN", b"\0alice\0wrong", f"Authentication failed: {password}"),
        ("PLAIN", b"\0mallory\0wrong", f"Authentication failed: {password}"),
        ("PLAIN", b"\0alice", "expected 3 tokens, got 2"),
        ("PLAIN", b"\0alice\0\xff", f"Authentication failed during authentication due to {credentials} PLAIN"),
        ("SCRAM-SHA-256", b"p=tls-unique,,n=alice,r=a", f"{credentials} SCRAM-SHA-256"),
        ("SCRAM-SHA-512", b"x", f"{credentials} SCRAM-SHA-512"),
    )
    with capture_logs() as logs:
        for mechanism, data, expected in cases:
            async with client_of(node) as client:
                await handshake(client, mechanism)
                answer = await token(client, data)
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert answer.error_message.endswith(expected)
                assert await client.closed()
    assert node.ports.clients.stats.failed_authentications == 6
    failed = [line for line in logs if line["event"] == "authentication failed"]
    assert [line.get("user") for line in failed] == ["alice", "mallory", None, None, None, None]
    assert {line["listener"] for line in failed} == {"SASL_PLAINTEXT"}


async def test_a_user_that_is_removed_or_has_a_new_password_is_refused(node: Node) -> None:
    for change in (add_user(node, "alice", "new"), node.serving.scram.remove("alice", "SCRAM-SHA-256")):
        await change
        async with client_of(node) as client:
            assert (await log_in(client)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_the_answer_to_a_failure_is_delayed_and_nothing_else_is_served(tmp_path: Path) -> None:
    async with sasl_node(tmp_path, sasl_failed_authentication_delay_ms=60_000) as node, client_of(node) as client:
        await handshake(client, "PLAIN")
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"))
        client.send(SaslHandshakeRequest(mechanism="PLAIN"))
        await until(lambda: node.ports.clients.stats.failed_authentications == 1)
        [connection] = node.ports.clients.connections
        assert not connection.closed
        async with client_of(node) as other:
            await log_in(other)
            await assert_served(node, other)
        assert not connection.closed, "it is still delayed"


async def test_a_client_that_does_not_authenticate_itself_in_time_is_disconnected(tmp_path: Path) -> None:
    async with sasl_node(tmp_path, sasl_authentication_timeout_ms=3_000) as node:
        async with client_of(node) as silent, client_of(node) as half:
            await handshake(half)
            assert await silent.closed()
            assert await half.closed()
        async with client_of(node) as client:
            await log_in_plain(client)
            [connection] = node.ports.clients.connections
            gate: Any = node.ports.clients.gates["SASL_PLAINTEXT"]
            assert gate._sessions[connection]._timer is None  # noqa: SLF001 - nothing is due any more
        async with client_of(node) as client:
            await handshake(client)
            [connection] = await connections(node, 1)
            timer = gate._sessions[connection]._timer  # noqa: SLF001
        await until(timer.cancelled)
        await until(lambda: not gate._sessions)  # noqa: SLF001 - nothing is kept


async def test_a_stranger_may_send_small_requests_only(node: Node) -> None:
    async with client_of(node) as client:
        client.send_bytes((32 << 10).to_bytes(4, "big") + b"\0\x11\0\1")
        await asyncio.sleep(0)
        [connection] = await connections(node, 1)
        assert not connection.closed, "a request of this size is allowed"
    async with client_of(node) as client:
        with capture_logs() as logs:
            client.send_bytes(((32 << 10) + 1).to_bytes(4, "big") + b"\0\x11\0\1")
            assert await client.closed()
    assert [line["reason"] for line in logs if "reason" in line] == ["frame of 32769 bytes, allowed are 8 to 32768"]


async def connections(node: Node, count: int) -> list[Any]:
    await until(lambda: len(node.ports.clients.connections) == count)
    return list(node.ports.clients.connections)


async def test_a_stranger_cannot_fill_the_memory_with_requests_that_wait(tmp_path: Path) -> None:
    async with sasl_node(tmp_path, sasl_failed_authentication_delay_ms=60_000) as node, client_of(node) as client:
        await handshake(client, "PLAIN")
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"))
        await until(lambda: node.ports.clients.stats.failed_authentications == 1)
        for _ in range(100):
            client.send(SaslAuthenticateRequest(auth_bytes=bytes(30 << 10)))
        [connection] = node.ports.clients.connections
        await until(lambda: connection._paused_reading)  # noqa: SLF001 - its socket is not read
        assert node.ports.clients.bytes_held < 256 << 10


async def test_listeners_have_mechanisms_of_their_own(tmp_path: Path) -> None:
    wanted = {
        "listeners": f"{LISTENERS},OTHER://127.0.0.1:0",
        "security_protocol_map": "OTHER:SASL_PLAINTEXT",
        "sasl_mechanisms": "OTHER:PLAIN,OTHER:SCRAM-SHA-512",
        "sasl_enabled_mechanisms": "SCRAM-SHA-256",
    }
    async with sasl_node(tmp_path, **wanted) as node:
        for listener, expected in (("OTHER", ("PLAIN", "SCRAM-SHA-512")), ("SASL_PLAINTEXT", ("SCRAM-SHA-256",))):
            async with client_of(node, listener) as client:
                assert (await handshake(client, "GSSAPI")).mechanisms == expected
        async with client_of(node, "PLAINTEXT") as client:
            assert (await handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert (await token(client, b"")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert (await client.call(ASK, 9)).brokers


async def test_a_second_handshake_is_refused_and_the_connection_lives_on(node: Node) -> None:
    async with client_of(node) as client:
        await log_in(client)
        assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = await token(client, b"")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer.error_message == "SaslAuthenticate request received after successful authentication"
        await assert_served(node, client)


async def test_sasl_over_tls_names_the_client_and_asks_for_no_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = {
        "listeners": "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl_certificate_file": authority.issue("node").both,
        "ssl_ca_file": authority.file,
        "ssl_client_auth": "required",
    }
    async with sasl_node(tmp_path, **files) as node:
        async with client_of(node, "SASL_SSL", context=authority.client_context()) as client:
            await log_in(client)
            assert (await client.call(ASK, 9)).brokers
            assert [each.principal for each in node.ports.clients.connections] == ["User:alice"]
        with pytest.raises((OSError, IncompleteReadError)):
            async with client_of(node, "SSL", context=authority.client_context()) as client:
                await client.call(ASK, 9)


async def test_tls_where_sasl_without_it_is_expected_is_refused_and_the_reverse(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = {"listeners": f"{LISTENERS},SASL_SSL://127.0.0.1:0", "ssl_certificate_file": authority.issue("node").both}
    async with sasl_node(tmp_path, **files) as node, client_of(node) as other:
        await log_in(other)
        with capture_logs() as logs:
            with pytest.raises((OSError, IncompleteReadError)):
                async with client_of(node, context=authority.client_context()) as client:
                    await client.call(ASK, 9)
            async with client_of(node, "SASL_SSL") as client:
                client.send(SaslHandshakeRequest(mechanism="PLAIN"))
                assert await client.closed()
        assert [line["reason"] for line in logs if "reason" in line] == [
            "a TLS handshake, but this port expects Kafka's protocol without TLS",
            "a client that does not use TLS, but this listener expects TLS",
        ]
        await assert_served(node, other)


async def test_a_recorded_authentication_cannot_be_replayed(node: Node) -> None:
    """All messages of a client that was authenticated, again on a new connection."""
    scram = ScramClient("alice", PASSWORD)
    async with client_of(node) as client, client_of(node) as thief:
        await handshake(client)
        final = scram.final((await token(client, scram.first())).auth_bytes)
        assert (await token(client, final)).error_code == ErrorCode.NONE
        await handshake(thief)
        assert (await token(thief, scram.first())).error_code == ErrorCode.NONE
        assert (await token(thief, final)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await thief.closed()
        await assert_served(node, client)


async def test_the_second_message_first_and_the_first_one_twice_are_refused(node: Node) -> None:
    for before in ((), (True,)):
        scram = ScramClient("alice", PASSWORD)
        recorded = scram.final(b"r=clientnonceX,s=AAAA,i=4096")
        async with client_of(node) as client:
            await handshake(client)
            for _ in before:
                assert (await token(client, scram.first())).error_code == ErrorCode.NONE
            answer = await token(client, scram.first() if before else recorded)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.closed()


async def test_requests_of_an_authentication_may_be_sent_ahead(node: Node) -> None:
    async with client_of(node) as client:
        client.send(VERSIONS, 3)
        client.send(SaslHandshakeRequest(mechanism="PLAIN"))
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0bob\0b"))
        client.send(ASK, 9)
        for expected in (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest):
            version = 3 if expected is ApiVersionsRequest else None
            assert (await client.receive(expected, version))[1].error_code == ErrorCode.NONE
        assert (await client.receive(MetadataRequest, 9))[1].brokers


async def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    now_s = time.time_ns() // 10**9
    with provider_of(rsa_key()) as provider:
        wanted = {
            "sasl_enabled_mechanisms": "PLAIN,OAUTHBEARER",
            "sasl_oauthbearer_jwks_url": provider.url,
            "sasl_oauthbearer_expected_issuer": ISSUER,
            "sasl_oauthbearer_expected_audience": AUDIENCE,
        }
        async with sasl_node(tmp_path, **wanted) as node:
            async with client_of(node) as client:
                await handshake(client, "OAUTHBEARER")
                answer = await token(client, message(sign(rsa_key(), claims(now_s))))
                assert answer.error_code == ErrorCode.NONE
                assert 500_000 < answer.session_lifetime_ms <= 600_000
                await assert_served(node, client)
                age(node, 600_001)
                client.send(ASK, 9)
                assert await client.closed()
            async with client_of(node) as client:
                await log_in_plain(client)
                await assert_served(node, client)
            async with client_of(node) as client:
                await handshake(client, "OAUTHBEARER")
                answer = await token(client, message(sign(rsa_key(), claims(now_s, aud="other"))))
                assert (answer.error_code, answer.error_message) == (58, '{"status":"invalid_token"}')
                assert await client.closed()


# clients that authenticate themselves again


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Node]:
    async with sasl_node(tmp_path, sasl_max_reauth_ms=3_600_000) as running:
        await add_user(running, "bob")
        yield running


def age(node: Node, ms: int) -> None:
    """Let the sessions be older."""
    gate: Any = node.ports.clients.gates["SASL_PLAINTEXT"]
    for session in gate._sessions.values():  # noqa: SLF001
        session._ends_s -= ms / 1000  # noqa: SLF001 - instead of waiting
        if session._began_again_s is not None:  # noqa: SLF001
            session._began_again_s -= ms / 1000  # noqa: SLF001


async def test_a_client_authenticates_itself_again_and_is_told_its_lifetime(limited: Node) -> None:
    async with client_of(limited) as client:
        assert (await log_in(client)).session_lifetime_ms == 3_600_000
        for _ in range(2):
            age(limited, 3_500_000)
            await assert_served(limited, client)
            assert (await log_in(client)).session_lifetime_ms == 3_600_000
        await assert_served(limited, client)
    assert limited.ports.clients.stats.authenticated == 3


async def test_a_session_that_has_ended_is_closed_at_the_next_request_except_a_handshake(limited: Node) -> None:
    async with client_of(limited) as late, client_of(limited) as client:
        await log_in(late)
        await log_in(client)
        age(limited, 3_600_001)
        late.send(ASK, 9)
        assert await late.closed()
        assert limited.ports.clients.stats.expired_sessions == 1
        assert (await log_in(client)).error_code == ErrorCode.NONE
        await assert_served(limited, client)


async def test_a_client_authenticates_itself_again_once_a_second(limited: Node) -> None:
    async with client_of(limited) as client:
        await log_in(client)
        await log_in(client)
        assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await assert_served(limited, client)


async def test_nothing_is_served_while_a_client_authenticates_itself_again(limited: Node) -> None:
    async with client_of(limited) as client:
        await log_in(client)
        await handshake(client)
        assert (await client.call(ListGroupsRequest())).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.closed()


async def test_a_client_keeps_its_user_and_its_mechanism(limited: Node) -> None:
    async with client_of(limited) as client:
        await log_in(client)
        answer = await log_in(client, "bob")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
        assert await client.closed()
    async with client_of(limited) as client:
        await log_in(client)
        assert (await handshake(client, "PLAIN")).error_code == ErrorCode.NONE
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0x"))
        assert await client.closed()
    async with client_of(limited) as client:
        await log_in(client)
        client.send(SaslHandshakeRequest(mechanism="GSSAPI"))
        assert await client.closed()


async def test_a_wrong_password_ends_the_session(limited: Node) -> None:
    async with client_of(limited) as client:
        await log_in(client)
        answer = await log_in(client, password="wrong")
        assert answer.error_message.startswith("Authentication failed during re-authentication due to invalid")
        assert await client.closed()


async def test_an_older_release_authenticates_in_its_versions(tmp_path: Path) -> None:
    async with sasl_node(tmp_path, compatibility_kafka="2.3") as node:
        async with client_of(node) as client:
            client.send(VERSIONS, 3)
            assert (await client.receive_bytes())[4:] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big") + bytes(4)
            assert (await client.call(VERSIONS, 2)).error_code == ErrorCode.NONE
            assert (await log_in_plain(client, version=1)).error_code == ErrorCode.NONE
            assert (await client.call(ASK, 8)).brokers
        async with client_of(node) as client:
            await handshake(client, "PLAIN")
            client.send(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()), 2)
            assert await client.closed()
