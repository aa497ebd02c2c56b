"""The JSON API lists and describes tables, with what they lack, and drops them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.table_values import TableRetention
from tests.support.admin_api import OPERATE, READ, TOKENS, ApiClient, api_client
from tests.support.made_table import DATA, MadeTable
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

UNREGISTERED: Final = "avro"
"""Format of values of a table that is never created: the registry has no schema."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


async def make_topic(node: Node, name: str, partitions: int = 2, **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    await node.serving.topic_commands.create(name, partitions=partitions, configs=named)


async def send(client: RawClient, topic: str, count: int, partition: int = 0) -> None:
    response = await client.produce(topic, [batch_of(*([b"x"] * count))], partition=partition)
    assert response.responses[0].partition_responses[0].error_code == 0


def read(uri: str) -> bytes:
    return Path(uri.removeprefix("file://")).read_bytes()


async def test_a_table_is_listed_and_described_with_what_it_lacks(
    node: Node, api: ApiClient, client: RawClient
) -> None:
    assert await api.get("/tables") == {"tables": [], "more": False, "unreachable": []}
    await make_topic(node, "orders")
    await send(client, "orders", 10)
    await send(client, "orders", 5, partition=1)
    await node.serving.storage.flush()
    await send(client, "orders", 2)
    table = await MadeTable.of(node, "orders")
    await table.commit({0: [(0, 4), (4, 10)]})

    (row,) = (await api.get("/tables"))["tables"]
    assert {name: row[name] for name in ("name", "topic", "enabled", "committer", "version", "snapshot_id")} == {
        "name": "orders",
        "topic": "orders",
        "enabled": False,
        "committer": 1,
        "version": 1,
        "snapshot_id": "1001",
    }
    assert (row["rows"], row["files"], row["bytes"], row["snapshots"], row["lag"]) == (10, 2, 2 * len(DATA), 1, 7)
    assert row["table_id"] == "6f726465-7273-6f72-6465-72736f726465"

    found = await api.get("/tables/orders")
    assert {name: found[name] for name in row} == row
    assert found["partitions"] == [
        {"partition": 0, "start_offset": 0, "end_offset": 10, "topic_end_offset": 12, "lag": 2},
        {"partition": 1, "start_offset": 0, "end_offset": 0, "topic_end_offset": 5, "lag": 5},
    ]
    assert found["columns"] == [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "tags", "type": "list<string>", "required": False},
        {"id": 4, "name": "_kafka", "type": "struct<offset: long>", "required": True},
    ]
    assert b"current-schema-id" in read(found["metadata_location"])
    assert found["metadata_location"].startswith(f"{found['location']}/metadata/")


async def test_snapshots_and_files_come_in_pages(node: Node, api: ApiClient, client: RawClient) -> None:
    await make_topic(node, "orders")
    for partition in (0, 1):
        await send(client, "orders", 10, partition=partition)
    await node.serving.storage.flush()
    table = await MadeTable.of(node, "orders")
    await table.commit({0: [(0, 4), (4, 10)]})
    await table.commit({1: [(0, 10)]})

    found = await api.get("/tables/orders/snapshots")
    assert [(each["snapshot_id"], each["version"], each["operation"]) for each in found["snapshots"]] == [
        ("1002", 2, "append"),
        ("1001", 1, "append"),
    ]
    assert found["snapshots"][0]["summary"] == {"added-records": "10", "total-records": "20"}
    assert not found["more"]
    newest = await api.get("/tables/orders/snapshots", limit=1)
    assert ([each["version"] for each in newest["snapshots"]], newest["more"]) == ([2], True)

    whole = await api.get("/tables/orders/files")
    assert [(each["partition"], each["start_offset"], each["end_offset"], each["rows"]) for each in whole["files"]] == [
        (0, 0, 4, 4),
        (0, 4, 10, 6),
        (1, 0, 10, 10),
    ]
    assert whole["next"] is None
    assert read(whole["files"][0]["location"]) == DATA
    pages: list[Any] = []
    place: dict[str, int] | None = {"partition": 0, "offset": 0}
    while place is not None:
        page = await api.get("/tables/orders/files", limit=1, **place)
        pages += page["files"]
        place = page["next"]
    assert pages == whole["files"]
    assert (await api.failure("GET", "/tables/orders/files", limit=0))[0] == 400


