"""Access to the admin port: tokens, client certificates, browsers, TLS, and the commands that use it."""

import asyncio
import json
import shutil
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net import tls as tls_module
from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.node.settings.area import Secret
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.admin.access import AdminAccess, Refusal
from anabranch.broker.operator.admin.tokens import AccessError
from anabranch.broker.operator.cli.node import node as node_command
from tests.support.admin_api import TOKENS, api_client
from tests.support.certificates import Authority
from tests.support.node import running_node
from tests.support.waiting import until

READ, OPERATE = "r" * 20, "o" * 20
BEARER = {"read": f"Bearer {READ}", "operate": f"bearer {OPERATE}", "wrong": f"Bearer {READ}x", "other": "Basic eDp5"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Authority(folder)


def outcome(access: AdminAccess, method: str = "GET", principal: str = "", **headers: str) -> int:
    """The status of a request."""
    try:
        access.check(method, {name.replace("_", "-"): value for name, value in headers.items()}, principal)
    except Refusal as refusal:
        return refusal.status
    return HTTPStatus.OK


def tokens(**more: Any) -> AdminAccess:
    return AdminAccess(AdminSettings(read_token=Secret(READ), operate_token=Secret(OPERATE), **more), is_local=False)


@pytest.mark.parametrize(
    ("token", "get", "post"), [("read", 200, 403), ("operate", 200, 200), ("wrong", 401, 401), ("other", 401, 401)]
)
def test_tokens_read_or_operate(token: str, get: int, post: int) -> None:
    access = tokens()
    assert outcome(access, authorization=BEARER[token]) == get
    assert outcome(access, "POST", authorization=BEARER[token]) == post
    assert outcome(access) == 401


def test_a_node_without_authentication_is_open_to_addresses_of_its_machine() -> None:
    access = AdminAccess(AdminSettings(), is_local=True)
    for host in ("127.0.0.1:9644", "localhost", "LOCALHOST.:1", "[::1]:9644"):
        assert outcome(access, "POST", host=host) == 200
    assert outcome(access, "POST") == 200
    for host in ("evil.example:9644", "localhost.evil.example", "", "[evil]:1"):
        assert outcome(access, host=host) == 403


def test_a_port_without_authentication_is_asked_by_its_own_names() -> None:
    access = AdminAccess(AdminSettings(allowed_hosts="a.example, B.example."), is_local=False, names=["node-1", ""])
    for host in ("node-1:9644", "Node-1.", "a.example", "b.example:1", "192.0.2.1", "[::1]:9644", "localhost"):
        assert outcome(access, host=host) == 200, host
    for host in (
        "evil.example:9644",
        "node-1.evil.example",
        "",
        ",",
        ".",
        "\udcff",
        "a.example@evil.example",
        "[node-1",
    ):
        assert outcome(access, host=host) == outcome(access, "POST", host=host) == 403, host
    assert outcome(tokens(), host="evil.example", authorization=BEARER["read"]) == 200, "its pages have no token"


async def test_the_names_of_a_node_are_those_that_it_announces(tmp_path: Path) -> None:
    settings = {"advertised_host": "kafka.example", "admin_host": "0.0.0.0", "admin_allowed_hosts": "proxy.example"}
    async with running_node(tmp_path, **settings) as node:
        url = f"http://127.0.0.1:{node.ports.admin_address.rpartition(':')[2]}/api/v1/topics"
        async with aiohttp.ClientSession() as session:
            for host, status in (("kafka.example", 200), ("proxy.example:80", 200), ("evil.example", 403)):
                async with session.get(url, headers={"Host": host}) as response:
                    assert response.status == status


@pytest.mark.parametrize("access", [tokens(), AdminAccess(AdminSettings(), is_local=True)])
@pytest.mark.parametrize(
    "header",
    [
        {"origin": "http://127.0.0.1:9644"},
        {"origin": "null"},
        {"origin": ""},
        {"sec_fetch_site": "none"},
        {"sec_fetch_site": "same-origin"},
        {"origin": "http://127.0.0.1:1", "host": "127.0.0.1:9644"},
        {"origin": "http://127.0.0.1:9644.evil.example", "host": "127.0.0.1:9644"},
        {"origin": "http://127.0.0.1:9644", "host": "127.0.0.1:9644", "sec_fetch_site": "same-site"},
    ],
)
def test_pages_of_strangers_change_nothing(access: AdminAccess, header: dict[str, str]) -> None:
    assert outcome(access, "POST", authorization=BEARER["operate"], **header) == 403
    assert outcome(access, "GET", authorization=BEARER["operate"], **header) == 200


def test_the_page_of_the_port_itself_may_change_something() -> None:
    own = {"origin": "http://Node-1:9644", "host": "node-1:9644", "sec_fetch_site": "same-origin"}
    by_address = {"origin": "http://127.0.0.1:9644", "host": "127.0.0.1:9644"}
    assert outcome(tokens(), "POST", authorization=BEARER["operate"], **own) == 200
    assert outcome(AdminAccess(AdminSettings(), is_local=True), "POST", **by_address) == 200
    assert outcome(AdminAccess(AdminSettings(), is_local=False), "POST", **own) == 403, "the name may be a stranger's"
    assert outcome(AdminAccess(AdminSettings(), is_local=False, names=["node-1"]), "POST", **own) == 200


def test_certificates_read_and_those_of_operators_operate(tmp_path: Path) -> None:
    settings = AdminSettings(
        ssl_certificate_file=tmp_path, ssl_ca_file=tmp_path, ssl_client_auth="requested", ssl_operators="CN=a,O=x; CN=b"
    )
    access = AdminAccess(settings, is_local=False)
    assert [outcome(access, "POST", name) for name in ("User:CN=a,O=x", "User:CN=b", "User:CN=c", "")] == [
        200,
        200,
        403,
        401,
    ]
    assert outcome(access, "GET", "User:CN=c") == 200
    assert [access.needs_token(name) for name in ("User:CN=c", "")] == [False, True]


def test_tokens_in_files_can_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"\n{OPERATE}\n{'p' * 20}\n")
    access = AdminAccess(AdminSettings(operate_token_file=file), is_local=False)
    assert outcome(access, "POST", authorization=f"Bearer {'p' * 20}") == 200
    assert outcome(access, "POST", authorization=BEARER["operate"]) == 200
    file.write_text("q" * 20)
    assert outcome(access, authorization=BEARER["operate"]) == 401
    assert outcome(access, authorization=f"Bearer {'q' * 20}") == 200
    file.unlink()
    with capture_logs() as logs:
        assert outcome(access, authorization=f"Bearer {'q' * 20}") == 401
    assert "No such file" in logs[0]["reason"]


