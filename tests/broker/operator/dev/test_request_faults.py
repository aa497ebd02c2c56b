"""Faults of requests, in a node of this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.dev.request_faults import RequestFaults, with_error
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import create_topics
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.registry import APIS
from anabranch.protocol.wire import schema_of
from tests.support.node import settings_for
from tests.support.raw_client import RawClient, batch_of, produce_request, raw_client

CODE = ErrorCode.POLICY_VIOLATION


@pytest.fixture
def faults() -> RequestFaults:
    return RequestFaults()


@pytest.fixture(params=[False, True], ids=["open", "authorizer"])
async def node(request: pytest.FixtureRequest, tmp_path: Path, faults: RequestFaults) -> AsyncIterator[Node]:
    settings = settings_for(tmp_path, authorizer_enabled=request.param, authorizer_super_users="User:ANONYMOUS")
    async with run_node(settings, environment=Environment(wrap_handlers=faults.wrap)) as running:
        await running.serving.topic_commands.ensure("t", partitions=1, configs={})
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


def codes(part: Any) -> Iterator[int]:
    """Yield all error codes of a response."""
    for each in fields(part):
        value = getattr(part, each.name)
        if each.name == "error_code":
            yield value
        elif isinstance(value, list | tuple):
            for inner in filter(is_dataclass, value):
                yield from codes(inner)


def fetch(*, wait_ms: int = 0) -> FetchRequest:
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic="t", partitions=wanted)])


def creation(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)])


REQUESTS: dict[str, tuple[Callable[[], Any], int]] = {
    "Produce": (lambda: produce_request("t", [batch_of(b"x")]), 9),
    "Fetch": (fetch, 12),
    "Metadata": (lambda: MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12),
    "Metadata of all": (lambda: MetadataRequest(topics=None), 12),
    "CreateTopics": (lambda: creation("new"), 7),
    "FindCoordinator": (lambda: FindCoordinatorRequest(coordinator_keys=["g"]), 4),
    "FindCoordinator, old": (lambda: FindCoordinatorRequest(key="g"), 3),
    "Heartbeat": (lambda: HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    "InitProducerId": (lambda: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4),
    "ListGroups": (ListGroupsRequest, 4),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("applied", [False, True])
async def test_requests_of_any_kind_fail(client: RawClient, faults: RequestFaults, name: str, applied: bool) -> None:
    make, version = REQUESTS[name]
    key = next(each.key for each in APIS.values() if each.request is type(make()))
    faults.fail(key, CODE, times=2, applied=applied)
    for _ in range(2):
        assert CODE in codes(await client.call(make(), version))
    assert CODE not in codes(await client.call(make(), version))


@pytest.mark.parametrize("applied", [False, True])
async def test_only_an_applied_request_changes_something(
    node: Node, client: RawClient, faults: RequestFaults, applied: bool
) -> None:
    faults.fail(create_topics.KEY, CODE, times=1, applied=applied)
    await client.call(creation("new"), 7)
    assert (node.serving.topics.get("new") is not None) == applied


async def test_requests_without_an_answer_do_not_count(client: RawClient, faults: RequestFaults) -> None:
    faults.fail(0, CODE, times=1, applied=False)
    client.send(produce_request("t", [batch_of(b"x")], acks=0), 9)
    assert CODE in codes(await client.call(produce_request("t", [batch_of(b"y")]), 9))
    (data,) = (await client.call(fetch(wait_ms=10_000), 12)).responses[0].partitions
    assert b"x" in bytes(data.records)
    assert b"y" not in bytes(data.records)


async def test_delayed_requests_are_answered_and_those_behind_them_wait(
    client: RawClient, faults: RequestFaults
) -> None:
    faults.delay(0, 0.001, times=1)
    faults.delay(create_topics.KEY, 0.001, times=1)
    first = client.send(creation("new"), 7)
    second = client.send(produce_request("t", [batch_of(b"x")]), 9)
    third = client.send(fetch(), 12)
    assert (await client.receive(CreateTopicsRequest, 7))[0] == first
    assert (await client.receive(type(produce_request("t", [])), 9))[0] == second
    answered, response = await client.receive(FetchRequest, 12)
    assert answered == third
    assert b"x" in bytes(response.responses[0].partitions[0].records)


async def test_a_client_is_told_to_wait(client: RawClient, faults: RequestFaults) -> None:
    faults.throttle(1, 1, times=1)
    assert (await client.call(fetch(), 12)).throttle_time_ms == 1
    assert (await client.call(fetch(), 12)).throttle_time_ms == 0


@pytest.mark.parametrize("applied", [False, True])
async def test_a_dropped_request_ends_its_connection(
    node: Node, client: RawClient, faults: RequestFaults, applied: bool
) -> None:
    faults.drop(create_topics.KEY, times=1, applied=applied)
    with pytest.raises(asyncio.IncompleteReadError):
        await client.call(creation("new"), 7)
    assert (node.serving.topics.get("new") is not None) == applied


async def test_all_that_is_asked_for_ends_together(node: Node, client: RawClient, faults: RequestFaults) -> None:
    faults.fail(1, CODE, times=5, applied=False)
    faults.is_cut = True
    with pytest.raises(asyncio.IncompleteReadError):
        await client.call(fetch(), 12)
    faults.clear()
    async with raw_client(node.bootstrap) as other:
        assert CODE not in codes(await other.call(fetch(), 12))


def has_place(message: type) -> bool:
    """Return whether a type of message has an error code, at any depth."""
    found = schema_of(message).fields
    return any(each.name == "error_code" for each in found) or any(
        has_place(each.element) for each in found if is_dataclass(each.element)
    )


def test_an_error_stands_in_the_innermost_parts() -> None:
    assert [each.name for each in APIS.values() if not has_place(each.response)] == []
    assert with_error(ListGroupsRequest(), CODE) == ListGroupsRequest(), "nothing has a place for it"
