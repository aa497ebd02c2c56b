"""Attempts of a stranger on the open port, one after the other, while another client is served all the time."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.logging.line_limit import LINES_MAX, LineLimit
from anabranch.protocol.codec import encode
from anabranch.protocol.decoder import ELEMENTS_MAX
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.registry import APIS
from tests.fuzz.messages import random_message
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client, request_frame

pytestmark = pytest.mark.slow

STRANGE_NAMES = (
    "", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\nb", "a\0b", "\x1b[2J", "a b", "\u00e9", "\u202e", "x" * 250
)  # fmt: skip


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


@pytest.fixture
async def other(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as client:
        yield client


def check_files(folder: Path) -> set[str]:
    """Paths of all files in a node's folder, none of which bears a stranger's name."""
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert all(re.fullmatch(r"data/[A-Za-z0-9._/-]+", path) for path in paths), paths
    assert not (folder.parent / "x").exists()
    return paths


async def assert_served(node: Node, other: RawClient) -> None:
    answer = await other.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    assert answer.error_code == ErrorCode.NONE
    assert node.serving.request_failures == 0


async def test_an_array_bomb_of_any_api_closes_its_connection_only(node: Node, other: RawClient) -> None:
    for key, handler in HANDLERS.items():
        api, chance = APIS[key], Random(key)
        for version in {max(api.min_version, handler.min_version), handler.max_version}:
            body = encode(random_message(api.request, version, chance), version)
            bomb = b"\xff\xff\xff\xff\x07" if api.is_flexible(version) else b"\x7f\xff\xff\xff"
            for at in {0, len(body) // 2, max(0, len(body) - 4)}:
                async with raw_client(node.bootstrap) as client:
                    client.send_bytes(request_frame(key, version, body[:at] + bomb * 3))
                    client.send_bytes(request_frame(4242, 0, b""))  # closes the connection, should it be open
                await assert_served(node, other)
        assert node.ports.clients.bytes_held == 0, api.name


async def test_a_flood_of_garbage_is_a_few_lines_of_the_log(node: Node, other: RawClient) -> None:
    now_s = [0.0]
    node.ports.clients.warnings = LineLimit(lambda: now_s[0])
    with capture_logs() as logs:
        for _ in range(LINES_MAX + 10):
            async with raw_client(node.bootstrap) as client:
                client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
                assert await client.closed()
        now_s[0] = 60
        async with raw_client(node.bootstrap) as client:
            client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert await client.closed()
    lines = [line for line in logs if line["event"] == "connection closed"]
    assert [line.get("left_out") for line in lines] == [None] * LINES_MAX + [10]
    assert node.ports.clients.stats.closed_bad_input == LINES_MAX + 11
    await assert_served(node, other)


async def test_more_elements_than_the_limit_close_the_connection(node: Node, other: RawClient) -> None:
    names = (ELEMENTS_MAX + 1).to_bytes(4, "big") + b"\0\1t" * (ELEMENTS_MAX + 1)
    async with raw_client(node.bootstrap) as client:
        client.send_bytes(request_frame(3, 1, names))
        assert await client.closed()
    assert node.ports.clients.stats.closed_bad_input == 1
    await assert_served(node, other)


async def test_strange_names_of_topics_are_refused(node: Node, other: RawClient, tmp_path: Path) -> None:
    for name in STRANGE_NAMES:
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        created = await other.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 7)
        assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
        found = await other.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 9)
        assert found.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
        produced = await other.produce(name, [batch_of(b"x")])
        assert produced.responses[0].partition_responses[0].error_code in {
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }, name
        assert not list(node.serving.topics)
        check_files(tmp_path)


async def test_strange_names_of_groups_and_transactions_are_names_and_nothing_else(tmp_path: Path) -> None:
    topic = OffsetCommitRequestTopic(
        name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_metadata="../m\n\x1b[2J")]
    )
    names = [name for name in STRANGE_NAMES if name]
    async with running_node(tmp_path, group_offsets_partitions=1, transaction_state_partitions=1) as node:
        for name in names:
            async with raw_client(node.bootstrap, client_id=name) as client:
                await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
                for kind in (0, 1):
                    await client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[name]), 4)
                committed = await client.call(
                    OffsetCommitRequest(group_id=name, generation_id_or_member_epoch=-1, topics=[topic]), 8
                )
                assert committed.topics[0].partitions[0].error_code == ErrorCode.NONE
                begun = await client.call(
                    InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000, producer_id=-1), 4
                )
                assert begun.error_code == ErrorCode.NONE
        await node.serving.storage.flush()
        assert node.serving.request_failures == 0
        found = check_files(tmp_path)
    assert any(path.startswith("data/objects/") for path in found), "objects have been written"
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["../x"]), 4)
        while not (groups := (await client.call(ListGroupsRequest())).groups):
            pass  # they are being loaded
        assert {group.group_id for group in groups} == set(names), "they are read again as they were"
