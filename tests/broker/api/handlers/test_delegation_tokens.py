"""Delegation tokens (KIP-48): requests about them, and clients that authenticate themselves with one."""

import asyncio
import base64
import hmac
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from anabranch.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from anabranch.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from anabranch.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from anabranch.protocol.messages.metadata import MetadataRequest
from anabranch.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.broker.kafka.sasl.clients import LISTENERS, PASSWORD, add_user, handshake, log_in, token
from tests.broker.kafka.sasl.scram_client import ScramClient
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client
from tests.support.waiting import until

KEY = "key-of-the-delegation-tokens-0123456789"
DAY_MS = 86_400_000
CREATE = CreateDelegationTokenRequest(max_lifetime_ms=-1)
ALL = DescribeDelegationTokenRequest(owners=None)
LOGGED = {"listeners": LISTENERS, "sasl_failed_authentication_delay_ms": 0}


@asynccontextmanager
async def token_node(folder: Path, **wanted: Any) -> AsyncIterator[Node]:
    settings = {**LOGGED, "delegation_token_secret_key": KEY, **wanted}
    async with running_node(folder, **settings) as node:
        for user in ("alice", "bob", "carol"):
            await add_user(node, user)
        yield node
        assert node.serving.request_failures == 0


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with token_node(tmp_path) as running:
        yield running


@asynccontextmanager
async def client_of(node: Node, user: str = "") -> AsyncIterator[RawClient]:
    """A client of the listener with SASL that is authenticated as the user; of the other listener without one."""
    listener = "SASL_PLAINTEXT" if user else "PLAINTEXT"
    async with raw_client(f"127.0.0.1:{node.ports.clients.ports[listener]}") as client:
        if user:
            assert (await log_in(client, user)).error_code == ErrorCode.NONE
        yield client


def renewers(*names: str) -> Sequence[CreatableRenewers]:
    return [CreatableRenewers(principal_type="User", principal_name=name) for name in names]


async def create(node: Node, user: str, *, version: int = 3, **wanted: Any) -> Any:
    async with client_of(node, user) as client:
        return await client.call(CreateDelegationTokenRequest(**{"max_lifetime_ms": -1, **wanted}), version)


async def call(node: Node, user: str, request: Any, version: int) -> Any:
    async with client_of(node, user) as client:
        return await client.call(request, version)


async def ids_seen_by(node: Node, user: str, owners: Sequence[str] | None = None) -> set[str]:
    asked = (
        None
        if owners is None
        else [DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners]
    )
    answer = await call(node, user, DescribeDelegationTokenRequest(owners=asked), 3)
    assert answer.error_code == ErrorCode.NONE
    return {each.token_id for each in answer.tokens}


async def log_in_with_token(
    client: RawClient,
    token_id: str,
    password: str,
    mechanism: str = "SCRAM-SHA-512",
    extensions: str = ",tokenauth=true",
) -> Any:
    """Authenticate with a delegation token, and return the last answer."""
    assert (await handshake(client, mechanism)).error_code == ErrorCode.NONE
    scram = ScramClient(token_id, password, mechanism, extensions=extensions)
    first = await token(client, scram.first())
    if first.error_code:
        return first
    last = await token(client, scram.final(first.auth_bytes))
    if last.error_code == ErrorCode.NONE:
        assert scram.accepts(last.auth_bytes)
    return last


def password_of(created: Any) -> str:
    return base64.b64encode(created.hmac).decode()


def sasl_client(node: Node) -> Any:
    return raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}")


async def assert_refused(node: Node, token_id: str, password: str, **options: Any) -> None:
    async with sasl_client(node) as client:
        answer = await log_in_with_token(client, token_id, password, **options)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.closed()


