"""The JSON API changes topics and groups, and produces records: planned first, by operators only, and audited."""

import base64
import io
from asyncio import to_thread
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Message, Producer
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.client.partitioner import partition_of_key
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.admin_api import OPERATE, READ, TOKENS, ApiClient, api_client
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

BASE_MS = 1_700_000_000_000


async def commit(client: RawClient, group: str, *offsets: int) -> None:
    """Commit an offset for each of the first partitions."""
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)  # which creates the topic
    where = [
        OffsetCommitRequestPartition(partition_index=at, committed_offset=offset, committed_metadata=None)
        for at, offset in enumerate(offsets)
    ]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=where)])
    (topic,) = (await client.call(request, 9)).topics
    assert {each.error_code for each in topic.partitions} == {0}


# topics


async def test_a_topic_is_planned_and_created(api: ApiClient, node: Node) -> None:
    wanted = {"name": "new", "partitions": 3, "configs": {"retention.ms": "1000"}}
    plan = await api.ask("POST", "/topics", {**wanted, "validate_only": True})
    assert (plan["name"], plan["partitions"], plan["placement"]) == ("new", 3, None)
    configs = {each["name"]: each for each in plan["configs"]}
    assert configs["retention.ms"] == {"name": "retention.ms", "value": "1000", "default": False}
    assert configs["cleanup.policy"]["default"]
    assert node.serving.topics.get("new") is None
    created = await api.ask("POST", "/topics", wanted)
    assert created["placement"] == [{"partition": at, "leader": node.serving.node_id} for at in range(3)]
    topic = node.serving.topics.get("new")
    assert topic is not None
    assert (len(topic.info.partitions), topic.config.retention_ms) == (3, 1000)
    assert (await api.failure("POST", "/topics", wanted))[0] == 409
    assert (await api.ask("POST", "/topics", {"name": "by-default"}))["partitions"] == 1


WRONG_TOPICS: Final[list[Any]] = [
    ({"name": "a/b"}, 400, "Topic name is invalid"),
    ({"name": "n", "configs": {"nope": "1"}}, 400, "Unknown topic config name: nope"),
    ({"name": "n", "partitions": 0}, 400, "partitions: Input should be greater than or equal to 1"),
    ({"name": "n", "partition": 1}, 400, "partition: Extra inputs are not permitted"),
    ({"partitions": 1}, 400, "name: Field required"),
    ([], 400, "the body: Input should be"),
]


async def test_a_wrong_topic_is_refused_in_one_line(api: ApiClient) -> None:
    for body, status, reason in WRONG_TOPICS:
        found, text = await api.failure("POST", "/topics", body)
        assert (found, text.startswith(reason)) == (status, True), text


async def test_a_topic_is_altered(api: ApiClient, node: Node) -> None:
    wanted = {"partitions": 4, "configs": {"retention.ms": "1000", "cleanup.policy": None}}
    changes = [
        {"what": "retention.ms", "from": None, "to": "1000"},
        {"what": "partitions", "from": "2", "to": "4"},
    ]
    assert await api.ask("PATCH", "/topics/t", {**wanted, "validate_only": True}) == {"changes": changes}
    topic = node.serving.topics.get("t")
    assert topic is not None
    assert (len(topic.info.partitions), topic.config.retention_ms) == (2, -1)
    assert await api.ask("PATCH", "/topics/t", wanted) == {"changes": changes}
    assert await api.ask("PATCH", "/topics/t", wanted) == {"changes": []}
    topic = node.serving.topics.get("t")
    assert topic is not None
    assert (len(topic.info.partitions), topic.config.retention_ms) == (4, 1000)
    (config,) = [each for each in (await api.get("/topics/t"))["configs"] if each["name"] == "retention.ms"]
    assert (config["value"], config["default"], config["is_own"]) == ("1000", "-1", True)
    back = await api.ask("PATCH", "/topics/t", {"configs": {"retention.ms": None}})
    assert back == {"changes": [{"what": "retention.ms", "from": "1000", "to": None}]}


async def test_an_alteration_that_is_refused_in_part_changes_nothing(api: ApiClient, node: Node) -> None:
    status, _ = await api.failure("PATCH", "/topics/t", {"partitions": 1, "configs": {"retention.ms": "1000"}})
    assert status == 400
    topic = node.serving.topics.get("t")
    assert topic is not None
    assert topic.config.retention_ms == -1
    assert (await api.failure("PATCH", "/topics/t", {"configs": {"retention.ms": "x"}}))[0] == 400
    assert (await api.failure("PATCH", "/topics/u", {"partitions": 3}))[0] == 404


