"""The topic commands against a fake node with prepared answers."""

import itertools
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.topic import topic
from anabranch.broker.operator.cli.transaction import transaction
from anabranch.protocol.codec import decode_exact
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.header import parse_request_header, response_frame
from anabranch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from anabranch.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from anabranch.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from anabranch.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from anabranch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from anabranch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from anabranch.protocol.registry import APIS
from benchmarks.lab.processes import free_port

Answer = Callable[[Any], object]


class CannedNode(socketserver.ThreadingTCPServer):
    """Answers by the type of the request, and records the requests."""

    def __init__(self, answers: Mapping[type, Answer], *, versions_max: int = 99) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = {ApiVersionsRequest: self._api_versions, **answers}
        self.port: int = self.server_address[1]
        self.requests: list[Any] = []
        self._versions_max = versions_max

    def _api_versions(self, _request: object) -> object:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(
                    api_key=api.key, min_version=api.min_version, max_version=min(api.max_version, self._versions_max)
                )
                for api in APIS.values()
                if api.min_version <= self._versions_max
            ]
        )


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        node = self.server
        assert isinstance(node, CannedNode)
        while frame := self._receive():
            header = parse_request_header(frame)
            api = APIS[header.api_key]
            request = decode_exact(api.request, frame, header.api_version, header.body_offset)
            node.requests.append(request)
            answer = node.answers[api.request](request)
            for part in response_frame(api.key, header.api_version, header.correlation_id, answer):
                self.request.sendall(part)

    def _receive(self) -> bytes:
        size: bytes = self.request.recv(4, socket.MSG_WAITALL)
        frame: bytes = self.request.recv(int.from_bytes(size), socket.MSG_WAITALL) if size else b""
        return frame


@contextmanager
def canned(answers: Mapping[type, Answer], *, versions_max: int = 99) -> Iterator[CannedNode]:
    with CannedNode(answers, versions_max=versions_max) as node:
        thread = threading.Thread(target=node.serve_forever, args=[0.01])
        thread.start()
        try:
            yield node
        finally:
            node.shutdown()
            thread.join()


def run(node: CannedNode | None, *arguments: str) -> Result:
    servers = [] if node is None else ["--bootstrap-server", f"127.0.0.1:{node.port}"]
    return CliRunner().invoke(topic, [*arguments, *servers], env={"COLUMNS": "160"})


def created(error_code: int = 0, message: str | None = None) -> Answer:
    def answer(request: CreateTopicsRequest) -> object:
        result = CreatableTopicResult(
            name=request.topics[0].name, error_code=error_code, error_message=message, num_partitions=6
        )
        return CreateTopicsResponse(topics=[result])

    return answer


@pytest.mark.parametrize("versions_max", [3, 99])
def test_create(versions_max: int) -> None:
    denied = DescribeConfigsResult(error_code=29, error_message=None, resource_type=2, resource_name="", configs=())
    answers: Mapping[type, Answer] = {
        CreateTopicsRequest: created(),
        DescribeConfigsRequest: lambda _: DescribeConfigsResponse(results=[denied]),
    }
    with canned(answers, versions_max=versions_max) as node:
        result = run(node, "create", "flights", "--partitions", "6", "--set", "retention.ms=1=2", "--config", "a=b")
    assert (result.exit_code, result.output) == (0, "created topic flights with 6 partitions\n")
    (wanted,) = node.requests[1].topics
    assert (wanted.num_partitions, wanted.replication_factor) == (6, -1)
    assert [(config.name, config.value) for config in wanted.configs] == [("retention.ms", "1=2"), ("a", "b")]


def test_times_and_sizes_have_units() -> None:
    values = {
        "retention.ms=7d": "604800000",
        "segment.ms=90min": "5400000",
        "retention.ms=-1": "-1",
        "retention.ms=soon": "soon",
        "segment.bytes=1GiB": "1073741824",
        "max.message.bytes=1MB": "1000000",
        "retention.bytes=-1": "-1",
        "cleanup.policy=7d": "7d",
    }
    for given, value in values.items():
        with canned({CreateTopicsRequest: created(36, "it is there")}) as node:
            run(node, "create", "flights", "-c", given)
        assert [config.value for config in node.requests[1].topics[0].configs] == [value], given