async def test_a_topic_that_is_to_be_a_table_is_listed_before_its_first_commit(node: Node, api: ApiClient) -> None:
    await make_topic(node, "orders", table_enable="true", table_value=UNREGISTERED)
    await make_topic(node, "plain")
    (row,) = (await api.get("/tables"))["tables"]
    assert (row["name"], row["enabled"], row["table_id"], row["version"], row["rows"]) == ("orders", True, None, 0, 0)
    found = await api.get("/tables/orders")
    assert (found["columns"], found["metadata_location"], found["lag"]) == ([], None, 0)
    assert await api.failure("GET", "/tables/orders/files") == (409, "table orders has no commit yet")
    assert await api.failure("GET", "/tables/order") == (404, "there is no table 'order'. Did you mean 'orders'?")
    assert await api.failure("GET", "/tables/plain") == (
        404,
        "there is no table 'plain': its topic has table.enable=false",
    )


async def test_a_drop_is_planned_before_it_destroys_the_files(node: Node, api: ApiClient, client: RawClient) -> None:
    await make_topic(node, "orders", 1)
    await send(client, "orders", 10)
    await node.serving.storage.flush()
    table = await MadeTable.of(node, "orders")
    await table.commit({0: [(0, 10)]})
    (file,) = (await api.get("/tables/orders/files"))["files"]
    table_id = (await api.get("/tables/orders"))["table_id"]
    plan = await api.ask("DELETE", "/tables/orders", validate_only="true")
    counts = {"rows": 10, "files": 1, "bytes": len(DATA)}
    assert plan == {"name": "orders", "table_id": table_id, "disabled_topic": None, **counts, "keep_files": False}
    assert (await api.get("/tables/orders"))["rows"] == 10
    assert await api.ask("DELETE", "/tables/orders") == plan
    assert (await api.get("/tables"))["tables"] == []
    (destroyed, *_) = await node.serving.catalog.tables.list_reapable(
        now_ms=node.serving.now_ms() + node.serving.settings.storage.delete_delay_ms + 1, limit=10
    )
    assert destroyed.file_key.rpartition("/")[2] == file["location"].rpartition("/")[2]
    assert (await api.failure("DELETE", "/tables/orders"))[0] == 404


async def test_a_drop_ends_what_the_topic_asks_for(node: Node, api: ApiClient) -> None:
    await make_topic(node, "orders", table_enable="true", table_value=UNREGISTERED)
    assert (await api.ask("DELETE", "/tables/orders", validate_only="true"))["disabled_topic"] == "orders"
    assert (await api.get("/tables/orders"))["enabled"]
    assert (await api.ask("DELETE", "/tables/orders"))["disabled_topic"] == "orders"
    assert node.serving.topics.require("orders").info.configs["table.enable"] == "false"
    assert (await api.get("/tables"))["tables"] == []


async def test_a_drop_that_is_repeated_leaves_a_new_table_of_the_name(node: Node, api: ApiClient) -> None:
    await make_topic(node, "orders", 1)
    await MadeTable.of(node, "orders")
    table_id = (await api.get("/tables/orders"))["table_id"]
    assert (await api.ask("DELETE", "/tables/orders", table_id=table_id))["table_id"] == table_id
    again = await api.failure("DELETE", "/tables/orders", table_id=table_id)
    assert again == (404, "there is no table 'orders': its topic has table.enable=false")
    await node.serving.topic_commands.delete("orders")
    await make_topic(node, "orders", 1, table_enable="true", table_value=UNREGISTERED)
    status, reason = await api.failure("DELETE", "/tables/orders", table_id=table_id)
    assert (status, reason) == (404, f"there is no table 'orders' with the id {table_id}")
    assert node.serving.topics.require("orders").info.configs["table.enable"] == "true"
    await MadeTable.of(node, "orders")
    status, reason = await api.failure("DELETE", "/tables/orders", table_id=str(UUID(int=7)))
    assert (status, reason.partition(": ")[2]) == (404, f"the one of this name has the id {table_id}")
    assert len((await api.get("/tables"))["tables"]) == 1
    assert (await api.failure("DELETE", "/tables/orders", table_id="7"))[0] == 400


async def test_a_table_outlives_its_topic_and_is_dropped_without_its_files(
    node: Node, api: ApiClient, client: RawClient
) -> None:
    await make_topic(node, "orders", 1)
    await send(client, "orders", 10)
    await node.serving.storage.flush()
    table = await MadeTable.of(node, "orders", TableRetention.KEEP)
    await table.commit({0: [(0, 10)]})
    await node.serving.topic_commands.delete("orders")
    (row,) = (await api.get("/tables"))["tables"]
    assert (row["topic"], row["enabled"], row["committer"], row["rows"], row["lag"]) == (None, False, None, 10, 0)
    assert [each["end_offset"] for each in (await api.get("/tables/orders"))["partitions"]] == [10]
    await make_topic(node, "orders", 1, table_enable="true")  # it waits for the name
    status, reason = await api.failure("POST", "/tables/orders/commit")
    assert (status, reason) == (409, "no rows are added to table orders: its topic is deleted or detached")
    dropped = await api.ask("DELETE", "/tables/orders", keep_files="true")
    assert (dropped["disabled_topic"], dropped["keep_files"]) == (None, True)
    assert not await node.serving.catalog.tables.list_reapable(now_ms=node.serving.now_ms() + 10**12, limit=10)


