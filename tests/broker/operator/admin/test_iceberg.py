"""Iceberg's REST catalog at the admin port of real nodes: answers, errors, rights, pages, other nodes."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.settings.area import Secret
from anabranch.s3stream.catalog.table_values import TableRetention
from tests.support.admin_api import OPERATE, READ, TOKENS
from tests.support.made_table import MadeTable
from tests.support.node import running_node, running_nodes
from tests.support.s3 import S3Bucket, set_credentials

TABLES, ETL = "t" * 20, "e" * 20
TABLE = "/namespaces/default/tables/orders"


class Client:
    """Sends requests to the catalog of one node."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> tuple[int, bytes, Mapping[str, str]]:
        url = f"/iceberg/v1{path}"
        async with self._session.request(method, url, json=body, headers=headers, params=query) as response:
            return response.status, await response.read(), response.headers

    async def ok(self, path: str, **query: Any) -> Any:
        status, answer, headers = await self.send("GET", path, **query)
        assert status == 200, answer
        assert headers["Content-Type"].startswith("application/json")
        return json.loads(answer)

    async def failure(self, path: str, method: str = "GET", body: Any = None, **query: Any) -> tuple[int, str, str]:
        """Code, type and message of the error."""
        status, answer, _ = await self.send(method, path, body, **query)
        error = json.loads(answer)["error"]
        assert status == error["code"]
        assert sorted(error) == ["code", "message", "type"]
        return error["code"], error["type"], error["message"]

    async def names(self, **query: Any) -> list[str]:
        return [each["name"] for each in (await self.ok("/namespaces/default/tables", **query))["identifiers"]]


@asynccontextmanager
async def client_of(node: Node, authorization: str = "") -> AsyncIterator[Client]:
    headers = {"Authorization": authorization} if authorization else {}
    async with aiohttp.ClientSession(f"http://{node.ports.admin_address}", headers=headers) as session:
        yield Client(session)


async def test_config_and_namespaces(tmp_path: Path) -> None:
    async with running_node(tmp_path, cluster="prod") as node, client_of(node) as client:
        config = await client.ok("/config")
        assert (config["defaults"], config["overrides"]) == ({}, {})
        assert config["endpoints"] == [
            "GET /v1/{prefix}/namespaces",
            "GET /v1/{prefix}/namespaces/{namespace}",
            "HEAD /v1/{prefix}/namespaces/{namespace}",
            "GET /v1/{prefix}/namespaces/{namespace}/tables",
            "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
            "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
            "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
            "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
        ]
        assert await client.ok("/config", warehouse="prod") == config
        code, type_, message = await client.failure("/config", warehouse="test")
        assert (code, type_) == (404, "NoSuchWarehouseException")
        assert "name the cluster, prod" in message
        assert (await client.ok("/namespaces"))["namespaces"] == [["default"]]
        assert (await client.ok("/namespaces", parent=""))["namespaces"] == [["default"]]
        assert (await client.ok("/namespaces", parent="default"))["namespaces"] == []
        assert (await client.ok("/namespaces/default"))["namespace"] == ["default"]
        assert (await client.send("HEAD", "/namespaces/default"))[:2] == (204, b"")
        for path, query in [
            ("/namespaces/other", {}),
            ("/namespaces/default%1Finside", {}),
            ("/namespaces", {"parent": "other"}),
            ("/namespaces/other/tables", {}),
        ]:
            code, type_, message = await client.failure(path, **query)
            assert (code, type_) == (404, "NoSuchNamespaceException"), path
            assert message.endswith("there is default")
        assert (await client.send("HEAD", "/namespaces/other"))[0] == 404
        code, type_, message = await client.failure("/namespaces/default%1Forders/tables/snapshots")
        assert (code, type_) == (404, "NoSuchTableException"), "Spark looks here for the snapshots of a table"
        assert message == "namespace default.orders does not exist: there is default"