async def test_a_token_is_made_and_described(node: Node) -> None:
    for version in (1, 2, 3):
        before_ms = node.serving.now_ms()
        made = await create(node, "alice", version=version, renewers=renewers("bob"), max_lifetime_ms=2 * DAY_MS)
        assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "alice")
        assert before_ms <= made.issue_timestamp_ms <= node.serving.now_ms()
        assert made.expiry_timestamp_ms == made.issue_timestamp_ms + DAY_MS
        assert made.max_timestamp_ms == made.issue_timestamp_ms + 2 * DAY_MS
        assert made.hmac == hmac.digest(KEY.encode(), made.token_id.encode(), "sha512")
        assert len(base64.urlsafe_b64decode(made.token_id + "==")) == 16
        answer = await call(node, "alice", ALL, version)
        [found] = [each for each in answer.tokens if each.token_id == made.token_id]
        assert (found.principal_name, found.hmac) == ("alice", made.hmac)
        assert (found.issue_timestamp, found.expiry_timestamp, found.max_timestamp) == (
            made.issue_timestamp_ms,
            made.expiry_timestamp_ms,
            made.max_timestamp_ms,
        )
        assert [(each.principal_type, each.principal_name) for each in found.renewers] == [("User", "bob")]
        assert found.token_requester_principal_name == ("alice" if version == 3 else "")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_client_with_a_token_is_its_owner(node: Node, mechanism: str) -> None:
    made = await create(node, "bob", owner_principal_type="User", owner_principal_name="alice")
    assert (made.principal_name, made.token_requester_principal_name) == ("alice", "bob")
    async with sasl_client(node) as client:
        answer = await log_in_with_token(client, made.token_id, password_of(made), mechanism)
        assert answer.error_code == ErrorCode.NONE
        left_ms = made.expiry_timestamp_ms - node.serving.now_ms()
        assert left_ms <= answer.session_lifetime_ms <= DAY_MS
        assert (await client.call(MetadataRequest(topics=()), 9)).brokers
        assert {each.principal for each in node.ports.clients.connections} == {"User:alice"}


async def test_requests_need_an_authenticated_client_without_a_token(node: Node) -> None:
    made = await create(node, "alice")
    requests: Mapping[Any, int] = {
        CREATE: 3,
        RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1): 2,
        ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1): 2,
        ALL: 3,
    }
    async with client_of(node) as stranger, sasl_client(node) as client:
        assert (await log_in_with_token(client, made.token_id, password_of(made))).error_code == ErrorCode.NONE
        for each in (stranger, client):
            for request, version in requests.items():
                answer = await each.call(request, version)
                assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, request
                for field in ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms"):
                    assert getattr(answer, field, -1) == -1
    assert await ids_seen_by(node, "alice") == {made.token_id}


async def test_tokens_are_off_without_a_key(tmp_path: Path) -> None:
    async with token_node(tmp_path, delegation_token_secret_key=None) as node:
        for request, version in (
            (CREATE, 3),
            (RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1), 2),
            (ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), 2),
            (ALL, 3),
        ):
            answer = await call(node, "alice", request, version)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        await assert_refused(node, "id", "x")


async def test_only_users_are_owners_and_renewers(node: Node) -> None:
    wrong = [CreatableRenewers(principal_type="Group", principal_name="g")]
    assert (await create(node, "alice", renewers=wrong)).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    answer = await create(node, "alice", owner_principal_type="Group", owner_principal_name="bob")
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert not await ids_seen_by(node, "alice")


async def test_owner_and_renewers_renew_and_expire(node: Node) -> None:
    made = await create(node, "alice", renewers=renewers("bob"), max_lifetime_ms=2 * DAY_MS)

    async def renew(user: str, period_ms: int, token_hmac: bytes = made.hmac) -> Any:
        request = RenewDelegationTokenRequest(hmac=token_hmac, renew_period_ms=period_ms)
        return await call(node, user, request, 2)

    async def expire(user: str, period_ms: int) -> Any:
        request = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=period_ms)
        return await call(node, user, request, 2)

    for user in ("alice", "bob"):
        answer = await renew(user, 1000)
        assert answer.error_code == 0
        assert 0 <= answer.expiry_timestamp_ms - node.serving.now_ms() <= 1000
        answer = await renew(user, -1)
        assert DAY_MS - 60_000 < answer.expiry_timestamp_ms - node.serving.now_ms() <= DAY_MS
        answer = await expire(user, 100 * DAY_MS)
        assert answer.expiry_timestamp_ms == made.max_timestamp_ms
    for answer in (await renew("carol", -1), await expire("carol", -1), await expire("carol", 1)):
        assert (answer.error_code, answer.expiry_timestamp_ms) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert (await renew("alice", -1, made.hmac[:-1])).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert (await expire("bob", -1)).error_code == 0
    for answer in (await renew("alice", -1), await expire("alice", -1)):
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert not await ids_seen_by(node, "alice")
    await assert_refused(node, made.token_id, password_of(made))


async def test_the_requester_of_a_token_for_another_may_see_it_but_not_renew_it(node: Node) -> None:
    made = await create(node, "bob", owner_principal_type="User", owner_principal_name="alice")
    assert made.token_id in await ids_seen_by(node, "bob", ["bob"])
    answer = await call(node, "bob", RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1), 2)
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


