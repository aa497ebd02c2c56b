"""The JSON API shows a node: session, topics, groups, transactions, storage; bad requests are refused in one line."""

import asyncio
from asyncio import to_thread
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from yarl import URL

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin import connections
from anabranch.broker.operator.admin.api import live, records
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.admin_api import OPERATE, READ, TOKENS, ApiClient, api_client, lines_of, until_open
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of
from tests.support.streams_member import StreamsMember


async def commit(client: RawClient, group: str, offset: int, partition: int = 0) -> None:
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)  # which creates the topic
    where = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="of a test"
    )
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[where])])
    (topic,) = (await client.call(request, 9)).topics
    assert [each.error_code for each in topic.partitions] == [0]


def fetch_request() -> FetchRequest:
    """A request for the first records of a partition."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])])


async def test_the_session_tells_who_may_do_what(tmp_path: Path) -> None:
    async with running_node(tmp_path, **TOKENS) as node:
        for token, principal, role in ((READ, "Token:read", "reader"), (OPERATE, "Token:operate", "operator")):
            async with api_client(node, token) as api:
                found = await api.get("/session")
            assert (found["principal"], found["role"], found["authentication"]) == (principal, role, True)
            assert found["may_read_records"] is (role == "operator")
            assert (found["node_id"], found["cluster_id"]) == (node.serving.node_id, node.serving.settings.node.cluster)
        async with api_client(node) as api:
            status, answer, headers = await api.answer("GET", "/session")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer == {"error": "a valid bearer token or client certificate is needed"}


async def test_a_session_without_authentication_is_that_of_an_operator(api: ApiClient) -> None:
    found = await api.get("/session")
    assert (found["principal"], found["role"], found["authentication"]) == ("User:ANONYMOUS", "operator", False)


async def test_the_cluster_of_one_node(api: ApiClient, node: Node) -> None:
    found = await api.get("/cluster")
    (row,) = found["nodes"]
    assert (row["id"], row["state"], row["self"], row["leaders"]) == (node.serving.node_id, "up", True, 2)
    assert (found["topics"], found["partitions"], found["leaderless"], found["groups"]) == (1, 2, 0, 0)
    assert (found["internal_topics"], found["internal_partitions"]) == (0, 0)
    assert (found["writable"], found["obstacles"], found["outages"], found["unreachable"]) == (True, [], [], [])


def id_of(node: Node, topic: str) -> str:
    """The id of a topic as Kafka's tools show it: as librdkafka does, but in the alphabet for URLs."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(60)
    return str(found.topic_id).translate(str.maketrans("+/", "-_"))


async def test_topics_with_their_sizes(api: ApiClient, node: Node, client: RawClient) -> None:
    await client.produce("t", [batch_of(b"1", b"2")])
    await client.produce("t", [batch_of(b"3")], partition=1)
    (row,) = (await api.get("/topics"))["topics"]
    logged = len(batch_of(b"1", b"2")) + len(batch_of(b"3"))
    assert row["bytes"] == logged, "nothing is uploaded yet"
    await node.serving.storage.flush()
    await commit(client, "g", 1)
    found = await api.get("/topics")
    rows = {row["name"]: row for row in found["topics"]}
    row = rows["t"]
    assert (row["partitions"], row["leaders"], row["leaderless"], row["records"]) == (2, [node.serving.node_id], 0, 3)
    assert row["bytes"] >= logged
    assert (row["cleanup_policy"], row["internal"]) == ("delete", False)
    assert rows["__consumer_offsets"]["internal"]
    assert not found["more"]
    topic = await api.get("/topics/t")
    assert sum(each["bytes"] for each in topic["partitions"]) == row["bytes"]
    assert topic["id"] == row["id"] == await to_thread(id_of, node, "t")
    ends = [(each["index"], each["start_offset"], each["high_watermark"]) for each in topic["partitions"]]
    assert ends == [(0, 0, 2), (1, 0, 1)]
    assert all(each["error"] is None and each["leader"] == node.serving.node_id for each in topic["partitions"])
    assert topic["groups"] == [{"group_id": "g", "lag": 1}]
    configs = {each["name"]: each for each in topic["configs"]}
    assert configs["cleanup.policy"]["value"] == configs["cleanup.policy"]["default"] == "delete"
    assert not configs["cleanup.policy"]["is_own"]
    assert configs["retention.ms"]["documentation"]
    assert (configs["retention.ms"]["value"], configs["retention.ms"]["source"]) == ("-1", "static_broker_config")