def test_a_mistyped_config_is_answered_with_those_that_are_near() -> None:
    with canned({CreateTopicsRequest: created(40, "Unknown topic config name: retention.m")}) as node:
        result = run(node, "create", "flights", "--set", "retention.m=1", "--set", "segment.ms=1")
    assert result.exit_code == 1
    said = "Error: topic flights: INVALID_CONFIG: Unknown topic config name: retention.m. Did you mean 'retention.ms'"
    assert result.output.startswith(said)
    assert "segment" not in result.output.removeprefix(said)


def test_create_says_why_it_was_refused() -> None:
    with canned({CreateTopicsRequest: created(36, "it is there")}) as node:
        result = run(node, "create", "flights")
    assert (result.exit_code, result.output) == (1, "Error: topic flights: TOPIC_ALREADY_EXISTS: it is there\n")


def test_a_config_needs_a_value() -> None:
    result = run(None, "create", "flights", "--config", "retention.ms")
    assert result.exit_code == 2
    assert "expected NAME=VALUE, found 'retention.ms'" in result.output


def metadata(port: int, *names: str, error_code: int = 0) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)],
        topics=[
            MetadataResponseTopic(
                name=name,
                topic_id=b"\x01" * 16,
                error_code=error_code,
                is_internal=name.startswith("__"),
                partitions=[
                    MetadataResponsePartition(partition_index=1, leader_id=1, leader_epoch=7),
                    MetadataResponsePartition(partition_index=0, leader_id=-1, leader_epoch=3),
                ],
            )
            for name in names
        ],
    )


def test_list_shows_internal_topics_only_when_asked() -> None:
    with canned({MetadataRequest: lambda _: metadata(0, "b", "a", "__offsets")}) as node:
        plain = run(node, "list")
        internal = run(node, "list", "--internal")
    names = [line.split()[0] for line in plain.output.splitlines()]
    assert names == ["topic", "a", "b"]
    assert "__offsets" in internal.output
    assert "AQEBAQEBAQEBAQEBAQEBAQ" in internal.output
    assert node.requests[1].topics is None
    assert not node.requests[1].allow_auto_topic_creation


def test_list_takes_patterns() -> None:
    with canned({MetadataRequest: lambda _: metadata(0, "shop.orders", "shop.users", "log", "__offsets")}) as node:
        for patterns, expected in (
            (("shop.*",), ["shop.orders", "shop.users"]),
            (("*.users", "log"), ["log", "shop.users"]),
            (("Log",), []),
            (("__*",), []),
            (("__*", "--internal"), ["__offsets"]),
        ):
            result = run(node, "list", *patterns)
            assert [line.split()[0] for line in result.output.splitlines()[1:]] == expected


def test_list_shows_sizes_and_rates() -> None:
    grown = itertools.count(0, 10)

    def list_offsets(request: ListOffsetsRequest) -> object:
        (asked,) = request.topics
        offset = 100 + next(grown) if asked.partitions[0].timestamp == -1 else 50
        found = ListOffsetsPartitionResponse(partition_index=1, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=asked.name, partitions=[found])])

    def log_dirs(request: DescribeLogDirsRequest) -> object:
        assert request.topics is not None
        assert [(each.topic, list(each.partitions)) for each in request.topics] == [("t", [1])]
        sizes = [DescribeLogDirsPartition(partition_index=1, partition_size=2048)]
        topics = [DescribeLogDirsTopic(name="t", partitions=sizes)]
        return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="/", topics=topics)])

    with canned({ListOffsetsRequest: list_offsets, DescribeLogDirsRequest: log_dirs}) as node:
        node.answers[MetadataRequest] = lambda _: metadata(node.port, "t")
        (row,) = json.loads(run(node, "list", "--size", "-o", "json").output)
        assert (row["records"], row["size_bytes"]) == (50, 2048)
        (row,) = json.loads(run(node, "list", "--rates", "0.1", "-o", "json").output)
        assert row["records_per_s"] > 0
        assert row["bytes_per_s"] == 0
        assert "records" not in row
        header, shown = run(node, "list", "--size", "--rates", "0.1").output.splitlines()
    assert header.split() == ["topic", "id", "partitions", "leaders", "offsets", "size", "records/s", "growth/s"]
    assert shown.split()[5:8] == ["80", "2", "KiB"]


