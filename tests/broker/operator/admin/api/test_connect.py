"""Kafka Connect through the admin port: what Connect answers is shown, and only the clusters of the settings are asked.

The server here answers as a test tells it; `tests.interop.test_streams_and_connect` asks a real one.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.settings.area import Secret
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.operator.admin.api import connect
from tests.support.admin_api import OPERATE, READ, TOKENS, ApiClient, api_client
from tests.support.node import running_node, settings_for

FAILED: Final = {"state": "FAILED", "worker_id": "w:1", "trace": "org.Error: no such file\n\tat A"}
STATUS: Final[dict[str, Any]] = {
    "files": {
        "status": {
            "name": "files",
            "type": "source",
            "connector": {"state": "RUNNING", "worker_id": "w:1"},
            "tasks": [{"id": 0, "state": "RUNNING", "worker_id": "w:1"}, {"id": 1, **FAILED}],
        }
    }
}


class Connect:
    """A server that notes the requests, and answers with what it is told."""

    def __init__(self) -> None:
        self.server = TestServer(web.Application(), host="127.0.0.1")
        self.server.app.router.add_route("*", "/{path:.*}", self.answer)
        self.asked: list[tuple[str, str, str]] = []
        """Method, target and credentials of each request."""
        self.status, self.body = 200, json.dumps(STATUS)

    @property
    def name(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server.port}"

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.raw_path, request.headers.get("Authorization", "")))
        if request.content_type != "application/json":
            return web.Response(status=415)  # as Connect does
        headers = {"Location": "http://127.0.0.1:1/"} if self.status == 302 else {}
        return web.Response(status=self.status, text=self.body, headers=headers)


@pytest.fixture
async def kafka_connect() -> AsyncIterator[Connect]:
    found = Connect()
    async with found.server:
        yield found


@pytest.fixture
async def node(tmp_path: Path, kafka_connect: Connect) -> AsyncIterator[Node]:
    wanted = {"admin_connect_urls": f"http://{kafka_connect.name}/", "admin_connect_credentials": Secret("u:p")}
    async with running_node(tmp_path, **TOKENS, **wanted) as running:
        yield running


@pytest.fixture
async def api(node: Node) -> AsyncIterator[ApiClient]:
    async with api_client(node, OPERATE) as client:
        yield client


async def test_connectors_are_listed_and_traces_are_for_operators(
    node: Node, api: ApiClient, kafka_connect: Connect
) -> None:
    (cluster,) = (await api.get("/connect"))["clusters"]
    assert (cluster["name"], cluster["error"]) == (kafka_connect.name, None)
    (connector,) = cluster["connectors"]
    assert (connector["name"], connector["type"], connector["state"]) == ("files", "source", "RUNNING")
    assert [(each["id"], each["state"], each["trace"]) for each in connector["tasks"]] == [
        (0, "RUNNING", None),
        (1, "FAILED", FAILED["trace"]),
    ]
    assert kafka_connect.asked == [("GET", "/connectors?expand=status", "Basic dTpw")]
    assert (await api.get("/session"))["has_connect"]
    async with api_client(node, READ) as reader:
        (cluster,) = (await reader.get("/connect"))["clusters"]
        assert [each["trace"] for each in cluster["connectors"][0]["tasks"]] == [None, None]
        name = cluster["name"]
        assert (await reader.failure("POST", f"/connect/{name}/connectors/files/pause"))[0] == 403


async def test_a_change_is_passed_on(api: ApiClient, kafka_connect: Connect) -> None:
    kafka_connect.status, kafka_connect.body = 202, ""
    path = f"/connect/{kafka_connect.name}/connectors/a%2Fb%20%C3%BC"
    for action in ("pause", "resume", "restart", "tasks/1/restart"):
        await api.ask("POST", f"{path}/{action}")
    base = "/connectors/a%2Fb%20%C3%BC"
    assert [(method, target) for method, target, _ in kafka_connect.asked] == [
        ("PUT", f"{base}/pause"),
        ("PUT", f"{base}/resume"),
        ("POST", f"{base}/restart?includeTasks=true"),
        ("POST", f"{base}/tasks/1/restart"),
    ]


async def test_nothing_else_is_asked(node: Node, api: ApiClient, kafka_connect: Connect) -> None:
    own = kafka_connect.name
    refused = (
        ("127.0.0.1:1", "files/pause", (404, "admin.connect_urls has no cluster 127.0.0.1:1")),
        (own, "files/tasks/1%2F../restart", (400, "expected the id of a task, found '1/..'")),
    )
    for cluster, rest, reason in refused:
        assert await api.failure("POST", f"/connect/{cluster}/connectors/{rest}") == reason
    path = f"http://{node.ports.admin_address}/api/v1/connect/{own}/connectors/%2E%2E/pause"
    async with api.session.post(URL(path, encoded=True)) as answer:
        assert (answer.status, await answer.json()) == (404, {"error": "connector .. does not exist"})
    assert kafka_connect.asked == []


REASONS: Final = (
    (409, '{"error_code": 409, "message": "rebalance"}', 409, "it answers 409: rebalance"),
    (404, '{"message": "no connector"}', 404, "it answers 404: no connector"),
    (500, "<html>", 503, "it answers 500: no reason is given"),
    (302, "", 503, "it answers 302: no reason is given"),
)


@pytest.mark.parametrize(("status", "body", "passed", "reason"), REASONS)
async def test_a_refusal_of_connect_is_one_line(
    api: ApiClient, kafka_connect: Connect, status: int, body: str, passed: int, reason: str
) -> None:
    kafka_connect.status, kafka_connect.body = status, body
    own = kafka_connect.name
    path = f"/connect/{own}/connectors/files/pause"
    assert await api.failure("POST", path) == (passed, f"Connect cluster {own}: {reason}")
    assert (await api.get("/connect"))["clusters"] == [{"name": own, "error": reason, "connectors": []}]


async def test_a_cluster_that_is_none_is_told(
    api: ApiClient, kafka_connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def error() -> str:
        (cluster,) = (await api.get("/connect"))["clusters"]
        assert cluster["connectors"] == []
        return str(cluster["error"])

    for body in ("[]", "x", '{"a": {"status": {}}}'):
        kafka_connect.body = body
        assert await error() == "its answer is not that of a Connect cluster"
    monkeypatch.setattr(connect, "ANSWER_BYTES_MAX", 10)
    kafka_connect.body = " " * 11
    assert await error() == "its answer is larger than 10 bytes"
    monkeypatch.setattr(connect, "TIMEOUT_S", 0.000_001)
    assert await error() == "no answer within 1e-06 s"
    monkeypatch.setattr(connect, "TIMEOUT_S", 5)
    await kafka_connect.server.close()
    assert "Cannot connect" in await error()


@pytest.mark.parametrize(
    "urls",
    ["connect:8083", "ftp://c:1", "http://", "http://u:p@c:1", "http://c:1?a=b", "http://c:x", "http://c:1,http://c:1"],
)
def test_what_is_no_url_is_refused(tmp_path: Path, urls: str) -> None:
    with pytest.raises(SettingsError, match=r"admin\.connect_urls: expected URLs such as http://host:port"):
        settings_for(tmp_path, admin_connect_urls=urls)