async def test_only_operators_drop(tmp_path: Path) -> None:
    async with running_node(tmp_path, **TOKENS) as node:
        await make_topic(node, "orders", table_enable="true", table_value=UNREGISTERED)
        async with api_client(node, READ) as reader, api_client(node, OPERATE) as operator, api_client(node) as nobody:
            assert (await nobody.failure("GET", "/tables"))[0] == 401
            assert len((await reader.get("/tables"))["tables"]) == 1
            assert (await reader.failure("DELETE", "/tables/orders"))[0] == 403
            await operator.ask("DELETE", "/tables/orders")
            assert (await reader.get("/tables"))["tables"] == []


@pytest.mark.slow
async def test_only_those_who_may_see_records_see_what_was_wrong_with_them(tmp_path: Path) -> None:
    async with running_node(tmp_path, **TOKENS) as node, raw_client(node.bootstrap) as client:
        schema = '{"properties": {"id": {"type": "integer"}}}'
        await make_topic(node, "orders", 1, table_enable="true", table_value="json", table_value_schema=schema)
        await client.produce("orders", [batch_of(b'{"id": "secret"}')])
        async with api_client(node, READ) as reader, api_client(node, OPERATE) as operator:
            assert (await operator.ask("POST", "/tables/orders/commit"))["rows"] == 1
            found, shown = [await api.get("/tables/orders") for api in (operator, reader)]
            assert (found["error_rows"], len(found["reasons"])) == (1, 1)
            assert "secret" in found["reasons"][0]
            assert (shown["error_rows"], shown["reasons"]) == (1, [])


@pytest.mark.slow
async def test_any_node_answers_for_the_partitions_and_tables_of_others(tmp_path: Path) -> None:
    async with (
        running_nodes(tmp_path, 2) as (first, second),
        api_client(first) as of_first,
        api_client(second) as other,
    ):
        await make_topic(first, "orders", table_enable="true", table_commit_interval_ms="3600000")
        topic = first.serving.topics.require("orders")
        leaders = [each.leader for each in topic.info.partitions]
        assert sorted(leaders) == [1, 2]
        for index, leader in enumerate(leaders):
            async with raw_client({1: first, 2: second}[leader].bootstrap) as client:
                await send(client, "orders", 3, partition=index)
        await until(lambda: second.serving.topics.get("orders") is not None)
        for api in (of_first, other):
            found = await api.get("/tables/orders")
            assert (found["committer"], found["unreachable"]) == (leaders[0], [])
            assert sum(each["topic_end_offset"] for each in found["partitions"]) == 6
        committed = await other.ask("POST", "/tables/orders/commit")
        assert (committed["rows"], committed["name"]) == (6, "orders")
        (row,) = (await of_first.get("/tables"))["tables"]
        assert (row["rows"], row["lag"], row["lag_ms"], row["error_rows"], row["last_error"]) == (6, 0, 0, 0, None)

        await make_topic(first, "unknown", 1, table_enable="true", table_value="avro")
        for api in (of_first, other):
            status, reason = await api.failure("POST", "/tables/unknown/commit")
            assert (status, reason.startswith("table unknown waits: the schema registry ")) == (409, True)
            described = await api.get("/tables/unknown")
            assert reason.endswith(described["last_error"])


@pytest.mark.slow
async def test_a_commit_that_is_not_made_in_time_says_so(
    node: Node, api: ApiClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(node, "orders", 1, table_enable="true", table_commit_interval_ms="3600000")
    await until(lambda: any(each.table_id for each in node.upkeep.tables.statuses()), pause_s=0.02)
    monkeypatch.setattr(node.upkeep.tables.upkeep, "hurry", lambda _topic: None)
    await send(client, "orders", 3)
    assert await api.failure("POST", "/tables/orders/commit", timeout_ms=200) == (
        504,
        "table orders still lacks records after 0.2 s: see `anabranch table describe orders`",
    )
    await make_topic(node, "plain")
    assert (await api.failure("POST", "/tables/plain/commit"))[0] == 404