def test_describe_shows_offsets_and_configs() -> None:
    def list_offsets(request: ListOffsetsRequest) -> object:
        (asked,) = request.topics
        (partition,) = asked.partitions
        offset = 1_200 if partition.timestamp == -1 else 200
        found = ListOffsetsPartitionResponse(partition_index=partition.partition_index, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=asked.name, partitions=[found])])

    def configs(request: DescribeConfigsRequest) -> object:
        (resource,) = request.resources
        results = [
            DescribeConfigsResourceResult(name="retention.ms", value="5", config_source=1),
            DescribeConfigsResourceResult(name="cleanup.policy", value="delete", config_source=5),
        ]
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_message=None, resource_type=2, resource_name=resource.resource_name, configs=results
                )
            ]
        )

    with canned({ListOffsetsRequest: list_offsets, DescribeConfigsRequest: configs}) as node:
        node.answers[MetadataRequest] = lambda _: metadata(node.port, "t")
        result = run(node, "describe", "t")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[0] == ["t", "id", "AQEBAQEBAQEBAQEBAQEBAQ"]
    assert lines[1] == ["retention.ms", "=", "5"]
    assert lines[3:] == [["0", "none", "3", "-", "-", "-"], ["1", "1", "7", "200", "1,200", "1,000"]]


def test_describe_an_unknown_topic() -> None:
    with canned({MetadataRequest: lambda _: metadata(0, "t", error_code=3)}) as node:
        result = run(node, "describe", "t")
    assert (result.exit_code, result.output) == (1, "Error: topic t does not exist\n")


@pytest.mark.parametrize("versions_max", [4, 99])
def test_delete(versions_max: int) -> None:
    def answer(request: DeleteTopicsRequest) -> object:
        names = [item.name for item in request.topics] or list(request.topic_names)
        return DeleteTopicsResponse(
            responses=[DeletableTopicResult(name=name, error_code=3 if name == "b" else 0) for name in names]
        )

    answers = {DeleteTopicsRequest: answer, MetadataRequest: lambda _: metadata(0, "a", "b")}
    with canned(answers, versions_max=versions_max) as node:
        result = run(node, "delete", "a", "b", "--yes")
    assert result.exit_code == 1
    assert result.output == "deleted topic a\nError: topic b: UNKNOWN_TOPIC_OR_PARTITION: it does not exist\n"


@pytest.mark.parametrize(
    ("names", "typed", "said"),
    [
        (("a",), "n\n", "Delete topic a, with all records in 2 partitions? [y/N]: n\nError: nothing was changed\n"),
        (("a", "b"), "n\n", "Delete the topics a, b, with all records in 4 partitions? [y/N]: "),
        (("a",), "", "Error: nothing was changed: standard input has no answer to the question; --yes answers it\n"),
    ],
)
def test_delete_asks_first(names: tuple[str, ...], typed: str, said: str) -> None:
    with canned({MetadataRequest: lambda _: metadata(0, *names)}) as node:
        servers = ["--bootstrap-server", f"127.0.0.1:{node.port}"]
        result = CliRunner().invoke(topic, ["delete", *names, *servers], input=typed)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_nothing_is_asked_about_a_topic_that_does_not_exist() -> None:
    with canned({MetadataRequest: lambda _: metadata(0, "a", error_code=3)}) as node:
        result = run(node, "delete", "a")
    assert (result.exit_code, result.output) == (1, "Error: topic a does not exist\n")


