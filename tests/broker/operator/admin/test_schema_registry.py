"""The schema registry at the admin port of real nodes: access, audit, other nodes, restarts, the console's decoder."""

import asyncio
import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from anabranch.broker.api.declaration import Handlers
from anabranch.broker.api.handlers.internal import internal_handlers
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import SCHEMAS_TOPIC
from anabranch.broker.node.settings.area import Secret
from anabranch.protocol.api import api_of
from anabranch.protocol.messages.internal.registry_call import RegistryCallRequest
from tests.support.admin_api import OPERATE, READ, TOKENS, api_client
from tests.support.node import running_node, running_nodes
from tests.support.waiting import until


class Crash(Exception):
    """Ends a node as a crash does."""


SCHEMAS = "s" * 20
BODY = {"schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'}


@asynccontextmanager
async def registry_of(node: Node, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{node.ports.admin_address}", headers=headers) as session:
        yield session


async def send(session: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    async with session.request(method, f"/schema-registry{path}", data=data, headers=headers) as response:
        assert response.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
        return response.status, await response.json(content_type=None)


async def ok(session: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
    status, answer = await send(session, method, path, body)
    assert status == 200, answer
    return answer


async def test_a_node_keeps_schemas_over_a_crash(tmp_path: Path) -> None:
    with suppress(Crash):
        async with running_node(tmp_path) as node, registry_of(node) as registry:
            assert await ok(registry, "GET", "/subjects") == []
            assert node.serving.topics.get(SCHEMAS_TOPIC) is None, "questions create no topic"
            assert await ok(registry, "POST", "/subjects/a%2Fb/versions", BODY) == {"id": 1}
            raise Crash
    async with running_node(tmp_path) as node, registry_of(node) as registry:
        assert await ok(registry, "GET", "/subjects") == ["a/b"]
        assert await ok(registry, "POST", "/subjects/s/versions", {"schema": '"int"'}) == {"id": 2}
        topic = node.serving.topics.require(SCHEMAS_TOPIC)
        assert (len(topic.partitions), topic.info.internal) == (1, False)
        assert topic.info.configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize("enabled", [True, False])
async def test_pages_count_the_topic_of_schemas_apart_if_the_nodes_keep_it(tmp_path: Path, enabled: bool) -> None:
    async with running_node(tmp_path, schema_registry_enabled=enabled) as node, api_client(node) as api:
        for name in ("orders", SCHEMAS_TOPIC):
            await node.serving.topic_commands.create(name, partitions=1, configs={"cleanup.policy": "compact"})
        rows = (await api.get("/topics"))["topics"]
        assert {each["name"]: each["internal"] for each in rows} == {"orders": False, SCHEMAS_TOPIC: enabled}
        assert (await api.get(f"/topics/{SCHEMAS_TOPIC}"))["internal"] is enabled
        cluster = await api.get("/cluster")
        counts = [cluster[name] for name in ("topics", "partitions", "internal_topics", "internal_partitions")]
        assert counts == ([1, 1, 1, 1] if enabled else [2, 2, 0, 0])


async def test_every_node_answers(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as nodes, registry_of(nodes[0]) as one, registry_of(nodes[1]) as other:
        assert await ok(one, "POST", "/subjects/s/versions", BODY) == {"id": 1}
        for registry in (one, other):
            assert await ok(registry, "GET", "/subjects/s/versions") == [1]
        assert await ok(other, "POST", "/subjects/t/versions", {"schema": '"int"'}) == {"id": 2}
        assert await ok(one, "GET", "/subjects") == ["s", "t"]
        assert (await send(other, "GET", "/subjects/x/versions"))[1]["error_code"] == 40401


async def test_a_leader_of_an_earlier_version_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = api_of(RegistryCallRequest).key

    def earlier(local: LocalRequests) -> Handlers:
        return {key: handler for key, handler in internal_handlers(local).items() if key != call}

    monkeypatch.setattr("anabranch.broker.app.node.internal_handlers", earlier)
    async with running_nodes(tmp_path, 2) as nodes, registry_of(nodes[0]) as one, registry_of(nodes[1]) as other:
        found = [await send(registry, "POST", "/subjects/s/versions", BODY) for registry in (one, other)]
        found += [await send(registry, "GET", "/subjects/s/versions") for registry in (one, other)]
        assert [answer for status, answer in found if status == 200] == [{"id": 1}, [1]], "the leader itself answers"
        for answer in (answer for status, answer in found if status == 500):
            assert answer["error_code"] == 50003, "clients try again"
            assert re.fullmatch(r"Error while forwarding the request: node \d at [\w.:]+: .+", answer["message"])


def has_partition(partitions: Sequence[object]) -> bool:
    return partitions[0] is not None


async def test_schemas_move_with_their_partition(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as nodes, registry_of(nodes[0]) as one, registry_of(nodes[1]) as other:
        assert await ok(one, "POST", "/subjects/s/versions", BODY) == {"id": 1}
        for target, id_ in ((2, 2), (1, 4)):
            async with api_client(nodes[0]) as api:
                await api.ask("POST", f"/topics/{SCHEMAS_TOPIC}/moves", to=target)
            writes = [
                ok(
                    registry,
                    "POST",
                    f"/subjects/s{n}/versions",
                    {"schema": f'{{"type":"fixed","name":"F","size":{n}}}'},
                )
                for n, registry in ((id_, one), (id_ + 1, other))
            ]
            answers = await asyncio.gather(*writes)  # while it moves: they wait, or are passed on
            assert sorted(each["id"] for each in answers) == [id_, id_ + 1]
            partitions = nodes[target - 1].serving.topics.require(SCHEMAS_TOPIC).partitions
            await until(partial(has_partition, partitions))
            for registry in (one, other):
                assert len(await ok(registry, "GET", "/subjects")) == id_ + 1


@pytest.mark.parametrize(
    ("authorization", "read", "look_up", "write", "api"),
    [
        ("", 401, 401, 401, 401),
        (f"Bearer {READ}", 200, 200, 403, 200),
        (f"Bearer {OPERATE}", 200, 200, 200, 200),
        (f"Bearer {SCHEMAS}", 200, 200, 200, 401),
        (f"Basic {b64encode(f'any:{SCHEMAS}'.encode()).decode()}", 200, 200, 200, 401),
        (f"Basic {b64encode(f'any:{READ}'.encode()).decode()}", 200, 200, 403, 401),
        ("Basic x", 401, 401, 401, 401),
        (f"Bearer {SCHEMAS}x", 401, 401, 401, 401),
    ],
)
async def test_who_may_do_what(
    tmp_path: Path, authorization: str, read: int, look_up: int, write: int, api: int
) -> None:
    wanted = {**TOKENS, "admin_schemas_token": Secret(SCHEMAS)}
    async with running_node(tmp_path, **wanted) as node:
        async with registry_of(node, Authorization=f"Bearer {OPERATE}") as registry:
            await ok(registry, "POST", "/subjects/s/versions", BODY)
        headers = {"Authorization": authorization} if authorization else {}
        async with registry_of(node, **headers) as registry:
            assert (await send(registry, "GET", "/subjects"))[0] == read
            assert (await send(registry, "POST", "/subjects/s", BODY))[0] == look_up
            assert (await send(registry, "POST", "/compatibility/subjects/s/versions/latest", BODY))[0] == look_up
            status, answer = await send(registry, "POST", "/subjects/s/versions", BODY)
            assert status == write
            if status != 200:
                assert answer["error_code"] == status
            async with registry.get("/api/v1/cluster") as response:
                assert response.status == api


async def test_changes_are_audit_events_and_questions_are_none(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, registry_of(node) as registry:
        with capture_logs() as logs:
            await ok(registry, "POST", "/subjects/s/versions", BODY)
            await ok(registry, "POST", "/subjects/s", BODY)
            await send(registry, "DELETE", "/subjects/x")
        found = [(each["event"], each["action"]) for each in logs if each.get("listener") == "admin"]
        assert found == [
            ("changed", "POST /schema-registry/subjects/s/versions"),
            ("change refused", "DELETE /schema-registry/subjects/x"),
        ]


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async with running_node(tmp_path, schema_registry_enabled=False) as node, registry_of(node) as registry:
        assert (await send(registry, "GET", "/subjects"))[0] == 404
        async with api_client(node) as api:
            assert not (await api.get("/session"))["has_schema_registry"]


async def test_the_level_of_the_settings_holds(tmp_path: Path) -> None:
    async with running_node(tmp_path, schema_registry_compatibility="NONE") as node, registry_of(node) as registry:
        assert await ok(registry, "GET", "/config") == {"compatibilityLevel": "NONE"}


async def test_records_are_shown_with_the_schemas_of_the_registry(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, registry_of(node) as registry, api_client(node) as api:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        found = await ok(registry, "POST", "/subjects/t-value/versions", BODY)
        value = b"\0" + found["id"].to_bytes(4, "big") + b"\x06tea"
        body = {"value": b64encode(value).decode(), "encoding": "base64"}
        await api.ask("POST", "/topics/t/records", body)
        (record,) = (await api.get("/topics/t/records", from_="earliest"))["records"]
        assert (record["value"]["format"], json.loads(record["value"]["text"])) == ("avro", {"a": "tea"})
        assert (await api.get("/session"))["has_schema_registry"]


async def test_a_protobuf_schema_is_compiled_and_serialised(tmp_path: Path) -> None:
    base = {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; package b; message B { int32 a = 1; }'}
    user: Mapping[str, Any] = {
        "schemaType": "PROTOBUF",
        "schema": 'syntax = "proto3"; import "b.proto"; message U { b.B b = 1; }',
        "references": [{"name": "b.proto", "subject": "b.proto", "version": 1}],
    }
    async with running_node(tmp_path) as node, registry_of(node) as registry:
        assert "PROTOBUF" in await ok(registry, "GET", "/schemas/types")
        await ok(registry, "POST", "/subjects/b.proto/versions", base)
        assert await ok(registry, "POST", "/subjects/u/versions", user) == {"id": 2}
        serialized = (await ok(registry, "GET", "/schemas/ids/2?format=serialized"))["schema"]
        again = {**user, "schema": serialized}
        assert (await ok(registry, "POST", "/subjects/u", again))["id"] == 2
        status, answer = await send(registry, "POST", "/subjects/u/versions", {**user, "schema": "message"})
        assert (status, answer["error_code"]) == (422, 42201)


async def test_a_topic_that_loses_records_takes_no_schemas(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, registry_of(node) as registry:
        await node.serving.topic_commands.create(SCHEMAS_TOPIC, partitions=1, configs={})
        status, answer = await send(registry, "POST", "/subjects/s/versions", BODY)
        assert (status, answer["error_code"]) == (500, 50001)
        assert answer["message"] == "the topic _schemas must have cleanup.policy=compact"
        assert await ok(registry, "GET", "/subjects") == [], "it can be read"
        configs = {"cleanup.policy": "compact"}
        await node.serving.topic_commands.alter(SCHEMAS_TOPIC, lambda own: own | configs)
        assert await ok(registry, "POST", "/subjects/s/versions", BODY) == {"id": 1}


async def test_a_body_that_could_not_be_passed_on_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, registry_of(node) as registry:
        status, answer = await send(registry, "POST", "/subjects/s/versions", {"schema": "x" * 1_000_000})
        assert (status, answer["error_code"]) == (413, 413)


def test_a_node_starts_without_the_registry() -> None:
    program = "import sys, anabranch.broker.app, anabranch.broker.operator.admin.http; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "anabranch.broker.app.node" in found.stdout
    assert "anabranch.broker.kafka.schemas" not in found.stdout


async def test_many_clients_at_the_same_time(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, registry_of(node) as registry:
        bodies = [{"schema": json.dumps({"type": "fixed", "name": "F", "size": n})} for n in range(30)]
        answers = await asyncio.gather(
            *(ok(registry, "POST", f"/subjects/s{n}/versions", body) for n, body in enumerate(bodies))
        )
        assert sorted(each["id"] for each in answers) == list(range(1, 31))