async def test_configs_name_the_settings_of_the_node_as_their_source(tmp_path: Path) -> None:
    async with running_node(tmp_path, topic_retention_ms=60_000) as node, api_client(node) as api:
        await node.serving.topic_commands.create("t", partitions=1, configs={"retention.bytes": "7"})
        configs = {each["name"]: (each["value"], each["source"]) for each in (await api.get("/topics/t"))["configs"]}
    assert configs["retention.ms"] == ("60000", "static_broker_config")
    assert configs["retention.bytes"] == ("7", "dynamic_topic_config")
    assert {source for name, (_, source) in configs.items() if not name.startswith("retention")} == {"default_config"}


async def test_much_is_shown_while_the_catalog_is_away(
    api: ApiClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> Any:
        raise CatalogUnavailable("connection refused")

    for name in ("stream_bytes", "count_objects", "list_nodes", "find_ranges"):
        monkeypatch.setattr(node.serving.catalog, name, away)
    cluster = await api.get("/cluster")
    assert [(each["id"], each["state"], each["self"]) for each in cluster["nodes"]] == [
        (node.serving.node_id, "up", True)
    ]
    assert await api.failure("GET", "/topics/t/partitions/0/storage") == (503, "connection refused")
    (row,) = (await api.get("/topics"))["topics"]
    assert (row["name"], row["records"], row["bytes"]) == ("t", 0, None)
    assert (await api.get("/storage"))["objects"] is None


async def test_a_group_without_members_and_its_lag(api: ApiClient, client: RawClient, node: Node) -> None:
    await client.produce("t", [batch_of(b"1", b"2", b"3")])
    await commit(client, "g", 1)
    await commit(client, "g", 0, partition=1)
    (row,) = (await api.get("/groups"))["groups"]
    assert (row["group_id"], row["type"], row["state"], row["members"]) == ("g", "classic", "Empty", 0)
    assert (row["topics"], row["lag"]) == (["t"], 2)
    group = await api.get("/groups/g")
    assert (group["lag"], group["members"], group["unreachable"]) == (2, [], [])
    assert group["offsets"][0] == {
        "topic": "t",
        "partition": 0,
        "committed": 1,
        "start_offset": 0,
        "end_offset": 3,
        "lag": 2,
        "member_id": None,
        "metadata": "of a test",
        "share": None,
    }
    cluster = await api.get("/cluster")
    assert (cluster["groups"], cluster["topics"], cluster["partitions"], cluster["internal_topics"]) == (1, 1, 2, 1)
    offsets = node.serving.topics.get("__consumer_offsets")
    assert offsets is not None
    assert cluster["internal_partitions"] == len(offsets.info.partitions)


@contextmanager
def consuming(node: Node, group: str, protocol: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["t"])
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_of_a_group_and_what_they_are_assigned(
    api: ApiClient, node: Node, client: RawClient, protocol: str
) -> None:
    await client.produce("t", [batch_of(b"1", b"2", b"3")])
    with consuming(node, "g", protocol) as consumer:
        assert await to_thread(consumer.poll, 30) is not None
        group = await api.get("/groups/g")
        (member,) = group["members"]
        (row,) = (await api.get("/groups"))["groups"]
        await to_thread(consumer.close)
    assert (group["type"], group["state"]) == (protocol, "Stable")
    assert member["client_id"] == "reader"
    assert member["host"].endswith("127.0.0.1")
    assert member["assignments"] == [{"topic": "t", "partition": at} for at in (0, 1)]
    assert [(each["partition"], each["member_id"]) for each in group["offsets"]] == [
        (at, member["member_id"]) for at in (0, 1)
    ]
    assert (row["type"], row["members"], row["topics"]) == (protocol, 1, ["t"])


async def test_members_of_a_share_group_and_how_far_it_is(api: ApiClient, node: Node, client: RawClient) -> None:
    await client.produce("t", [batch_of(b"1", b"2", b"3")])
    await to_thread(configure_group, node, "g", "share.auto.offset.reset", "earliest")
    consumer = ShareConsumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "client.id": "reader"})
    consumer.subscribe(["t"])
    try:
        values = await to_thread(polled, consumer)
        shares = [each["share"] for each in (await api.get("/groups/g"))["offsets"]]
        await to_thread(consumer.commit_sync)  # what was polled
        group = await api.get("/groups/g")
        (row,) = (await api.get("/groups"))["groups"]
        (member,) = group["members"]
    finally:
        await to_thread(consumer.close)
    assert values == [b"1", b"2", b"3"]
    assert {"in_flight": 3, "acquired": 3, "archiving": 0} in shares
    assert (group["type"], group["state"], group["assignor"]) == ("share", "Stable", "simple")
    assert (member["client_id"], member["instance_id"]) == ("reader", None)
    assert member["assignments"] == [{"topic": "t", "partition": at} for at in (0, 1)]
    assert (row["type"], row["members"], row["topics"]) == ("share", 1, ["t"])
    # It has gone, and has acknowledged all records.
    group = await api.get("/groups/g")
    assert (group["members"], group["lag"]) == ([], 0)
    assert [(each["partition"], each["lag"], each["end_offset"]) for each in group["offsets"]] == [(0, 0, 3)]