async def test_a_load_returns_what_is_stored(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        table = await MadeTable.created(node, "orders")
        assert await client.names() == []
        code, type_, message = await client.failure(TABLE)
        assert (code, type_) == (404, "NoSuchTableException")
        assert "has no snapshot yet" in message
        assert (await client.send("HEAD", TABLE))[0] == 404
        await table.commit()
        stored = await table.commit()
        assert await client.names() == ["orders"]
        assert (await client.send("HEAD", TABLE))[:2] == (204, b"")
        status, answer, headers = await client.send("GET", TABLE)
        place = tmp_path / "data" / "objects" / table.metadata[-1].file_key
        assert status == 200
        assert place.read_bytes() == stored
        assert stored in answer
        assert json.loads(answer) == {
            "metadata": json.loads(stored),
            "metadata-location": f"file://{place}",
            "config": {},
            "storage-credentials": [],
        }
        again = await client.send("GET", TABLE, headers={"If-None-Match": headers["ETag"]})
        assert again[:2] == (304, b"")
        refs = await client.ok(TABLE, snapshots="refs")
        assert [each["snapshot-id"] for each in refs["metadata"]["snapshots"]] == [1_002]
        assert refs["metadata"] | {"snapshots": 0} == json.loads(stored) | {"snapshots": 0}
        both = await client.send("GET", TABLE, headers={"If-None-Match": headers["ETag"]}, snapshots="refs")
        assert both[0] == 200
        await table.commit()
        assert (await client.send("GET", TABLE, headers={"If-None-Match": headers["ETag"]}))[0] == 200
        assert (await client.failure(TABLE, snapshots="some"))[:2] == (400, "BadRequestException")
        code, type_, message = await client.failure("/namespaces/default/tables/absent")
        assert (code, type_) == (404, "NoSuchTableException")
        assert "table absent does not exist" in message


async def test_pages(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        names = ["a", "b.c", "d", "e", "f"]
        for name in reversed(names):
            await (await MadeTable.created(node, name)).commit()
        whole = await client.ok("/namespaces/default/tables", pageSize=2)
        assert [each["name"] for each in whole["identifiers"]] == names, "without a token there are no pages"
        assert whole["next-page-token"] is None
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            page = await client.ok("/namespaces/default/tables", pageToken=token, pageSize=2)
            assert 1 <= len(page["identifiers"]) <= 2
            found += [each["name"] for each in page["identifiers"]]
            token = page["next-page-token"]
        assert found == names
        assert await client.names(pageToken="") == names
        for query in ({"pageToken": "x"}, {"pageToken": "", "pageSize": "x"}, {"pageToken": "", "pageSize": 0}):
            assert (await client.failure("/namespaces/default/tables", **query))[:2] == (400, "BadRequestException")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/namespaces"),
        ("DELETE", "/namespaces/default"),
        ("POST", "/namespaces/default/properties"),
        ("POST", "/namespaces/default/tables"),
        ("POST", TABLE),
        ("DELETE", TABLE),
        ("POST", "/namespaces/default/register"),
        ("POST", "/tables/rename"),
        ("POST", "/transactions/commit"),
        ("POST", f"{TABLE}/plan"),
    ],
)
async def test_writes_are_refused(tmp_path: Path, method: str, path: str) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        await (await MadeTable.created(node, "orders")).commit()
        with capture_logs() as logs:
            code, type_, message = await client.failure(path, method, {"name": "x"})
        assert (code, type_) == (406, "UnsupportedOperationException")
        assert message.startswith("tables are written by the nodes, from the records of their topics")
        assert [each for each in logs if each.get("listener") == "admin"] == [], "nothing was changed"
        assert await client.names() == ["orders"]