async def test_a_topic_is_planned_and_deleted(api: ApiClient, node: Node, client: RawClient) -> None:
    await client.produce("t", [batch_of(b"1", b"2")])
    await commit(client, "g", 1)
    await node.serving.storage.flush()
    plan = await api.ask("DELETE", "/topics/t", validate_only="true")
    assert (plan["records"], plan["partitions"], plan["groups"]) == (2, 2, ["g"])
    assert plan["bytes"] > 0
    assert node.serving.topics.get("t") is not None
    assert await api.ask("DELETE", "/topics/t", {}) == plan, "an empty body is allowed"
    assert node.serving.topics.get("t") is None
    assert (await api.failure("DELETE", "/topics/t"))[0] == 404
    assert (await api.failure("DELETE", "/topics/__consumer_offsets"))[0] == 400


# records


async def test_a_record_is_produced_and_consumed(api: ApiClient, node: Node) -> None:
    record = {"key": "k", "value": "ü", "headers": [{"name": "h", "value": "x"}, {"name": "n"}], "partition": 1}
    found = await api.ask("POST", "/topics/t/records", record)
    assert (found["partition"], found["offset"]) == (1, 0)
    binary = {"value": base64.b64encode(b"\xff").decode(), "encoding": "base64", "partition": 1}
    assert (await api.ask("POST", "/topics/t/records", binary))["offset"] == 1
    await api.ask("POST", "/topics/t/records", {"key": "k", "partition": 1})

    def consume() -> list[Message]:
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe(["t"])
            return consumer.consume(3, 30)
        finally:
            consumer.close()

    first, second, third = await to_thread(consume)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", "ü".encode(), found["timestamp_ms"])
    assert first.headers() == [("h", b"x"), ("n", None)]
    assert (second.key(), second.value()) == (None, b"\xff")
    assert (third.key(), third.value()) == (b"k", None)


async def test_a_key_goes_where_other_clients_send_it(api: ApiClient, node: Node) -> None:
    await node.serving.topic_commands.create("many", partitions=7, configs={})
    keys = ["", "a", "ab", "abc", "abcd", "key-12", "a-little-bit-longer-key", "ü"]
    by_key: dict[bytes, int] = {}

    def note(_: object, sent: Message) -> None:
        by_key[sent.key() or b""] = sent.partition() or 0

    def send() -> None:
        producer = Producer({"bootstrap.servers": node.bootstrap, "partitioner": "murmur2"})
        for key in keys:
            producer.produce("many", b"", key, on_delivery=note)
        assert producer.flush(30) == 0

    await to_thread(send)
    for key in keys[1:]:  # librdkafka sends an empty key anywhere
        produced = await api.ask("POST", "/topics/many/records", {"key": key})
        assert produced["partition"] == by_key[key.encode()]
    assert partition_of_key(b"21", 2**31) == -973_932_308 & 0x7FFF_FFFF, "Apache Kafka's own example"
    keyless = {(await api.ask("POST", "/topics/many/records", {"value": "v"}))["partition"] for _ in range(7)}
    assert keyless == set(range(7))


WRONG_RECORDS: Final[list[Any]] = [
    ("t", {"value": "?", "encoding": "base64"}, 400, "value: not base64"),
    ("t", {"value": "", "partition": 2}, 404, "partition 2 of topic t does not exist"),
    ("u", {"value": ""}, 404, "topic u does not exist"),
    ("t", {"value": 1}, 400, "value: Input should be a valid string"),
    ("t", {"key": "x" * 70_000}, 400, "key: String should have at most 65536 characters"),
    ("__consumer_offsets", {"value": "", "partition": 0}, 400, ""),
]


async def test_a_wrong_record_is_refused_in_one_line(api: ApiClient, node: Node) -> None:
    await node.serving.internal_topics.ensure(OFFSETS_TOPIC)
    for path, body, status, reason in WRONG_RECORDS:
        found, text = await api.failure("POST", f"/topics/{path}/records", body)
        assert (found, text.startswith(reason)) == (status, True), (found, text)


# groups