async def test_tokens_are_described_by_owner(node: Node) -> None:
    of_alice = (await create(node, "alice", renewers=renewers("carol"))).token_id
    of_bob = (await create(node, "bob")).token_id
    assert await ids_seen_by(node, "alice") == {of_alice, of_bob}  # without an authorizer everybody may
    assert await ids_seen_by(node, "alice", ["bob"]) == {of_bob}
    assert await ids_seen_by(node, "alice", ["carol", "bob"]) == {of_alice, of_bob}
    assert await ids_seen_by(node, "alice", []) == set()


async def test_an_expired_token_is_worth_nothing_and_is_removed(tmp_path: Path) -> None:
    async with token_node(tmp_path, delegation_token_expiry_check_interval_ms=DAY_MS) as node:
        made = await create(node, "alice")
        other = await create(node, "alice")
        async with sasl_client(node) as used:
            await log_in_with_token(used, made.token_id, password_of(made))
        expire = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=0)
        expired_ms = (await call(node, "alice", expire, 2)).expiry_timestamp_ms
        await until(lambda: node.serving.now_ms() > expired_ms)
        await assert_refused(node, made.token_id, password_of(made))
        for request in (expire, RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1)):
            assert (await call(node, "alice", request, 2)).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
        assert await ids_seen_by(node, "alice") == {made.token_id, other.token_id}
        assert node.serving.delegation_tokens is not None
        await node.serving.delegation_tokens.remove_expired()
        assert await ids_seen_by(node, "alice") == {other.token_id}
        assert [each.token_id for each in await node.serving.catalog.list_tokens()] == [other.token_id]


async def test_expired_tokens_are_removed_from_time_to_time(tmp_path: Path) -> None:
    async with token_node(tmp_path, delegation_token_expiry_check_interval_ms=10) as node:
        made = await create(node, "alice", max_lifetime_ms=1)
        assert made.max_timestamp_ms == made.expiry_timestamp_ms == made.issue_timestamp_ms + 1
        assert node.serving.delegation_tokens is not None
        await until(lambda: node.serving.delegation_tokens is not None and not node.serving.delegation_tokens.tokens)
        assert await node.serving.catalog.list_tokens() == ()


async def test_attempts_without_the_right_hmac_fail(node: Node) -> None:
    made, other = await create(node, "alice"), await create(node, "bob")
    right = password_of(made)
    attempts: Sequence[tuple[str, str, str]] = (
        (made.token_id, password_of(other), ",tokenauth=true"),
        (other.token_id, right, ",tokenauth=true"),
        (made.token_id, right[:-4] + "AAA=", ",tokenauth=true"),
        (made.token_id, right, ""),  # a user with the name of a token does not exist
        (made.token_id, right, ",tokenauth=false"),
        (made.token_id, right, ",tokenauth=true,tokenauth=no"),
        ("alice", PASSWORD, ",tokenauth=true"),  # a user is no token
        ("alice", right, ",tokenauth=true"),
        ("alice", right, ""),
        ("no-such-id", right, ",tokenauth=true"),
        (made.token_id, KEY, ",tokenauth=true"),
        (made.token_id, "", ",tokenauth=true"),
    )
    with capture_logs() as logs:
        for token_id, password, extensions in attempts:
            mechanism = "SCRAM-SHA-256" if token_id == "alice" else "SCRAM-SHA-512"
            await assert_refused(node, token_id, password, extensions=extensions, mechanism=mechanism)
    assert {line["reason"] for line in logs if line["event"] == "authentication failed"} == {
        "wrong HMAC of the delegation token",
        "unknown or expired delegation token",
        "unknown user",
        "wrong password",
    }
    for secret in (right, password_of(other), KEY):
        assert secret not in str(logs)
    async with sasl_client(node) as client:
        answer = await log_in_with_token(client, made.token_id, right, extensions=",x=y,tokenauth=TRUE")
        assert answer.error_code == ErrorCode.NONE


