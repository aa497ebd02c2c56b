"""The JSON API lists and changes users, ACLs, delegation tokens and quotas, and shows audit events to operators."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.sasl.credentials import SCRAM
from anabranch.broker.node.settings.area import Secret
from anabranch.protocol.errors import ErrorCode
from anabranch.s3stream.errors import CatalogUnavailable
from tests.broker.kafka.sasl.clients import LISTENERS, PASSWORD, log_in
from tests.support.admin_api import OPERATE, READ, TOKENS, ApiClient, api_client
from tests.support.node import running_node
from tests.support.raw_client import raw_client

NEW = "another-secret-of-alice"
BOTH = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SETTINGS: Final = {
    **TOKENS,
    "listeners": LISTENERS,
    "sasl_failed_authentication_delay_ms": 0,
    "authorizer_enabled": True,
    "authorizer_super_users": "User:root;User:admin",
    "delegation_token_secret_key": Secret("k" * 40),
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """A node with an authorizer, delegation tokens, and an admin port that needs a token."""
    async with running_node(tmp_path_factory.mktemp("secure"), **SETTINGS) as running:
        yield running
        assert running.serving.request_failures == 0


@pytest_asyncio.fixture(loop_scope="module")
async def api(node: Node) -> AsyncIterator[ApiClient]:
    async with api_client(node, OPERATE) as client:
        yield client


async def can_log_in(node: Node, user: str, password: str, mechanism: str = BOTH[0]) -> bool:
    async with raw_client(f"127.0.0.1:{node.ports.clients.ports['SASL_PLAINTEXT']}") as client:
        return bool((await log_in(client, user, password, mechanism)).error_code == ErrorCode.NONE)


async def users(api: ApiClient) -> dict[str, Any]:
    """Iterations by mechanism, by user."""
    listed = await api.get("/users")
    return {
        row["name"]: {each["mechanism"]: each["iterations"] for each in row["credentials"]} for row in listed["users"]
    }


def acl(text: str) -> dict[str, str]:
    """An ACL in words, in the order of its fields."""
    names = ("principal", "host", "permission", "operation", "resource_type", "resource", "pattern")
    return dict(zip(names, text.split(), strict=True))


def lines(found: Any) -> list[str]:
    return [" ".join(each.values()) for each in found["acls"]]


# users


async def test_a_user_is_planned_created_changed_and_deleted(api: ApiClient, node: Node) -> None:
    wanted = {"name": "alice", "password": PASSWORD}
    shown = {"name": "alice", "credentials": [{"mechanism": each, "iterations": 4096} for each in BOTH]}
    with capture_logs() as logs:
        assert await api.ask("POST", "/users", {**wanted, "validate_only": True}) == shown
        assert await users(api) == {}
        assert await api.ask("POST", "/users", wanted) == shown
    assert PASSWORD not in json.dumps(logs) + repr(node.serving.audit.newest())
    assert [each["outcome"] for each in logs if each.get("api") == "AlterUserScramCredentials"] == ["OK", "OK"]
    assert await can_log_in(node, "alice", PASSWORD, BOTH[0])
    assert await can_log_in(node, "alice", PASSWORD, BOTH[1])
    exists = (409, "user alice exists: its password can be changed")
    assert await api.failure("POST", "/users", {**wanted, "validate_only": True}) == exists
    assert await api.failure("POST", "/users", wanted) == exists

    stronger = {"password": NEW, "mechanisms": [BOTH[0]], "iterations": 8192}
    await api.ask("PATCH", "/users/alice", {**stronger, "validate_only": True})
    assert await can_log_in(node, "alice", PASSWORD)
    await api.ask("PATCH", "/users/alice", stronger)
    assert not await can_log_in(node, "alice", PASSWORD)
    assert await can_log_in(node, "alice", NEW)
    assert await can_log_in(node, "alice", PASSWORD, BOTH[1]), "each mechanism has a password of its own"
    await api.ask("PATCH", "/users/alice", {"password": PASSWORD})
    assert await users(api) == {"alice": {BOTH[0]: 8192, BOTH[1]: 4096}}, "a new password does not weaken the hash"
    assert await can_log_in(node, "alice", PASSWORD)

    await api.ask(
        "POST", "/acls", {"principal": "alice", "resources": [{"type": "topic", "name": "t"}], "operations": ["read"]}
    )
    assert node.serving.delegation_tokens is not None
    await node.serving.delegation_tokens.create("User:alice", "User:alice", [], -1)
    await node.serving.delegation_tokens.create("User:bob", "User:alice", [], -1)
    plan = {"mechanisms": [*BOTH], "tokens": 1, "acls": 1}
    assert await api.ask("DELETE", "/users/alice", validate_only="true") == plan
    assert list(await users(api)) == ["alice"]
    assert await api.ask("DELETE", "/users/alice") == plan
    assert await users(api) == {}
    assert not await can_log_in(node, "alice", PASSWORD)
    assert [each.owner for each in node.serving.delegation_tokens.tokens] == ["User:bob"]
    gone = (404, "user alice does not exist")
    assert await api.failure("DELETE", "/users/alice") == gone
    assert await api.failure("PATCH", "/users/alice", {"password": NEW}) == gone
    (stayed,) = (await api.get("/acls", principal="alice"))["acls"]
    await api.ask("POST", "/acls/delete", {"acls": [stayed]})


WRONG_USERS: Final[list[Any]] = [
    ({"name": "älice", "password": "p"}, "name: the name of a SCRAM user must consist of ASCII characters"),
    ({"name": "", "password": "p"}, "name: the name of a SCRAM user must consist of ASCII characters"),
    ({"name": "a", "password": ""}, "password: the password is empty"),
    ({"name": "a"}, "password: Field required"),
    ({"name": "a", "password": "p", "mechanisms": ["PLAIN"]}, "mechanisms.0: Input should be 'SCRAM-SHA-256'"),
    ({"name": "a", "password": "p", "mechanisms": []}, "mechanisms: List should have at least 1 item"),
    ({"name": "a", "password": "p", "iterations": 4095}, "iterations: Input should be greater than or equal to 4096"),
]


async def test_a_wrong_user_is_refused_in_one_line(api: ApiClient) -> None:
    for body, reason in WRONG_USERS:
        found, text = await api.failure("POST", "/users", body)
        assert (found, text.startswith(reason)) == (400, True), text
    assert await users(api) == {}


async def test_a_damaged_credential_is_shown_and_mended(api: ApiClient, node: Node) -> None:
    await node.serving.cluster_configs.alter(SCRAM, "hurt", set_configs={BOTH[1]: "salt=?"}, unset=[])
    assert await users(api) == {"hurt": {BOTH[1]: None}}
    await api.ask("PATCH", "/users/hurt", {"password": PASSWORD})
    assert await users(api) == {"hurt": {BOTH[1]: 4096}}
    assert await can_log_in(node, "hurt", PASSWORD, BOTH[1])
    await api.ask("DELETE", "/users/hurt")


async def test_a_catalog_that_is_away_is_named(api: ApiClient, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise CatalogUnavailable("the database does not answer")

    monkeypatch.setattr(node.serving.cluster_configs, "alter", refuse)
    away = (503, "the database does not answer")
    assert await api.failure("POST", "/users", {"name": "bob", "password": PASSWORD}) == away
    body = {"entity": [{"type": "user", "name": "bob"}], "quotas": {"producer_byte_rate": 1000}}
    assert await api.failure("PATCH", "/quotas", body) == away


# ACLs


async def test_acls_are_planned_created_selected_and_deleted(api: ApiClient) -> None:
    listed = await api.get("/acls")
    assert (listed["authorizer"], listed["super_users"], listed["acls"]) == (True, ["User:root", "User:admin"], [])
    assert listed["operations"]["delegation_token"] == ["describe", "all"]
    consumer = {
        "principal": "etl",
        "role": "consumer",
        "resources": [{"type": "topic", "name": "shop-", "pattern": "prefixed"}, {"type": "group", "name": "g"}],
    }
    made = [
        "User:etl * allow read topic shop- prefixed",
        "User:etl * allow describe topic shop- prefixed",
        "User:etl * allow read group g literal",
    ]
    assert lines(await api.ask("POST", "/acls", {**consumer, "validate_only": True})) == made
    assert (await api.get("/acls"))["acls"] == []
    assert lines(await api.ask("POST", "/acls", consumer)) == made
    assert lines(await api.ask("POST", "/acls", consumer)) == [], "they exist"
    denial = {
        "principal": "User:bob",
        "permission": "deny",
        "host": "10.0.0.1",
        "operations": ["alter_configs", "describe"],
        "resources": [{"type": "cluster", "name": "kafka-cluster"}],
    }
    assert len(lines(await api.ask("POST", "/acls", denial))) == 2
    assert lines(await api.get("/acls", principal="etl", resource_type="topic")) == made[:2]
    assert lines(await api.get("/acls", resource="shop-orders")) == []
    assert lines(await api.get("/acls", resource="shop-orders", pattern="match")) == made[:2]
    assert lines(await api.get("/acls", permission="deny", operation="describe", host="10.0.0.1")) == [
        "User:bob 10.0.0.1 deny describe cluster kafka-cluster literal"
    ]
    missing = acl("User:etl * allow write topic shop- prefixed")
    wanted = {"acls": [acl(made[0]), missing, acl(made[0])]}
    assert lines(await api.ask("POST", "/acls/delete", {**wanted, "validate_only": True})) == made[:1]
    assert len((await api.get("/acls"))["acls"]) == 5
    assert lines(await api.ask("POST", "/acls/delete", wanted)) == made[:1]
    rest = (await api.get("/acls"))["acls"]
    assert len(rest) == 4
    assert len(lines(await api.ask("POST", "/acls/delete", {"acls": rest}))) == 4, "as they were listed"
    assert (await api.get("/acls"))["acls"] == []


TOPIC: Final = {"type": "topic", "name": "t"}
WRONG_ACLS: Final[list[Any]] = [
    ("/acls", {"principal": "a", "resources": [TOPIC]}, "the body: either `operations` or a `role` is needed"),
    (
        "/acls",
        {"principal": "a", "resources": [{"type": "group", "name": "g"}], "operations": ["write"]},
        "the body: a group has no operation write: it has read, delete,",
    ),
    (
        "/acls",
        {"principal": "a", "resources": [{"type": "group", "name": "g"}], "role": "producer"},
        "the body: a producer needs no group",
    ),
    ("/acls", {"principal": "", "resources": [TOPIC], "operations": ["all"]}, "principal: String should have at least"),
    (
        "/acls",
        {"principal": "a", "resources": [], "operations": ["all"]},
        "resources: List should have at least 1 item",
    ),
    (
        "/acls",
        {"principal": "a", "resources": [{"type": "cluster", "name": "c"}], "operations": ["all"]},
        "The only valid name for the CLUSTER resource is kafka-cluster",
    ),
    ("/acls/delete", {"acls": []}, "acls: List should have at least 1 item"),
    (
        "/acls/delete",
        {"acls": [{**acl("a * allow read topic t literal"), "pattern": "any"}]},
        "acls.0.pattern: Input should",
    ),
]


async def test_wrong_acls_are_refused_in_one_line(api: ApiClient) -> None:
    for path, body, reason in WRONG_ACLS:
        found, text = await api.failure("POST", path, body)
        assert (found, text.startswith(reason)) == (400, True), text
    assert (await api.failure("GET", "/acls", resource_type="topics"))[0] == 400
    assert (await api.get("/acls"))["acls"] == []


# delegation tokens


async def test_tokens_are_listed_without_secrets_and_revoked(api: ApiClient, node: Node) -> None:
    tokens = node.serving.delegation_tokens
    assert tokens is not None
    await tokens.remove_expired()
    made = await tokens.create("User:carol", "User:admin", ["User:dan"], 60_000)
    listed = await api.get("/delegation-tokens")
    assert listed["enabled"]
    (row,) = [each for each in listed["tokens"] if each["owner"] == "User:carol"]
    assert row == {
        "id": made.token_id,
        "owner": "User:carol",
        "requester": "User:admin",
        "renewers": ["User:dan"],
        "issued_ms": made.issued_ms,
        "expires_ms": made.expires_ms,
        "max_ms": made.max_ms,
    }
    path = f"/delegation-tokens/{made.token_id}"
    assert await api.ask("DELETE", path, validate_only="true") == row
    assert tokens.get(made.token_id) is not None
    assert await api.ask("DELETE", path) == row
    assert tokens.get(made.token_id) is None
    assert await api.failure("DELETE", path) == (404, f"there is no delegation token {made.token_id}")
    (event,) = (await api.get("/audit", operation=f"DELETE /api/v1{path}", outcome="OK"))["events"]
    assert (event["event"], event["principal"]) == ("changed", "Token:operate")


# quotas


async def test_quotas_are_planned_set_and_removed(api: ApiClient) -> None:
    etl = [{"type": "client-id", "name": "loader"}, {"type": "user", "name": "etl"}]
    wanted = {"entity": etl, "quotas": {"producer_byte_rate": 10 << 20, "request_percentage": 12.5}}
    changes = [
        {"quota": "producer_byte_rate", "from": None, "to": 10 << 20},
        {"quota": "request_percentage", "from": None, "to": 12.5},
    ]
    assert await api.ask("PATCH", "/quotas", {**wanted, "validate_only": True}) == {"changes": changes}
    assert (await api.get("/quotas"))["quotas"] == []
    assert await api.ask("PATCH", "/quotas", wanted) == {"changes": changes}
    assert await api.ask("PATCH", "/quotas", wanted) == {"changes": []}
    anybody = [{"type": "user", "name": None}]
    await api.ask("PATCH", "/quotas", {"entity": anybody, "quotas": {"consumer_byte_rate": 1000}})
    assert {json.dumps(row["entity"]): row["quotas"] for row in (await api.get("/quotas"))["quotas"]} == {
        json.dumps(etl): {"producer_byte_rate": 10 << 20, "request_percentage": 12.5},
        json.dumps(anybody): {"consumer_byte_rate": 1000},
    }
    both = {"entity": etl, "quotas": {"producer_byte_rate": 5 << 20, "request_percentage": None}}
    assert await api.ask("PATCH", "/quotas", both) == {
        "changes": [
            {"quota": "producer_byte_rate", "from": 10 << 20, "to": 5 << 20},
            {"quota": "request_percentage", "from": 12.5, "to": None},
        ]
    }
    for entity, name in ((etl, "producer_byte_rate"), (anybody, "consumer_byte_rate")):
        await api.ask("PATCH", "/quotas", {"entity": entity, "quotas": {name: None}})
    assert (await api.get("/quotas"))["quotas"] == []


USER, ADDRESS = {"type": "user", "name": "a"}, {"type": "ip", "name": "10.0.0.1"}
WRONG_QUOTAS: Final[list[Any]] = [
    ([USER], {"producer_byte_rate": 0}, "Quota producer_byte_rate must be greater than 0"),
    ([USER], {"producer_byte_rat": 1}, "Invalid configuration key producer_byte_rat"),
    ([USER], {}, "quotas: Dictionary should have at least 1 item"),
    ([USER, USER], {"producer_byte_rate": 1}, "entity: a type occurs twice"),
    ([], {"producer_byte_rate": 1}, "entity: List should have at least 1 item"),
    ([USER, ADDRESS], {"producer_byte_rate": 1}, "Invalid quota entity combination"),
    ([ADDRESS], {"producer_byte_rate": 1}, "Invalid configuration key producer_byte_rate"),
    ([{"type": "user", "name": ""}], {"producer_byte_rate": 1}, "Empty user not supported"),
]


async def test_wrong_quotas_are_refused_in_one_line(api: ApiClient) -> None:
    for entity, quotas, reason in WRONG_QUOTAS:
        for validate_only in (True, False):
            body = {"entity": entity, "quotas": quotas, "validate_only": validate_only}
            found, text = await api.failure("PATCH", "/quotas", body)
            assert (found, text.startswith(reason)) == (400, True), text
    assert (await api.get("/quotas"))["quotas"] == []


# the audit log


async def test_audit_events_are_filtered_and_newest_first(api: ApiClient, node: Node) -> None:
    await api.ask("POST", "/topics", {"name": "audited"})
    await api.failure("POST", "/topics", {"name": "audited"})
    await can_log_in(node, "mallory", PASSWORD)
    found = await api.get("/audit", resource="topic AUDITED")
    assert found["node_id"] == node.serving.node_id
    assert [(each["event"], each["principal"], each["operation"], each["outcome"]) for each in found["events"]] == [
        ("change refused", "Token:operate", "CreateTopics", "TOPIC_ALREADY_EXISTS"),
        ("changed", "Token:operate", "CreateTopics", "OK"),
    ]
    newest = (await api.get("/audit"))["events"]
    numbers = [each["number"] for each in newest]
    assert numbers == sorted(numbers, reverse=True)
    assert node.serving.now_ms() - newest[0]["at_ms"] < 600_000
    (failed,) = (await api.get("/audit", event="authentication failed", principal="mallory", limit=1))["events"]
    assert (failed["operation"], failed["host"], failed["resource"]) == ("SCRAM-SHA-256", "127.0.0.1", None)
    assert (await api.get("/audit", operation="POST /api/v1/topics", outcome="conflict"))["events"][0][
        "listener"
    ] == "admin"
    cut = await api.get("/audit", limit=1)
    assert (len(cut["events"]), cut["more"]) == (1, True)
    assert await api.get("/audit", outcome="no such outcome") == {**found, "events": [], "more": False}


# who may


CHANGES: Final[list[Any]] = [
    ("POST", "/users", {"name": "eve", "password": PASSWORD}),
    ("PATCH", "/users/eve", {"password": PASSWORD}),
    ("DELETE", "/users/eve", None),
    ("POST", "/acls", {"principal": "eve", "resources": [TOPIC], "operations": ["all"]}),
    ("POST", "/acls/delete", {"acls": [acl("User:eve * allow all topic t literal")]}),
    ("DELETE", "/delegation-tokens/x", None),
    ("PATCH", "/quotas", {"entity": [USER], "quotas": {"producer_byte_rate": 1}}),
]


async def test_readers_read_all_but_the_audit_log_and_change_nothing(node: Node) -> None:
    async with api_client(node, READ) as api:
        for path in ("/users", "/acls", "/delegation-tokens", "/quotas"):
            await api.get(path)
        assert await api.failure("GET", "/audit") == (403, "only operators may see the audit log")
        for method, path, body in CHANGES:
            assert await api.failure(method, path, body) == (403, "this token or certificate may only read")
    async with api_client(node) as api:
        for method, path, body in (*CHANGES, ("GET", "/users", None), ("GET", "/audit", None)):
            assert (await api.failure(method, path, body))[0] == 401
    async with api_client(node, OPERATE) as api:
        (event, *_) = (await api.get("/audit", event="denied", principal="Token:read", operation="audit"))["events"]
        assert event["outcome"] == "only operators may see the audit log"


async def test_a_node_without_authorizer_and_tokens_says_so(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, api_client(node) as api:
        listed = await api.get("/acls")
        assert (listed["authorizer"], listed["super_users"], listed["acls"]) == (False, [], [])
        refused = (409, "there is no authorizer, so ACLs do not count: set authorizer.enabled")
        for method, path, body in CHANGES[3:5]:
            assert await api.failure(method, path, body) == refused
        assert await api.get("/delegation-tokens") == {"enabled": False, "tokens": [], "more": False}
        assert (await api.failure("DELETE", "/delegation-tokens/x"))[0] == 404
        await api.ask("POST", "/users", {"name": "alice", "password": PASSWORD})
        assert await api.ask("DELETE", "/users/alice") == {"mechanisms": [*BOTH], "tokens": 0, "acls": 0}