async def test_what_is_not_there(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        for path in ("/namespaces/default/views", "", "/namespaces/default/tables/a/b"):
            assert (await client.failure(path))[:2] == (406, "UnsupportedOperationException"), path
        assert "set one of the admin port" in (await client.failure("/oauth/tokens", "POST"))[2]


async def test_reports_are_counted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        await (await MadeTable.created(node, "orders")).commit()
        for kind in ("scan-report", "commit-report"):
            sent = await client.send("POST", f"{TABLE}/metrics", {"report-type": kind, "table-name": "x"})
            assert sent[:2] == (204, b"")
        bodies: list[Any] = [{}, [], {"report-type": "other"}]
        for body in bodies:
            assert (await client.failure(f"{TABLE}/metrics", "POST", body))[:2] == (400, "BadRequestException")
        url = f"http://{node.ports.admin_address}/iceberg/v1{TABLE}/metrics"
        async with aiohttp.request("POST", url, data=b"[" * 100_000) as response:
            assert response.status == 400
        await client.names()
        async with aiohttp.request("GET", f"http://{node.ports.admin_address}/metrics") as response:
            lines = (await response.text()).splitlines()
        found = [line for line in lines if line.startswith("anabranch_table_requests_total")]
        assert found == [
            'anabranch_table_requests_total{request="list_tables"} 1.0',
            'anabranch_table_requests_total{request="report_metrics"} 6.0',
        ]


def basic(password: str) -> str:
    return f"Basic {b64encode(f'any:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "records", "listed", "load", "api"),
    [
        ("", "operators", 401, 401, 401),
        (f"Bearer {READ}", "operators", 200, 403, 200),
        (f"Bearer {READ}", "readers", 200, 200, 200),
        (f"Bearer {OPERATE}", "operators", 200, 200, 200),
        (f"Bearer {OPERATE}", "nobody", 200, 403, 200),
        (f"Bearer {TABLES}", "nobody", 200, 200, 401),
        (basic(TABLES), "nobody", 200, 200, 401),
        (f"Bearer {TABLES}x", "readers", 401, 401, 401),
    ],
)
async def test_tokens(tmp_path: Path, authorization: str, records: str, listed: int, load: int, api: int) -> None:
    wanted = {**TOKENS, "admin_tables_token": Secret(TABLES), "admin_records": records}
    async with running_node(tmp_path, **wanted) as node, client_of(node, authorization) as client:
        await (await MadeTable.created(node, "orders")).commit()
        assert (await client.send("GET", "/namespaces/default/tables"))[0] == listed
        assert (await client.send("GET", TABLE))[0] == load
        assert (await client.send("GET", f"{TABLE}/credentials"))[0] == load
        nothing = 204 if load == 200 else load
        assert (await client.send("HEAD", TABLE))[0] == nothing
        assert (await client.send("POST", f"{TABLE}/metrics", {"report-type": "scan-report"}))[0] == nothing
        if load != 200:
            code, type_, _ = await client.failure(TABLE)
            assert type_ == {401: "NotAuthorizedException", 403: "ForbiddenException"}[code]
        url, headers = f"http://{node.ports.admin_address}/api/v1/cluster", {"Authorization": authorization}
        async with aiohttp.request("GET", url, headers=headers) as response:
            assert response.status == api