async def test_tasks_of_a_streams_group_and_a_reset_of_its_sources(
    api: ApiClient, client: RawClient, node: Node
) -> None:
    await to_thread(configure_group, node, "app", "streams.initial.rebalance.delay.ms", "0")
    member = StreamsMember("app", "t")
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["app"]), 4)
    async with asyncio.timeout(30):
        while not member.is_settled:
            member.take(await client.call(member.request()))
    group = await api.get("/groups/app")
    (row,) = (await api.get("/groups"))["groups"]
    assert (group["type"], group["state"], group["assignor"]) == ("streams", "Stable", "sticky")
    (found,) = group["members"]
    assert found["tasks"] == {"active": ["0_0", "0_1", "1_0", "1_1"], "standby": [], "warmup": []}
    assert [(each["topic"], each["partition"]) for each in found["assignments"]] == [
        (name, index) for name in ("t", member.repartition) for index in (0, 1)
    ]
    assert [list(each.values()) for each in group["topology"]] == [
        ["0", ["t"], [], [member.repartition], []],
        ["1", [], [member.repartition], [], [member.changelog]],
    ]
    assert (row["type"], row["members"], row["topics"]) == ("streams", 1, sorted(["t", member.repartition]))
    assert not (await client.call(member.farewell())).error_code
    for topic in ("t", member.repartition):
        await client.produce(topic, [batch_of(b"1", b"2")])
        await client.commit_offset("app", topic, 0, 1)
    changes = (await api.ask("POST", "/groups/app/reset", {"to": "earliest"}))["changes"]
    assert changes == [{"topic": "t", "partition": 0, "from": 1, "to": 0, "lag": 2}]


