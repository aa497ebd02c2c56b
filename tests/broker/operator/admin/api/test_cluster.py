"""The JSON API of one node shows what only other nodes know, and says which of them have not answered."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.api.handlers import HANDLERS, local
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.operator.admin.api import calls, cluster, endpoints, figures
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import api_versions, list_groups, metadata
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.internal.relay import RelayRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.admin_api import ApiClient, api_client
from tests.support.node import running_nodes
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

GROUPS, TRANSACTIONS = 0, 1
LOADING = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
NAMES = [f"name-{at}" for at in range(20)]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    shards: dict[str, Any] = {"group_offsets_partitions": 4, "transaction_state_partitions": 4}
    async with running_nodes(tmp_path, 2, **shards) as (first, second):
        await first.serving.topic_commands.create("t", partitions=2, configs={})
        await until(lambda: second.serving.topics.get("t") is not None, timeout_s=60, pause_s=0.01)
        await until(lambda: {led(first), led(second)} == {0, 1}, timeout_s=60, pause_s=0.01)
        yield [first, second]


@pytest.fixture
async def api(nodes: list[Node]) -> AsyncIterator[ApiClient]:
    async with api_client(nodes[0]) as client:
        yield client


def led(node: Node) -> int:
    """The partition of the topic that a node leads."""
    topic = node.serving.topics.get("t")
    found = [] if topic is None else [at for at, each in enumerate(topic.partitions) if each is not None]
    return found[0] if len(found) == 1 else -1


async def coordinated_by(node: Node, kind: int, client: RawClient) -> str:
    """A name whose coordinator is the node."""
    while True:
        answer = await client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=NAMES), 4)
        found = [
            each.key for each in answer.coordinators if not each.error_code and each.node_id == node.serving.node_id
        ]
        if found:
            return str(found[0])


async def commit(client: RawClient, group: str) -> None:
    where = [
        OffsetCommitRequestPartition(partition_index=at, committed_offset=1, committed_metadata=None) for at in (0, 1)
    ]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=where)])
    errors: set[int] = {-1}
    while errors != {0}:  # the coordinator may still be loading
        (topic,) = (await client.call(request, 9)).topics
        errors = {each.error_code for each in topic.partitions}
        assert errors <= {0, 14, 16}


async def test_one_node_shows_what_others_lead_and_coordinate(nodes: list[Node], api: ApiClient) -> None:
    first, second = nodes
    async with raw_client(first.bootstrap) as own, raw_client(second.bootstrap) as other:
        await own.produce("t", [batch_of(b"1", b"2")], partition=led(first))
        await other.produce("t", [batch_of(b"3", b"4", b"5")], partition=led(second))
        group = await coordinated_by(second, GROUPS, other)
        await commit(other, group)
        transaction = await coordinated_by(second, TRANSACTIONS, other)
        request = InitProducerIdRequest(transactional_id=transaction, transaction_timeout_ms=60_000)
        while (await other.call(request, 4)).error_code:
            pass  # it is still loading
    found = await api.get("/cluster")
    assert [(row["id"], row["state"], row["self"]) for row in found["nodes"]] == [(1, "up", True), (2, "up", False)]
    assert (found["groups"], found["unreachable"]) == (1, [])
    (row,) = [row for row in (await api.get("/topics"))["topics"] if row["name"] == "t"]
    assert (row["leaders"], row["records"], row["end_offsets"]) == ([1, 2], 5, 5)
    assert row["bytes"] == len(batch_of(b"1", b"2")) + len(batch_of(b"3", b"4", b"5"))
    topic = await api.get("/topics/t")
    ends = {each["index"]: each["high_watermark"] for each in topic["partitions"]}
    assert ends == {led(first): 2, led(second): 3}
    assert topic["groups"] == [{"group_id": group, "lag": 3}]
    (listed,) = (await api.get("/groups"))["groups"]
    assert (listed["group_id"], listed["coordinator"], listed["lag"]) == (group, second.serving.node_id, 3)
    assert (await api.get(f"/groups/{group}"))["lag"] == 3
    (found,) = (await api.get("/transactions"))["transactions"]
    assert (found["transactional_id"], found["coordinator"]) == (transaction, second.serving.node_id)
    records = (await api.get("/topics/t/records", from_="earliest"))["records"]
    assert sorted(each["value"]["text"] for each in records) == ["1", "2", "3", "4", "5"]
    storage = await api.get(f"/topics/t/partitions/{led(second)}/storage")
    assert (storage["leader"], storage["end_offset"], storage["unreachable"]) == (second.serving.node_id, 3, [])
    assert [(run["base_offset"], run["end_offset"]) for run in storage["wal"]] == [(0, 3)]


async def test_nodes_that_do_not_answer_are_named(
    nodes: list[Node], api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    async with raw_client(first.bootstrap) as own, raw_client(second.bootstrap) as other:
        await own.produce("t", [batch_of(b"1")], partition=led(first))
        group = await coordinated_by(second, GROUPS, other)
        await commit(other, group)

    asked = 0

    async def away(node_id: int, *_: object) -> Any:
        nonlocal asked
        asked += 1
        raise PeerUnavailable(f"node {node_id}: connection refused")

    monkeypatch.setattr(calls, "SILENCE_S", 600)
    assert first.serving.links is not None
    monkeypatch.setattr(first.serving.links, "call", away)
    assert (await api.get("/cluster"))["unreachable"] == [second.serving.node_id]
    assert asked == 1
    topics = await api.get("/topics")
    (row,) = [row for row in topics["topics"] if row["name"] == "t"]
    assert (row["records"], row["bytes"], topics["unreachable"]) == (None, None, [second.serving.node_id])
    topic = await api.get("/topics/t")
    assert topic["unreachable"] == [second.serving.node_id]
    assert {each["index"]: each["error"] for each in topic["partitions"]} == {
        led(first): None,
        led(second): "its leader has not answered",
    }
    assert asked == 1, "it is left alone for a while"
    groups = await api.get("/groups")
    assert (groups["groups"], groups["unreachable"]) == ([], [second.serving.node_id])
    assert await api.failure("GET", f"/groups/{group}") == (503, f"node {second.serving.node_id}: connection refused")
    found = await api.get("/topics/t/records", from_="earliest")
    assert [each["value"]["text"] for each in found["records"]] == ["1"]
    assert (found["errors"], found["end"]) == ([f"partition {led(second)}: its leader has not answered"], False)
    assert found["unreachable"] == [second.serving.node_id]
    storage = await api.get(f"/topics/t/partitions/{led(second)}/storage")
    assert (storage["unreachable"], storage["wal"]) == ([second.serving.node_id], [])


async def test_a_node_relays_only_what_leaders_and_coordinators_answer(nodes: list[Node]) -> None:
    first, second = nodes
    assert first.serving.links is not None
    refused = ((metadata.KEY, 12), (api_versions.KEY, 3), (31_000, 0), (16, 99))
    for key, version in refused:
        request = RelayRequest(api_key=key, api_version=version, principal="User:a", host="h", body=b"")
        answer = await first.serving.links.call(second.serving.node_id, request, 0)
        assert answer.failure == f"API key {key} in version {version} is not relayed"
    request = RelayRequest(api_key=16, api_version=5, principal="User:a", host="h", body=b"\xff")
    answer = await first.serving.links.call(second.serving.node_id, request, 0)
    assert answer.failure
    assert not answer.body


async def test_a_relayed_request_ends_in_limited_time(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    handler = replace(HANDLERS[list_groups.KEY], function=hang)
    requests = LocalRequests(nodes[0].serving, {list_groups.KEY: handler}, is_stopping=lambda: False)
    monkeypatch.setattr(local, "RELAYED_S", 0.01)
    answer = await requests.relay(RelayRequest(api_key=list_groups.KEY, api_version=0, principal="", host="", body=b""))
    assert answer.failure == "ListGroups has taken longer than 0.01 s"


async def test_an_answer_ends_in_limited_time(
    nodes: list[Node], api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(endpoints, "ANSWER_TIMEOUT_S", 0.01)
    monkeypatch.setattr(nodes[0].serving.catalog, "find_ranges", hang)
    reason = "no answer in time: look what is there, and try again"
    assert await api.failure("GET", f"/topics/t/partitions/{led(nodes[0])}/storage") == (504, reason)


async def test_figures_of_all_nodes_are_shown(nodes: list[Node], api: ApiClient) -> None:
    second = nodes[1]
    async with raw_client(second.bootstrap) as other:
        await other.produce("t", [batch_of(b"1")], partition=led(second))
        found = await api.get("/cluster/figures")
        assert ([each["node"] for each in found["nodes"]], found["unreachable"]) == ([1, 2], [])
        own, its = found["nodes"]
        assert (own["connections"], own["received_bytes"]) == (0, 0)
        assert (its["connections"], its["requests"]) == (1, 1)
        assert its["received_bytes"] == second.ports.clients.bytes_in > 0
        assert 0 < its["log_used_bytes"] <= its["log_capacity_bytes"] == second.wal.capacity_bytes
        assert its["started_ms"] <= its["at_ms"] <= second.serving.now_ms()
        assert 0 < its["memory_bytes"] < its["memory_available_bytes"] == second.memory.available_bytes
        assert 0 < its["disk_free_bytes"] < its["disk_total_bytes"]
        await other.produce("t", [batch_of(b"2")], partition=led(second))
        _, later = (await api.get("/cluster/figures"))["nodes"]
    assert later["requests"] == its["requests"] + 1
    assert later["cpu_ms"] >= its["cpu_ms"] > 0


async def test_a_node_that_hangs_holds_up_neither_the_headline_nor_figures(
    nodes: list[Node], api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    async with raw_client(first.bootstrap) as client:
        await commit(client, await coordinated_by(first, GROUPS, client))

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(calls, "SILENCE_S", 0)
    monkeypatch.setattr(cluster, "GROUPS_TIMEOUT_S", 0.01)
    monkeypatch.setattr(figures, "TIMEOUT_S", 0.01)
    monkeypatch.setattr(first.serving.links, "call", hang)
    found = await api.get("/cluster")
    assert (found["groups"], found["unreachable"]) == (1, [second.serving.node_id])
    found = await api.get("/cluster/figures")
    assert ([each["node"] for each in found["nodes"]], found["unreachable"]) == ([1], [second.serving.node_id])


async def test_a_transaction_is_aborted_by_its_coordinator_on_another_node(nodes: list[Node], api: ApiClient) -> None:
    first, second = nodes
    async with raw_client(first.bootstrap) as own, raw_client(second.bootstrap) as other:
        name = await coordinated_by(second, TRANSACTIONS, other)
        begin = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        while (producer := await other.call(begin, 4)).error_code:
            assert producer.error_code in LOADING
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
        )
        (added,) = (await other.call(add, 3)).results_by_topic_v3_and_below
        assert [each.partition_error_code for each in added.results_by_partition] == [0, 0]
        batch = batch_of(
            b"1",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL_MASK,
        )
        data = [PartitionProduceData(index=led(first), records=bytes(batch))]
        produce = ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="t", partition_data=data)],
        )
        assert (await own.call(produce, 9)).responses[0].partition_responses[0].error_code == 0
        path = f"/transactions/{name}/abort"
        plan = await api.ask("POST", path, validate_only="true")
        assert (plan["state"], plan["coordinator"], len(plan["partitions"])) == ("Ongoing", second.serving.node_id, 2)
        partition = first.serving.topics.partition("t", led(first))
        assert partition.last_stable_offset == 0, "a plan changes nothing"
        assert await api.ask("POST", path) == plan
        assert partition.last_stable_offset == partition.high_watermark == 2, "the marker is written"
        assert (await own.call(produce, 9)).responses[0].partition_responses[0].error_code, "the producer is fenced"
        (row,) = (await api.get("/transactions"))["transactions"]
        assert row["state"] in {"Empty", "CompleteAbort"}
        status, reason = await api.failure("POST", path)
        assert (status, reason.rpartition(":")[0]) == (
            409,
            f"transactional id {name} has no transaction that can be aborted",
        )
    assert await api.failure("POST", "/transactions/nope/abort") == (404, "transactional id nope does not exist")


async def test_partitions_are_moved_and_elected_back(nodes: list[Node], api: ApiClient) -> None:
    first, second = nodes
    moved = led(second)
    assert await api.get("/cluster/election") == {"moves": [], "more": False}
    order = {"to": 1, "topic": "t", "partitions": [moved]}
    assert await api.ask("POST", "/topics/t/moves", to=1, partitions=moved, validate_only="true") == order
    assert (await api.get("/cluster/status"))["moves"] == [], "a plan changes nothing"
    plan = await api.ask("POST", "/nodes/2/drain", validate_only="true")
    assert (plan["draining"], plan["leads"]) == (False, len(first.serving.move_requests.led_by(2)))
    await api.ask("POST", "/nodes/2/drain")
    await until(lambda: not first.serving.move_requests.led_by(2), timeout_s=60, pause_s=0.01)
    assert (await api.ask("DELETE", "/nodes/2/drain", validate_only="true"))["draining"]
    assert not (await api.ask("DELETE", "/nodes/2/drain"))["draining"]
    plan = await api.get("/cluster/election")
    (move,) = [each for each in plan["moves"] if each["topic"] == "t"]
    assert move == {"topic": "t", "partition": moved, "from": 1, "to": 2}
    assert await api.ask("POST", "/cluster/election") == plan
    await until(lambda: led(second) == moved, timeout_s=60, pause_s=0.01)
