"""Malformed frames: each gets the response that Kafka gives, and the node continues to serve other clients."""

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.cluster.node import Node
from anabranch.protocol.codec import decode, encode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import KEY as PRODUCE
from anabranch.protocol.messages.produce import ProduceRequest
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, produce_request, raw_client, request_frame
from tests.support.waiting import until

API_VERSIONS = 18
METADATA = 3


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, network_request_bytes_max=1 << 20, network_node_bytes_max=1 << 22) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


async def assert_serves(node: Node) -> None:
    async with raw_client(node.bootstrap) as other:
        response = await other.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert response.error_code == ErrorCode.NONE


GARBAGE = {
    "size above the limit": struct.pack(">i", (1 << 20) + 1),
    "size far above the limit": struct.pack(">i", 2**31 - 1),
    "negative size": struct.pack(">i", -1),
    "size zero": struct.pack(">i", 0),
    "size less than a header": struct.pack(">i", 7) + bytes(7),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(500),
    "unknown api key": request_frame(4242, 0, b""),
    "api key of a broker's own": request_frame(4, 7, b""),
    "negative api key": request_frame(-1, 0, b""),
    "unserved version": request_frame(METADATA, 99, b"\0"),
    "negative version": request_frame(METADATA, -1, b"\0"),
    "produce in a version only advertised": request_frame(PRODUCE, 2, bytes(20)),
    "client id past the end": struct.pack(">ihhih", 10, METADATA, 1, 7, 500),
    "client id not utf-8": struct.pack(">ihhih", 12, METADATA, 1, 7, 2) + b"\xff\xfe",
    "truncated body": request_frame(METADATA, 9, encode(MetadataRequest(topics=None), 9)[:-1]),
    "array of two billion": request_frame(METADATA, 1, struct.pack(">i", 2**31 - 1)),
    "array of a negative size": request_frame(METADATA, 1, struct.pack(">i", -5)),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_closes_its_connection_and_no_other(node: Node, client: RawClient, what: str) -> None:
    client.send_bytes(GARBAGE[what])
    assert await client.closed()
    assert node.ports.clients.stats.closed_bad_input == 1
    await assert_serves(node)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request, but this port expects Kafka's protocol without TLS"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "an HTTP request, but this port expects Kafka's protocol without TLS"),
        (
            bytes.fromhex("1603010200010001fc0303"),
            "a TLS handshake, but this port expects Kafka's protocol without TLS",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "an SSH client, but this port expects Kafka's protocol without TLS"),
        (b"hello there", "frame of 1751477356 bytes, allowed are 8 to 1048576"),
    ],
)
async def test_a_client_of_another_protocol_is_named_in_one_line(node: Node, sent: bytes, reason: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with raw_client(node.bootstrap) as client:
            client.send_bytes(sent)
            assert await client.closed()
    (line,) = [line for line in lines if line["log_level"] != "debug"]
    assert (line["event"], line["log_level"], line["reason"]) == ("connection closed", "warning", reason)
    assert line["client"] == "127.0.0.1"


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient) -> None:
    client.send_bytes(request_frame(API_VERSIONS, 77, b"whatever", correlation_id=5))
    data = await client.receive_bytes()
    response, _ = decode(ApiVersionsResponse, data, 0, 4)
    assert data[:4] == (5).to_bytes(4, "big")
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(API_VERSIONS, 0, 5)]


async def test_a_malformed_software_name_is_refused(client: RawClient) -> None:
    response = await client.call(ApiVersionsRequest(client_software_name="-x-", client_software_version="1"), 3)
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("telemetry", [True, False])
async def test_the_table_is_what_is_served(tmp_path: Path, telemetry: bool) -> None:
    """The node requests client metrics only if a subscription exists."""
    async with running_node(tmp_path, telemetry_enabled=telemetry) as node, raw_client(node.bootstrap) as client:
        response = await client.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    table = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert table[PRODUCE] == (0, 13), "0 to 2 are named for librdkafka"
    assert set(table) == {key for key, each in HANDLERS.items() if telemetry or not each.of_telemetry}


async def test_a_frame_in_single_bytes_and_many_frames_at_once(client: RawClient) -> None:
    frame = request_frame(METADATA, 1, encode(MetadataRequest(topics=()), 1), correlation_id=9)
    for at in range(len(frame)):
        client.send_bytes(frame[at : at + 1])
    correlation_id, _ = await client.receive(MetadataRequest, 1)
    assert correlation_id == 9
    frames = [request_frame(METADATA, 1, encode(MetadataRequest(topics=()), 1), correlation_id=n) for n in range(600)]
    client.send_bytes(b"".join(frames))
    assert [(await client.receive(MetadataRequest, 1))[0] for _ in range(600)] == list(range(600))


async def test_produce_is_pipelined_and_answered_in_order(client: RawClient) -> None:
    await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
    sent = [client.send(produce_request("t", [batch_of(b"%d" % at)]), 9) for at in range(50)]
    fetch = FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
    )
    sent.append(client.send(fetch, 11))
    offsets = []
    for at in range(50):
        correlation_id, response = await client.receive(ProduceRequest, 9)
        assert correlation_id == sent[at]
        offsets.append(response.responses[0].partition_responses[0].base_offset)
    assert offsets == list(range(50))
    correlation_id, response = await client.receive(FetchRequest, 11)
    assert correlation_id == sent[50]
    assert response.responses[0].partitions[0].high_watermark == 50, "it saw what was sent before it"


async def test_large_frames_of_every_split(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        for size in (100, 4000, 5000, 65_530, 70_000, 300_000, 900_000):
            response = await client.produce("t", [batch_of(b"x" * size)])
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert node.ports.clients.bytes_held == 0


async def test_held_bytes_return_to_zero_when_clients_vanish(node: Node) -> None:
    for _ in range(5):
        async with raw_client(node.bootstrap) as client:
            client.send_bytes(struct.pack(">i", 500_000) + bytes(100_000))
    await until(lambda: not node.ports.clients.connections)
    assert node.ports.clients.bytes_held == 0
    await assert_serves(node)