@pytest.mark.parametrize("content", [None, b"", b"\n", b"short", b"\xff" * 30])
def test_files_without_good_tokens_are_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AccessError, match=r"setting admin\.read_token"):
        AdminAccess(AdminSettings(read_token_file=file), is_local=True)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("read_token_file", {"read_token": READ, "read_token_file": "f"}),
        ("ssl_certificate_file", {"ssl_client_auth": "required", "ssl_operators": "CN=a"}),
        ("ssl_ca_file", {"ssl_client_auth": "required", "ssl_operators": "CN=a", "ssl_certificate_file": "f"}),
        ("ssl_operators", {"ssl_client_auth": "required", "ssl_certificate_file": "f", "ssl_ca_file": "f"}),
        ("ssl_operators", {"ssl_operators": "CN=a"}),
        ("ssl_key_file", {"ssl_key_file": "f"}),
    ],
)
def test_settings_that_contradict_each_other_are_refused(setting: str, values: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=rf"^setting admin\.{setting}: "):
        load({f"admin.{name}": value for name, value in values.items()}, {})


async def ask(node: Node, request: str, context: ssl.SSLContext | None = None) -> str:
    """The head and body of the answer to a request; empty if the connection is closed."""
    host, port = node.ports.admin_address.rsplit(":", 1)
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(request.replace("\n", "\r\n").encode() + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return (await reader.read()).decode()
    except (OSError, asyncio.IncompleteReadError):
        return ""
    finally:
        if writer is not None:
            writer.transport.abort()


async def test_a_node_asks_for_tokens_and_tells_whether_it_is_healthy(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(OPERATE)
    async with running_node(tmp_path, admin_operate_token_file=file, admin_read_token=READ) as node:
        refused = await ask(node, "GET /api/v1/status HTTP/1.1")
        assert refused.startswith("HTTP/1.1 401 Unauthorized\r\n")
        assert "\r\nWWW-Authenticate: Bearer\r\n" in refused
        healthy = await ask(node, f"GET /health HTTP/1.1\nAuthorization: Bearer {READ}")
        assert healthy.startswith("HTTP/1.1 200 OK\r\n")
        assert "Access-Control" not in healthy
        assert "\r\nX-Content-Type-Options: nosniff\r\n" in healthy
        assert healthy.endswith("\r\n\r\nok\n")
        assert "403" in (await ask(node, f"POST /api/v1/compaction HTTP/1.1\nAuthorization: Bearer {READ}"))[:20]
        assert "200" in (await ask(node, f"POST /api/v1/compaction HTTP/1.1\nAuthorization: Bearer {OPERATE}"))[:20]
        assert "405" in (await ask(node, f"OPTIONS /api/v1/compaction HTTP/1.1\nAuthorization: Bearer {OPERATE}"))[:20]
        node.stopping = True
        assert "503" in (await ask(node, f"GET /health HTTP/1.1\nAuthorization: Bearer {READ}"))[:20]


async def audited(node: Node, request: str) -> list[dict[str, Any]]:
    """The audit events of a request, without what is the same in all."""
    with capture_logs() as logs:
        await ask(node, request)
    common = {"log_level": "info", "host": "127.0.0.1", "listener": "admin"}
    found = [each for each in logs if each["event"] in {"changed", "change refused", "denied", "authentication failed"}]
    assert all(common.items() <= each.items() for each in found)
    return [{name: value for name, value in each.items() if name not in common} for each in found]


async def test_operations_and_refusals_are_audited(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_operate_token=OPERATE, admin_read_token=READ) as node:
        operate, read = f"Authorization: Bearer {OPERATE}", f"Authorization: Bearer {READ}"
        compact = {"principal": "Token:operate", "action": "POST /api/v1/compaction"}
        assert await audited(node, f"POST /api/v1/compaction HTTP/1.1\n{operate}") == [
            {"event": "changed", "outcome": "OK", **compact}
        ]
        giving_up = {"principal": "Token:operate", "action": "POST /api/v1/nodes/x/give-up", "resource": "epoch=3"}
        assert await audited(node, f"POST /api/v1/nodes/x/give-up?epoch=3 HTTP/1.1\n{operate}") == [
            {"event": "change refused", "outcome": "BAD_REQUEST", **giving_up}
        ]
        assert await audited(node, f"POST /api/v1/compaction HTTP/1.1\n{read}") == [
            {
                "event": "denied",
                **compact,
                "principal": "Token:read",
                "reason": "this token or certificate may only read",
            }
        ]
        failed = {"event": "authentication failed", "principal": "User:ANONYMOUS", "action": "GET /api/v1/status"}
        reason = "a valid bearer token or client certificate is needed"
        assert await audited(node, f"GET /api/v1/status HTTP/1.1\nAuthorization: Bearer {'x' * 20}") == [
            {**failed, "reason": reason}
        ]
        assert await audited(node, f"GET /api/v1/status HTTP/1.1\n{read}") == [], "reading is no change"
        (odd,) = await audited(node, f"POST /%1b[31m?%00 HTTP/1.1\n{operate}")
        assert (odd["action"], odd["resource"], odd["outcome"]) == ("POST /%1b%5B31m", "%00", "NOT_FOUND")
        assert await audited(node, f"POST /\x1b[31m?\x00 HTTP/1.1\n{operate}") == [], "that is no HTTP request"
        with capture_logs() as logs:
            for _ in range(150):
                await ask(node, "POST /api/v1/compaction HTTP/1.1")
        assert len([each for each in logs if each["event"] == "authentication failed"]) < 150, "the rate is bounded"
    async with running_node(tmp_path / "open") as node:
        (event,) = await audited(node, "POST /api/v1/compaction HTTP/1.1")
        assert event["principal"] == "User:ANONYMOUS"


async def test_readers_may_change_nothing_and_all_else_is_a_get(tmp_path: Path) -> None:
    async with running_node(tmp_path, **TOKENS) as node, api_client(node, READ) as reader:
        paths = (await reader.get("/openapi.json"))["paths"]
        operations = [(method.upper(), path) for path, each in paths.items() for method in each]
        changing = [each for each in operations if each[0] != "GET" and not each[1].startswith("/iceberg/")]
        for method, path in changing:
            wanted = (403, "this token or certificate may only read")
            assert await reader.failure(method, path.removeprefix("/api/v1")) == wanted, (method, path)
    assert {
        ("POST", "/api/v1/compaction"),
        ("POST", "/api/v1/topics/{topic}/detach"),
        ("POST", "/api/v1/nodes/{node}/give-up"),
        ("DELETE", "/api/v1/nodes/{node}"),
        ("POST", "/api/v1/nodes/{node}/drain"),
        ("POST", "/api/v1/storage/stopped/{stream}/discard"),
    } <= set(changing)


def tls_settings(authority: Authority, **wanted: Any) -> dict[str, Any]:
    issued = authority.issue("node")
    return {"admin_ssl_certificate_file": issued.certificate, "admin_ssl_key_file": issued.key, **wanted}


async def test_certificates_of_clients_and_a_changed_certificate(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "CHECK_S", 0.01)
    settings = tls_settings(
        authority,
        admin_ssl_ca_file=authority.file,
        admin_ssl_client_auth="requested",
        admin_ssl_operators="CN=ops",
        admin_read_token=READ,
    )
    reader, operator = (authority.client_context(authority.issue(name)) for name in ("reader", "ops"))
    nobody = authority.client_context()
    async with running_node(tmp_path, **settings) as node:
        get, post = "GET /health HTTP/1.1", "POST /api/v1/compaction HTTP/1.1"
        assert [(await ask(node, request, operator))[9:12] for request in (get, post)] == ["200", "200"]
        assert [(await ask(node, request, reader))[9:12] for request in (get, post)] == ["200", "403"]
        assert [(await ask(node, request, nobody))[9:12] for request in (get, post)] == ["401", "401"]
        assert (await ask(node, f"{get}\nAuthorization: Bearer {READ}", nobody))[9:12] == "200"
        assert await ask(node, get) == "", "it does not speak without TLS"
        assert node.ports.console_url == f"https://{node.ports.admin_address}/console/"
        renewed = authority.issue("renewed")
        shutil.copy(renewed.key, settings["admin_ssl_key_file"])
        shutil.copy(renewed.certificate, settings["admin_ssl_certificate_file"])

        async def name() -> str:
            host, port = node.ports.admin_address.rsplit(":", 1)
            _, writer = await asyncio.open_connection(host, int(port), ssl=operator)
            shown = writer.get_extra_info("peercert")["subject"][0][0][1]
            writer.transport.abort()
            return str(shown)

        for _ in range(10_000):
            if await name() == "renewed":
                break
        else:
            pytest.fail("the changed certificate is not in use")


async def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path, authority: Authority) -> None:
    settings = tls_settings(authority, admin_ssl_key_file=authority.issue("other").key)
    with pytest.raises(Exception, match=r"setting admin\.ssl_key_file: .* does not belong to the first certificate"):
        async with running_node(tmp_path, **settings):
            pass


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({}, "authentication"), ({"admin_read_token": READ}, "encryption"), ({"admin_host": "127.0.0.1"}, "")],
)
async def test_an_open_port_on_a_public_address_warns(tmp_path: Path, wanted: dict[str, str], said: str) -> None:
    with capture_logs() as logs:
        async with running_node(tmp_path, **{"admin_host": "0.0.0.0", **wanted}):
            pass
    warnings = [line["event"] for line in logs if "admin port is not on loopback" in line["event"]]
    assert [said in warning for warning in warnings] == ([True] if said else [])


