"""Tables whose schemas are in the cluster's own registry."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest

from anabranch.broker.app.tables import RegistryPort
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.schemas.requests import RegistryAnswer, RegistryRequest
from anabranch.broker.operator.admin.schema_registry import ask_registry
from anabranch.tables.errors import RegistryError
from anabranch.tables.process import ColumnsError
from anabranch.tables.registry import SchemaRegistry
from anabranch.tables.requests import Registry
from tests.support.admin_api import TOKENS
from tests.support.events import Event
from tests.support.node import running_node
from tests.support.tables import created_slowly, own_committer, read_table, sent

pytestmark = pytest.mark.slow


def schema(*names: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": ["null", "long"], "default": None} for name in names],
    }


async def register(node: Node, subject: str, wanted: dict[str, Any]) -> int:
    body = json.dumps({"schema": json.dumps(wanted)}).encode()
    answer = await ask_registry(node.serving, RegistryRequest("POST", f"/subjects/{subject}/versions", body))
    assert answer.status == 200, answer
    found: int = json.loads(answer.body)["id"]
    return found


def answering(place: Registry) -> Callable[[], Awaitable[Registry | None]]:
    async def registry() -> Registry | None:
        return place

    return registry


def encoded(schema_id: int, wanted: dict[str, Any], values: Sequence[dict[str, int | None]]) -> list[Event]:
    events = []
    for value in values:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, fastavro.parse_schema(wanted), value)
        events.append(Event(0, b"\0" + schema_id.to_bytes(4) + written.getvalue()))
    return events


async def test_the_own_registry_is_asked_although_the_admin_port_wants_tokens(tmp_path: Path) -> None:
    async with running_node(tmp_path, **TOKENS) as node:
        first = await register(node, "orders-value", schema("a"))
        await created_slowly(node, "orders", configs={"table.value": "avro"})
        committer = own_committer(node, "orders", tmp_path / "own")
        await sent(node, "orders", encoded(first, schema("a"), [{"a": 1}, {"a": None}]))
        await committer.run()
        second = await register(node, "orders-value", schema("a", "b"))
        await sent(node, "orders", encoded(second, schema("a", "b"), [{"a": 2, "b": 3}]))
        await sent(node, "orders", [Event(0, b"no header")])
        await committer.run()
        found = await asyncio.to_thread(read_table, committer.status.metadata_location)
        assert found["a"].to_pylist() == [1, None, 2, None]
        assert found["b"].to_pylist() == [None, None, 3, None]
        assert (committer.status.errors, committer.status.last_error) == (1, "")


async def test_a_registry_that_does_not_answer_delays_new_schemas_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        port = RegistryPort(partial(ask_registry, node.serving), "secret")
        first = await register(node, "orders-value", schema("a"))
        await created_slowly(node, "orders", configs={"table.value": "avro"})
        committer = own_committer(node, "orders", tmp_path / "own", registry=port.place)
        await sent(node, "orders", encoded(first, schema("a"), [{"a": 1}]))
        await committer.run()
        place = await port.place()
        await port.close()
        restarted = own_committer(node, "orders", tmp_path / "other", registry=answering(place))
        await sent(node, "orders", encoded(first, schema("a"), [{"a": 2}]))
        with pytest.raises(ColumnsError, match=r"127\.0\.0\.1"):
            await restarted.run()  # it has no schema at all


async def test_the_last_schema_is_used_while_the_registry_does_not_answer(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        port = RegistryPort(partial(ask_registry, node.serving), "secret")
        first = await register(node, "orders-value", schema("a"))
        await created_slowly(node, "orders", configs={"table.value": "avro"})
        committer = own_committer(node, "orders", tmp_path / "own", registry=answering(await port.place()))
        await sent(node, "orders", encoded(first, schema("a"), [{"a": 1}]))
        await committer.run()
        assert committer.status.last_error == ""
        await port.close()
        await sent(node, "orders", encoded(first, schema("a"), [{"a": 2}]))
        await committer.run()
        found = await asyncio.to_thread(read_table, committer.status.metadata_location)
        assert found["a"].to_pylist() == [1, 2]
        assert committer.status.last_error.startswith("new schemas are not used: ")


async def test_the_port_answers_its_process_and_nobody_else() -> None:
    asked: list[RegistryRequest] = []

    async def answer(request: RegistryRequest) -> RegistryAnswer:
        asked.append(request)
        return RegistryAnswer(200, json.dumps({"schema": '"int"'}).encode())

    port = RegistryPort(answer, "secret")
    place = await port.place()
    assert (await port.place()) == place
    known = SchemaRegistry(place.url, place.credentials)
    found = await asyncio.to_thread(known.by_id, 7)
    assert found.text == '"int"'
    assert [each.target for each in asked] == ["/schemas/ids/7"]
    for credentials in (None, "tables:other"):
        stranger = SchemaRegistry(place.url, credentials)
        with pytest.raises(RegistryError, match="401"):
            await asyncio.to_thread(stranger.by_id, 7)
    await port.close()
    assert len(asked) == 1