def allowed(principal: str, operation: AclOperation, name: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    return Acl(AclResourceType.TOPIC, name, pattern, principal, "*", operation, Permission.ALLOW)


async def test_acls_of_a_token_s_user_decide(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TABLES}\nUser:etl {ETL}\n")
    wanted = {**TOKENS, "admin_tables_token_file": tokens, "authorizer_enabled": True}
    async with running_node(tmp_path, **wanted) as node:
        for name in ("orders", "orders-eu", "secret", "seen"):
            await (await MadeTable.created(node, name)).commit()
        acls = node.serving.acls
        assert acls is not None
        async with client_of(node, f"Bearer {TABLES}") as client:
            assert await client.names() == ["orders", "orders-eu", "secret", "seen"], "a token of nobody reads all"
        async with client_of(node, f"Bearer {ETL}") as client:
            assert await client.names() == []
            await acls.alter(
                added=[
                    allowed("User:etl", AclOperation.READ, "orders", PatternType.PREFIXED),
                    allowed("User:etl", AclOperation.DESCRIBE, "seen"),
                    allowed("User:other", AclOperation.READ, "secret"),
                ]
            )
            assert await client.names() == ["orders", "orders-eu", "seen"]
            assert (await client.ok("/namespaces/default/tables/orders-eu"))["metadata"]["format-version"] == 2
            for name in ("seen", "secret", "absent"):
                code, type_, message = await client.failure(f"/namespaces/default/tables/{name}")
                assert (code, type_) == (403, "ForbiddenException"), name
                assert message.endswith(f"User:etl needs READ on the topic {name}")
            await node.serving.topic_commands.delete("orders")
            assert await client.names() == ["orders-eu", "seen"]


async def test_a_table_that_has_outlived_its_topic_is_read_with_the_rights_of_its_name(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"User:etl {ETL}\nUser:bob {TABLES}\n")
    async with running_node(tmp_path, admin_tables_token_file=tokens, authorizer_enabled=True) as node:
        table = await MadeTable.created(node, "orders", retention=TableRetention.KEEP)
        stored = await table.commit()
        assert node.serving.acls is not None
        await node.serving.acls.alter(added=[allowed("User:etl", AclOperation.READ, "orders")])
        await node.serving.topic_commands.delete("orders")
        async with client_of(node, f"Bearer {ETL}") as client:
            assert (await client.ok(TABLE))["metadata"] == json.loads(stored)
        async with client_of(node, f"Bearer {TABLES}") as client:
            assert await client.names() == []


@pytest.mark.server
async def test_how_a_store_is_reached_and_its_credentials(
    tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch)
    wanted: dict[str, Any] = {**bucket.node_settings(), "cluster": "prod"}
    reached = {"client.region": "us-east-1", "s3.region": "us-east-1", "s3.path-style-access": "true"}
    async with running_node(tmp_path, **wanted) as node, client_of(node) as client:
        table = await MadeTable.created(node, "orders")
        await table.commit()
        answer = await client.ok(TABLE)
        assert answer["metadata-location"] == f"s3://{bucket.name}/{table.metadata[0].file_key}"
        assert answer["config"] == reached | {"s3.endpoint": bucket.endpoint}
        assert answer["storage-credentials"] == []
        assert await client.ok(f"{TABLE}/credentials") == {"storage-credentials": []}
    wanted |= {
        "tables_s3_endpoint": "http://s3.example",
        "tables_s3_access_key_id": "engine",
        "tables_s3_secret_access_key": Secret("hidden"),
    }
    async with running_node(tmp_path, **wanted) as node, client_of(node) as client:
        answer = await client.ok(TABLE)
        config = reached | {
            "s3.endpoint": "http://s3.example",
            "s3.access-key-id": "engine",
            "s3.secret-access-key": "hidden",
        }
        assert answer["config"] == config
        assert answer["storage-credentials"] == [{"prefix": f"s3://{bucket.name}/table/", "config": config}]
        assert (await client.ok(f"{TABLE}/credentials"))["storage-credentials"] == answer["storage-credentials"]


async def test_any_node_answers(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, second):
        table = await MadeTable.created(first, "orders")
        stored = await table.commit()
        for node in (first, second):
            async with client_of(node) as client:
                assert await client.names() == ["orders"]
                assert (await client.ok(TABLE))["metadata"] == json.loads(stored)


async def test_a_load_that_meets_an_expiry_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        table = await MadeTable.created(node, "orders")
        await table.commit()
        store = node.stores["local"]
        get = store.get
        newest: list[bytes] = []

        async def expired_meanwhile(key: str, start: int, end: int) -> memoryview:
            if not newest:
                newest.append(await table.commit(expire=True))
                await store.delete([key])
            return await get(key, start, end)

        monkeypatch.setattr(store, "get", expired_meanwhile)
        assert (await client.ok(TABLE))["metadata"] == json.loads(newest[0])


async def test_a_store_that_has_lost_the_metadata_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        table = await MadeTable.created(node, "orders")
        await table.commit()
        place = tmp_path / "data" / "objects" / table.metadata[0].file_key
        stored = place.read_bytes()
        place.write_bytes(stored.replace(b"table-uuid", b"table-uuiD"))
        code, type_, message = await client.failure(TABLE)
        assert (code, type_) == (500, "InternalServerError")
        assert message == f"the metadata of table orders is damaged: file://{place} has another CRC32C"
        place.unlink()
        code, type_, message = await client.failure(TABLE)
        assert (code, type_) == (500, "InternalServerError")
        assert message == f"the metadata of table orders is missing: file://{place}"


async def test_a_node_without_the_store_of_a_table_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path) as node, client_of(node) as client:
        await (await MadeTable.created(node, "orders")).commit()
        with monkeypatch.context() as patch:
            patch.setattr(node, "stores", {})
            code, type_, message = await client.failure(TABLE)
        assert (code, type_) == (503, "ServiceUnavailableException")
        assert message == "the table is in the store local, which is not configured on this node: ask another one"