def configure_group(node: Node, group: str, name: str, value: str) -> None:
    """Set a config of a group."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def polled(consumer: ShareConsumer) -> list[bytes | None]:
    """Return the values of the first records."""
    while not (found := consumer.poll(30)):
        pass
    return [each.value() for each in found]


async def test_transactions_and_producers(api: ApiClient, node: Node) -> None:
    assert (await api.get("/transactions"))["transactions"] == []
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "tx"})
    await to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    producer.produce("t", b"value", partition=1)
    assert await to_thread(producer.flush, 30) == 0
    (found,) = (await api.get("/transactions"))["transactions"]
    assert (found["transactional_id"], found["state"], found["coordinator"]) == ("tx", "Ongoing", node.serving.node_id)
    assert found["partitions"] == [{"topic": "t", "partition": 1}]
    assert 0 < found["started_ms"] <= node.serving.now_ms()
    (open_one,) = (await api.get("/topics/t/partitions/1/producers"))["producers"]
    assert (open_one["producer_id"], open_one["transaction_start_offset"]) == (found["producer_id"], 0)
    assert (await api.get("/topics/t"))["partitions"][1]["last_stable_offset"] == 0
    await to_thread(producer.commit_transaction, 30)
    (closed,) = (await api.get("/topics/t/partitions/1/producers"))["producers"]
    assert closed["transaction_start_offset"] is None


async def test_the_parts_of_a_partition_in_log_memory_and_objects(
    api: ApiClient, node: Node, client: RawClient
) -> None:
    await client.produce("t", [batch_of(b"1", b"2")])
    await node.serving.storage.flush()
    await client.produce("t", [batch_of(b"3")])
    found = await api.get("/topics/t/partitions/0/storage")
    assert (found["start_offset"], found["committed_offset"], found["end_offset"]) == (0, 2, 3)
    (stored,) = found["objects"]
    assert (stored["base_offset"], stored["end_offset"]) == (0, 2)
    assert stored["key"].endswith(f"/{node.serving.settings.node.cluster}/{stored['object_id']}")
    assert stored["committed_ms"] > 0
    assert [(run["base_offset"], run["end_offset"]) for run in found["log_cache"]] == [(0, 2), (2, 3)]
    (logged,) = found["wal"]
    assert (logged["base_offset"], logged["end_offset"], logged["bytes"]) == (2, 3, len(batch_of(b"3")))
    storage = await api.get("/storage")
    assert storage["wal"]["kind"] == "device"
    assert 0 < storage["wal"]["used_bytes"] < storage["wal"]["capacity_bytes"]
    assert storage["log_cache"]["uncommitted_bytes"] > 0
    assert storage["uploads"]["count"] == 1
    assert storage["store_calls"]["put"] >= 1
    assert sum(each["count"] for each in storage["objects"].values()) == 1
    assert (storage["compaction"]["running"], storage["compaction"]["last"]) == (False, None)


async def test_counters_arrive_as_lines_to_few_watchers(
    api: ApiClient, node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "INTERVAL_S", 0.01)
    async with AsyncExitStack() as stack:
        responses = [await stack.enter_async_context(api.session.get("/api/v1/live")) for _ in range(live.WATCHERS_MAX)]
        assert responses[0].content_type == "application/x-ndjson"

        lines = lines_of(responses[0])

        async def line_after(now_ms: int) -> Any:
            async for line in lines:
                if line["at_ms"] > now_ms:
                    return line
            pytest.fail("the stream ended")

        first = await line_after(0)
        await client.produce("t", [batch_of(b"1")])
        line = await line_after(node.serving.now_ms())
        assert line["requests"]["Produce"] == 1
        assert line["bytes_in"] > first["bytes_in"]
        await client.call(fetch_request(), 12)
        line = await line_after(node.serving.now_ms())
        assert line["requests"]["Fetch"] == 1
        assert line["bytes_out"] - first["bytes_out"] == len(batch_of(b"1"))
        assert line["at_ms"] >= first["at_ms"]
        assert line["wal"]["used_bytes"] > 0
        status, reason = await api.failure("GET", "/live")
        assert (status, reason) == (503, "streams of counters: 8 are open already; close one of them")

    await until_open(api, "/live")


WRONG_REQUESTS: Final[list[Any]] = [
    ("/topics/u", 404, "topic u does not exist"),
    ("/topics/t/partitions/2/storage", 404, "partition 2 of topic t does not exist"),
    ("/topics/t/partitions/-1/storage", 404, "partition -1 of topic t does not exist"),
    ("/topics/t/partitions/x/producers", 404, "partition x of topic t does not exist"),
    ("/groups/g", 404, "group g does not exist"),
    ("/topics?limit=1", 400, "limit: Extra inputs are not permitted"),
    ("/nothing", 404, "there is no such path: see /api/v1/openapi.json"),
]


async def test_a_wrong_request_is_refused_in_one_line(api: ApiClient) -> None:
    for path, status, reason in WRONG_REQUESTS:
        assert await api.failure("GET", path) == (status, reason)


async def test_an_unknown_group_is_told_from_one_without_offsets(api: ApiClient, client: RawClient) -> None:
    await commit(client, "g", 0)
    assert await api.failure("GET", "/groups/h") == (404, "group h does not exist")


async def test_a_path_knows_its_methods(api: ApiClient) -> None:
    assert await api.failure("DELETE", "/cluster") == (405, "/api/v1/cluster requires GET")


async def test_open_streams_do_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(60), running_node(tmp_path) as node:
            await node.serving.topic_commands.create("t", partitions=1, configs={})
            api = await stack.enter_async_context(api_client(node))
            responses = [
                await stack.enter_async_context(api.session.get(f"/api/v1{path}"))
                for path in ("/live", "/topics/t/tail")
            ]
            assert [each.status for each in responses] == [200, 200]
        for each in responses:
            with suppress(aiohttp.ClientError):
                await each.read()


@pytest.mark.parametrize("path", ["/live", "/topics/t/tail"])
@pytest.mark.parametrize("then", ["read only", "unknown"])
async def test_a_stream_ends_with_the_right_to_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, then: str
) -> None:
    monkeypatch.setattr(live, "INTERVAL_S", 0.01)
    monkeypatch.setattr(records, "TAIL_POLL_S", 0.01)
    token, other = "o" * 20, "x" * 20
    files = {name: tmp_path / name for name in ("admin_read_token_file", "admin_operate_token_file")}
    for file in files.values():
        file.write_text(other)
    files["admin_operate_token_file"].write_text(f"{other}\n{token}")
    async with running_node(tmp_path, admin_records="operators", **files) as node, api_client(node, token) as api:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        async with asyncio.timeout(60), api.session.get(f"/api/v1{path}") as response:
            lines = lines_of(response)
            assert "error" not in await anext(lines)
            if then == "read only":
                files["admin_read_token_file"].write_text(token)
            files["admin_operate_token_file"].write_text(other)
            found = [line async for line in lines]
            assert found[-1] == {"error": "the token or the right to see this was revoked"}


async def test_access_control_lists_do_not_count_at_the_port(tmp_path: Path) -> None:
    async with running_node(tmp_path, authorizer_enabled=True) as node, api_client(node) as api:
        await api.ask("POST", "/topics", {"name": "t", "configs": {"retention.ms": "1000"}})
        await api.ask("PATCH", "/topics/t", {"partitions": 2})
        await api.ask("POST", "/topics/t/records", {"value": "v"})
        (record,) = (await api.get("/topics/t/records", from_="earliest"))["records"]
        assert record["value"]["text"] == "v"
        assert (await api.get("/topics/t"))["configs"]
        await api.ask("DELETE", "/topics/t")


async def test_groups_may_have_any_name(api: ApiClient, client: RawClient) -> None:
    names = ["a/b", "ü x", "%41", "a?b#c", "{g}", "a+b&c"]
    for name in names:
        await commit(client, name, 0)
        url = URL(f"/api/v1/groups/{quote(name, safe='')}", encoded=True)
        async with api.session.get(url) as response:
            assert (await response.json()).get("group_id") == name, name
    assert [each["group_id"] for each in (await api.get("/groups"))["groups"]] == sorted(names)


async def test_a_watcher_that_does_not_read_loses_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WATCHERS_MAX", 1)
    monkeypatch.setattr(live, "INTERVAL_S", 0)
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.2)
    async with asyncio.timeout(60), running_node(tmp_path) as node, api_client(node) as api:
        host, port = node.ports.admin_address.rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port), limit=1)  # which reads a little, and no more
        writer.write(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")

        async def is_open() -> bool:
            async with api.session.get("/api/v1/live") as response:
                return response.status == 200

        while await is_open():
            pass  # until the other one has the place
        while not await is_open():
            pass
        writer.transport.abort()