async def run(node: Node, *arguments: str, **environment: str) -> Result:
    """Run `anabranch node list` against the admin port."""
    where = [*arguments] if "--admin" in arguments else ["--admin", node.ports.admin_address, *arguments]
    return await asyncio.to_thread(
        CliRunner().invoke, node_command, ["list", "--output", "json", *where], env=environment
    )


async def test_commands_show_tokens_from_files_and_the_environment(tmp_path: Path, authority: Authority) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OPERATE}\n")
    ca = ["--admin-ca-file", str(authority.file)]
    settings = tls_settings(authority, admin_operate_token_file=file)
    async with running_node(tmp_path, **settings) as node:
        listed = await run(node, *ca, "--admin-token-file", str(file))
        assert listed.exit_code == 0, listed.output
        assert json.loads(listed.output)[0]["id"] == 1
        assert (await run(node, *ca, ANABRANCH_ADMIN_OPERATE_TOKEN=OPERATE)).exit_code == 0
        https = await run(node, "--admin", f"https://{node.ports.admin_address}", ANABRANCH_ADMIN_OPERATE_TOKEN=OPERATE)
        assert "certificate" in https.output, "the system does not trust the authority"
        without = await run(node, *ca)
        assert without.exit_code == 1
        assert "401 a valid bearer token or client certificate is needed" in without.output
        missing = await run(node, *ca, "--admin-token-file", str(tmp_path / "missing"))
        assert "No such file" in missing.output
        assert OPERATE not in listed.output + without.output + missing.output
    await until(lambda: node.stopping)