async def test_a_recorded_exchange_is_worth_nothing(node: Node) -> None:
    made = await create(node, "alice")
    scram = ScramClient(made.token_id, password_of(made), "SCRAM-SHA-512", extensions=",tokenauth=true")
    async with sasl_client(node) as client:
        await handshake(client, "SCRAM-SHA-512")
        final = scram.final((await token(client, scram.first())).auth_bytes)
        assert (await token(client, final)).error_code == ErrorCode.NONE
    async with sasl_client(node) as thief:
        await handshake(thief, "SCRAM-SHA-512")
        await token(thief, scram.first())
        assert (await token(thief, final)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_token_that_expires_within_the_exchange_is_refused(node: Node) -> None:
    made = await create(node, "alice")
    scram = ScramClient(made.token_id, password_of(made), "SCRAM-SHA-512", extensions=",tokenauth=true")
    async with sasl_client(node) as client:
        await handshake(client, "SCRAM-SHA-512")
        first = await token(client, scram.first())
        await call(node, "alice", ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
        assert (await token(client, scram.final(first.auth_bytes))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_salts_do_not_tell_which_tokens_exist(node: Node) -> None:
    made = await create(node, "alice")

    async def answers(token_id: str) -> set[tuple[int, bytes]]:
        found = set()
        for _ in range(2):
            async with sasl_client(node) as client:
                await handshake(client, "SCRAM-SHA-512")
                scram = ScramClient(token_id, "x", extensions=",tokenauth=true")
                salt, iterations = (await token(client, scram.first())).auth_bytes.split(b",")[1:]
                found.add((len(salt), salt + iterations))
        return found

    before, unknown = await answers(made.token_id), await answers(made.token_id[::-1])
    assert len(before) == len(unknown) == 1
    assert {length for length, _ in before} == {length for length, _ in unknown}
    await call(node, "alice", ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
    assert await answers(made.token_id) == before


async def test_the_session_of_a_token_ends_with_it(node: Node) -> None:
    made = await create(node, "alice", max_lifetime_ms=2_000)
    async with sasl_client(node) as client:
        answer = await log_in_with_token(client, made.token_id, password_of(made))
        assert answer.error_code == ErrorCode.NONE
        assert 0 <= answer.session_lifetime_ms <= 2_000
        await until(lambda: node.serving.now_ms() > made.max_timestamp_ms + 5)
        client.send(MetadataRequest(topics=()), 9)
        assert await client.closed()
    assert node.ports.clients.stats.expired_sessions == 1


async def remove_user(node: Node, user: str, *mechanisms: int) -> None:
    """Remove credentials as Kafka's tool does."""
    deletions = [ScramCredentialDeletion(name=user, mechanism=each) for each in mechanisms]
    async with client_of(node, "bob") as client:
        answer = await client.call(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]), 0)
    assert [each.error_code for each in answer.results] == [ErrorCode.NONE] * len(mechanisms)


async def test_the_tokens_of_a_user_go_with_its_last_credential(node: Node) -> None:
    await add_user(node, "alice", mechanism="SCRAM-SHA-512")
    made, of_bob = await create(node, "alice"), await create(node, "bob")
    async with client_of(node, "alice") as open_session:
        await remove_user(node, "alice", 1)
        async with sasl_client(node) as client:
            assert (await log_in_with_token(client, made.token_id, password_of(made))).error_code == ErrorCode.NONE
        await remove_user(node, "alice", 2)
        await assert_refused(node, made.token_id, password_of(made))
        answer = await open_session.call(CREATE, 3)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert [token.token_id for token in await node.serving.catalog.list_tokens()] == [of_bob.token_id]
    async with sasl_client(node) as client:
        assert (await log_in_with_token(client, of_bob.token_id, password_of(of_bob))).error_code == ErrorCode.NONE


async def test_a_client_authenticates_itself_again_with_another_token_of_its_owner(node: Node) -> None:
    made, other, of_bob = await create(node, "alice"), await create(node, "alice"), await create(node, "bob")
    async with sasl_client(node) as client:
        for each in (made, other):
            answer = await log_in_with_token(client, each.token_id, password_of(each))
            assert answer.error_code == ErrorCode.NONE
            assert (await client.call(CREATE, 3)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            gate: Any = node.ports.clients.gates["SASL_PLAINTEXT"]
            [session] = gate._sessions.values()  # noqa: SLF001
            session._began_again_s = None  # noqa: SLF001 - otherwise once a second
        answer = await log_in_with_token(client, of_bob.token_id, password_of(of_bob))
        assert answer.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"


async def test_limits(tmp_path: Path) -> None:
    async with token_node(tmp_path, delegation_token_tokens_max=2) as node:
        long = await create(node, "alice", renewers=renewers("x" * 8200))
        assert long.error_code == ErrorCode.POLICY_VIOLATION
        codes = [(await create(node, "alice")).error_code for _ in range(3)]
        assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]


async def test_changes_are_audit_events_without_secrets(node: Node) -> None:
    with capture_logs() as logs:
        made = await create(node, "alice")
        renew = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1)
        await call(node, "alice", renew, 2)
        await call(node, "bob", renew, 2)
        await call(node, "alice", ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
        await call(node, "alice", renew, 2)
    events = [line for line in logs if line["event"] in {"changed", "change refused"}]
    assert [(line["principal"], line["api"], line["resource"], line["outcome"]) for line in events] == [
        ("User:alice", "CreateDelegationToken", f"{made.token_id} of User:alice", "OK"),
        ("User:alice", "RenewDelegationToken", made.token_id, "OK"),
        ("User:bob", "RenewDelegationToken", made.token_id, "DELEGATION_TOKEN_OWNER_MISMATCH"),
        ("User:alice", "ExpireDelegationToken", made.token_id, "OK"),
        ("User:alice", "RenewDelegationToken", "", "DELEGATION_TOKEN_NOT_FOUND"),
    ]
    assert {line["resource_type"] for line in events} == {"DELEGATION_TOKEN"}
    assert password_of(made) not in str(logs)


async def test_acls_limit_tokens_for_others_and_descriptions(tmp_path: Path) -> None:
    async with token_node(tmp_path, authorizer_enabled=True, authorizer_super_users="User:admin") as node:
        assert node.serving.acls is not None
        of_alice = await create(node, "alice", renewers=renewers("carol"))
        for_alice: Any = {"owner_principal_type": "User", "owner_principal_name": "alice"}
        refused = await create(node, "bob", **for_alice)
        assert (refused.error_code, refused.principal_name) == (65, "alice")
        assert (refused.token_requester_principal_name, refused.expiry_timestamp_ms) == ("bob", -1)
        assert await ids_seen_by(node, "bob") == set()
        assert await ids_seen_by(node, "carol") == {of_alice.token_id}

        def acl(resource_type: AclResourceType, name: str, operation: AclOperation) -> Acl:
            return Acl(resource_type, name, PatternType.LITERAL, "User:bob", "*", operation, Permission.ALLOW)

        seeing_one = acl(AclResourceType.DELEGATION_TOKEN, of_alice.token_id, AclOperation.DESCRIBE)
        await node.serving.acls.alter(added=[seeing_one])
        assert await ids_seen_by(node, "bob") == {of_alice.token_id}
        await node.serving.acls.alter(removed=[seeing_one])
        await node.serving.acls.alter(added=[acl(AclResourceType.USER, "User:alice", AclOperation.DESCRIBE_TOKENS)])
        assert await ids_seen_by(node, "bob") == {of_alice.token_id}
        await node.serving.acls.alter(added=[acl(AclResourceType.USER, "User:alice", AclOperation.CREATE_TOKENS)])
        made = await create(node, "bob", **for_alice)
        assert (made.error_code, made.principal_name) == (0, "alice")
        async with client_of(node) as stranger:
            request = CreateDelegationTokenRequest(max_lifetime_ms=-1, **for_alice)
            assert (await stranger.call(request, 3)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def test_other_nodes_follow(tmp_path: Path) -> None:
    shared = {"catalog_url": f"sqlite:///{tmp_path / 'catalog.db'}", "objects_path": tmp_path / "objects"}
    async with token_node(tmp_path / "1", **shared) as one, token_node(tmp_path / "2", node_id=2, **shared) as two:
        made = await create(one, "alice")
        assert one.serving.delegation_tokens is not None
        assert two.serving.delegation_tokens is not None
        tokens = two.serving.delegation_tokens
        await until(lambda: tokens.find(made.token_id) is not None)
        async with sasl_client(two) as client:
            answer = await log_in_with_token(client, made.token_id, password_of(made))
            assert answer.error_code == ErrorCode.NONE
        # A request does not wait for that: it is answered by what all nodes have changed so far.
        created = await asyncio.gather(*(create(one, "alice") for _ in range(3)))
        for each in created:
            expire = ExpireDelegationTokenRequest(hmac=each.hmac, expiry_time_period_ms=-1)
            assert (await call(two, "alice", expire, 2)).error_code == ErrorCode.NONE
        await call(two, "alice", ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
        await until(lambda: one.serving.delegation_tokens is not None and not one.serving.delegation_tokens.tokens)
        await assert_refused(one, made.token_id, password_of(made))


async def test_tokens_outlive_a_restart(tmp_path: Path) -> None:
    async with token_node(tmp_path) as node:
        made = await create(node, "alice")
    async with token_node(tmp_path) as node, sasl_client(node) as client:
        assert (await log_in_with_token(client, made.token_id, password_of(made))).error_code == ErrorCode.NONE
    async with token_node(tmp_path, delegation_token_secret_key=KEY + "2") as node:
        await assert_refused(node, made.token_id, password_of(made))