def test_nobody_listens() -> None:
    port = free_port()
    result = CliRunner().invoke(topic, ["list", "--bootstrap-server", f"127.0.0.1:{port},127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert result.output.count(f"cannot connect to 127.0.0.1:{port}: Connection refused") == 2


def test_a_bad_address_is_named() -> None:
    result = CliRunner().invoke(topic, ["list", "--bootstrap-server", "localhost:port"])
    assert "expected HOST:PORT[,HOST:PORT...], found 'localhost:port'" in result.output


def test_an_old_node_is_named() -> None:
    with canned({}, versions_max=0) as node:
        result = run(node, "create", "a")
    assert f"127.0.0.1:{node.port} does not serve CreateTopics 2-7" in result.output


class Stranger(socketserver.ThreadingTCPServer):
    """A server that is not Kafka: it answers each request with fixed bytes, or not at all."""

    def __init__(self, words: bytes | None) -> None:
        super().__init__(("127.0.0.1", 0), StrangersHandler)
        self.words = words
        self.port: int = self.server_address[1]
        self.over = threading.Event()


class StrangersHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        stranger = self.server
        assert isinstance(stranger, Stranger)
        assert self.request.recv(1000)
        if stranger.words is None:
            stranger.over.wait()
        else:
            self.request.sendall(stranger.words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, "no answer to the first request within 0.2 s"),
        (b"", "it closed the connection at the first request; a broker does that where it expects TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers in HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "it answers with TLS: set security.protocol to SSL or SASL_SSL"),
        (b"-ERR unknown command\r\n", "its answer begins with b'-ERR'"),
        (b"\x00\x00\x00\x05hello", "expected an answer to request 1, found one to 1751477356"),
        (b"\x00\x00\x00\x05\x00\x00\x00\x01x", "its answer to ApiVersions cannot be read: "),
    ],
)
def test_what_is_not_kafka_is_said_to_be_none_within_seconds(
    words: bytes | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words is None:
        monkeypatch.setattr("anabranch.client.connection.GREETING_TIMEOUT_S", 0.2)
    with Stranger(words) as stranger:
        thread = threading.Thread(target=stranger.serve_forever, args=[0.01])
        thread.start()
        try:
            result = CliRunner().invoke(topic, ["list", "--bootstrap-server", f"127.0.0.1:{stranger.port}"])
        finally:
            stranger.over.set()
            stranger.shutdown()
            thread.join()
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: 127.0.0.1:{stranger.port} is not a Kafka broker: {expected}")


def test_where_nothing_listens_that_is_said() -> None:
    port = free_port()
    result = CliRunner().invoke(topic, ["list", "--bootstrap-server", f"127.0.0.1:{port}"])
    assert (result.exit_code, result.output) == (
        1,
        f"Error: cannot connect to 127.0.0.1:{port}: Connection refused; is the node running?\n",
    )


def test_an_abort_waits_for_one_that_is_under_way() -> None:
    state = TransactionState(
        error_code=0,
        transactional_id="pay",
        transaction_state="PrepareAbort",
        transaction_timeout_ms=1_000,
        transaction_start_time_ms=1,
        producer_id=1,
        producer_epoch=0,
        topics=(),
    )
    codes = iter([ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS, 0])
    answers: dict[type, Answer] = {
        DescribeTransactionsRequest: lambda _: DescribeTransactionsResponse(transaction_states=[state]),
        InitProducerIdRequest: lambda _: InitProducerIdResponse(error_code=next(codes), producer_epoch=1),
    }
    with canned(answers) as node:
        node.answers[MetadataRequest] = lambda _: metadata(node.port)
        node.answers[FindCoordinatorRequest] = lambda _: FindCoordinatorResponse(
            coordinators=[
                Coordinator(key="pay", node_id=1, host="127.0.0.1", port=node.port, error_code=0, error_message=None)
            ]
        )
        servers = ["--bootstrap-server", f"127.0.0.1:{node.port}"]
        result = CliRunner().invoke(transaction, ["abort", "pay", "--yes", *servers])
        assert (result.exit_code, result.output) == (0, "aborted the transaction of pay\n")
        asked = [each for each in node.requests if isinstance(each, InitProducerIdRequest)]
        assert [(each.transactional_id, each.transaction_timeout_ms) for each in asked] == [("pay", 1_000)] * 3