RESETS: Final[list[Any]] = [
    ({"to": "earliest"}, {0: (2, 0, 4), 1: (1, 0, 2)}),
    ({"to": "latest"}, {0: (2, 4, 0), 1: (1, 2, 0)}),
    ({"to": "latest", "topic": "t", "partitions": [1]}, {1: (1, 2, 0)}),
    ({"to": "offset", "value": 3}, {0: (2, 3, 1), 1: (1, 2, 0)}),
    ({"to": "offset", "value": 1}, {0: (2, 1, 3)}),
    ({"to": "shift", "value": -1}, {0: (2, 1, 3), 1: (1, 0, 2)}),
    ({"to": "shift", "value": 10}, {0: (2, 4, 0), 1: (1, 2, 0)}),
    ({"to": "time", "value": BASE_MS + 1}, {0: (2, 1, 3)}),
    ({"to": "time", "value": BASE_MS + 10}, {0: (2, 4, 0), 1: (1, 2, 0)}),
]


async def test_offsets_are_planned_and_reset(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch_of(*[b"v"] * 4)])
    await client.produce("t", [batch_of(*[b"v"] * 2)], partition=1)
    for wanted, changes in RESETS:
        await commit(client, "g", 2, 1)
        expected = [
            {"topic": "t", "partition": index, "from": before, "to": after, "lag": lag}
            for index, (before, after, lag) in changes.items()
        ]
        committed = [2, 1]
        assert await api.ask("POST", "/groups/g/reset", {**wanted, "validate_only": True}) == {"changes": expected}
        assert [each["committed"] for each in (await api.get("/groups/g"))["offsets"]] == committed
        assert await api.ask("POST", "/groups/g/reset", wanted) == {"changes": expected}
        for index, (_, after, _) in changes.items():
            committed[index] = after
        assert [each["committed"] for each in (await api.get("/groups/g"))["offsets"]] == committed


async def test_offsets_of_a_topic_that_the_group_has_not_read(api: ApiClient, client: RawClient, node: Node) -> None:
    await node.serving.topic_commands.create("other", partitions=1, configs={})
    await client.produce("other", [batch_of(b"1")])
    await commit(client, "g", 0)
    found = await api.ask("POST", "/groups/g/reset", {"topic": "other", "to": "latest"})
    assert found == {"changes": [{"topic": "other", "partition": 0, "from": None, "to": 1, "lag": 0}]}
    assert await api.ask("POST", "/groups/g/reset", {"topic": "other", "to": "latest"}) == {"changes": []}


WRONG_RESETS: Final[list[Any]] = [
    ({"to": "offset"}, 400, "the body: `to` is 'offset': a `value` is needed"),
    ({"to": "earliest", "value": 1}, 400, "the body: `to` is 'earliest': there is no `value`"),
    ({"to": "time", "value": -1}, 400, "the body: `value` is negative"),
    ({"to": "latest", "partitions": [0]}, 400, "the body: `partitions` needs a `topic`"),
    ({"to": "latest", "topic": "u"}, 404, "topic u does not exist"),
    ({"to": "latest", "topic": "t", "partitions": [9]}, 404, "partition 9 of topic t does not exist"),
    ({"to": "now"}, 400, "to: Input should be"),
]


async def test_a_wrong_reset_is_refused_in_one_line(api: ApiClient, client: RawClient) -> None:
    await commit(client, "g", 0)
    for body, status, reason in WRONG_RESETS:
        found, text = await api.failure("POST", "/groups/g/reset", body)
        assert (found, text.startswith(reason)) == (status, True), text


async def test_a_group_is_planned_and_deleted(api: ApiClient, client: RawClient) -> None:
    await commit(client, "g", 0, 0)
    assert await api.ask("DELETE", "/groups/g", validate_only="true") == {"offsets": 2}
    assert [each["group_id"] for each in (await api.get("/groups"))["groups"]] == ["g"]
    assert await api.ask("DELETE", "/groups/g", {}) == {"offsets": 2}
    assert (await api.get("/groups"))["groups"] == []
    gone = (404, "group g does not exist")
    assert await api.failure("DELETE", "/groups/g") == gone
    assert await api.failure("POST", "/groups/g/reset", {"to": "latest"}) == gone


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_members_is_left_alone(api: ApiClient, node: Node, protocol: str) -> None:
    await api.ask("POST", "/topics/t/records", {"value": "v"})
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["t"])
        assert await to_thread(consumer.poll, 30) is not None
        refused = (409, "the group 'g' has 1 member: stop its consumers first")
        assert await api.failure("DELETE", "/groups/g") == refused
        assert await api.failure("POST", "/groups/g/reset", {"to": "latest", "validate_only": True}) == refused
        await to_thread(consumer.commit, asynchronous=False)
    finally:
        await to_thread(consumer.close)
    await api.ask("POST", "/groups/g/reset", {"to": "earliest"})
    await api.ask("DELETE", "/groups/g")


# who may, and what is recorded


CHANGES = [
    ("POST", "/topics", {"name": "new"}),
    ("PATCH", "/topics/t", {"partitions": 3}),
    ("DELETE", "/topics/t", None),
    ("POST", "/topics/t/records", {"value": "v"}),
    ("POST", "/groups/g/reset", {"to": "latest"}),
    ("DELETE", "/groups/g", None),
]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, **TOKENS) as node:
        await node.serving.topic_commands.create("t", partitions=2, configs={})
        yield node


async def test_readers_change_nothing(guarded: Node) -> None:
    async with api_client(guarded, READ) as api:
        for method, path, body in CHANGES:
            assert await api.failure(method, path, body) == (403, "this token or certificate may only read")
    async with api_client(guarded) as api:
        for method, path, body in CHANGES:
            assert (await api.failure(method, path, body))[0] == 401
    assert {topic.name for topic in guarded.serving.topics} == {"t"}


async def test_changes_are_audit_events_and_plans_are_none(guarded: Node) -> None:
    async with api_client(guarded, OPERATE) as api:
        with capture_logs() as logs:
            await api.ask("POST", "/topics", {"name": "new", "validate_only": True})
            await api.ask("DELETE", "/topics/t", validate_only="true")
        assert [each for each in logs if "principal" in each] == []
        with capture_logs() as logs:
            await api.ask("POST", "/topics", {"name": "new"})
            await api.failure("POST", "/topics", {"name": "new"})
        events = [each for each in logs if each.get("principal") == "Token:operate"]
        assert [(each["event"], each.get("api"), each.get("action"), each["outcome"]) for each in events] == [
            ("changed", "CreateTopics", None, "OK"),
            ("changed", None, "POST /api/v1/topics", "OK"),
            ("change refused", "CreateTopics", None, "TOPIC_ALREADY_EXISTS"),
            ("change refused", None, "POST /api/v1/topics", "CONFLICT"),
        ]
        assert {each["host"] for each in events} == {"127.0.0.1"}


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_form_of_a_page_changes_nothing(api: ApiClient, node: Node, content_type: str) -> None:
    async with api.session.post(
        "/api/v1/topics", data=b'{"name": "new"}', headers={"Content-Type": content_type}
    ) as response:
        assert response.status == 415
        assert await response.json() == {"error": "the Content-Type must be application/json"}
    async with api.session.post(
        "/api/v1/topics", json={"name": "new"}, headers={"Origin": "http://evil.example"}
    ) as response:
        assert response.status == 403
    assert node.serving.topics.get("new") is None


async def test_a_body_that_is_no_json_is_refused_in_one_line(api: ApiClient) -> None:
    headers = {"Content-Type": "application/json"}
    for body, status in ((b"{", 400), (b"\xff", 400), (b"", 400), (io.BytesIO(b"x" * (3 << 20)), 413)):
        async with api.session.post("/api/v1/topics", data=body, headers=headers) as response:
            assert response.status == status
            (reason,) = (await response.json()).values()
            assert "\n" not in reason


async def test_changes_reach_the_nodes_that_lead_and_coordinate(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, second):
        await first.serving.topic_commands.create("t", partitions=2, configs={})
        await until(lambda: second.serving.topics.get("t") is not None, timeout_s=60, pause_s=0.01)
        coordinator = 0
        for node in (first, second):
            async with api_client(node) as api, raw_client(node.bootstrap) as client:
                for index in (0, 1):
                    await api.ask("POST", "/topics/t/records", {"value": "v", "partition": index})
                while coordinator <= 0:
                    answer = await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
                    coordinator = answer.coordinators[0].node_id
        own, other = (first, second) if coordinator == first.serving.node_id else (second, first)
        async with raw_client(own.bootstrap) as client, api_client(other) as api:
            await commit(client, "g", 0, 0)
            changes = (await api.ask("POST", "/groups/g/reset", {"to": "latest"}))["changes"]
            assert [(each["from"], each["to"], each["lag"]) for each in changes] == [(0, 2, 0), (0, 2, 0)]
            assert await api.ask("DELETE", "/groups/g") == {"offsets": 2}
