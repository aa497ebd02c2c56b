"""Start, refused start, failure and fencing of a node."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.app import StartError
from anabranch.broker.cluster.membership import node_log
from anabranch.broker.cluster.membership.environment import wall_ms
from anabranch.broker.cluster.node import NodeFailure
from anabranch.broker.node.net.server import bind
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.broker.operator.admin.http import AdminServer
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.engine import S3Stream
from anabranch.wal.interface import WalFailed, WalFenced
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import WalSettings
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client

FETCH = FetchRequest(
    max_bytes=1000, topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])]
)


async def test_a_broken_log_stops_writes_and_says_why(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        await client.produce("t", [batch_of(b"before")])
        assert isinstance(node.wal, DeltaWal)
        node.wal.failed(WalFailed("the disk is gone"))
        answer = (await client.produce("t", [batch_of(b"after")])).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "the disk is gone" in str(answer.error_message)
        async with asyncio.timeout(60):
            assert "the disk is gone" in await node.failed
        fetched = await client.call(FETCH, 12)
        assert fetched.responses[0].partitions[0].high_watermark == 1, "reads go on"
    async with running_node(tmp_path) as node:
        assert node.serving.topics.partition("t", 0).high_watermark == 1


async def test_a_node_serves_before_its_new_log_is_written_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def little_ahead(settings: Settings) -> WalSettings:
        return replace(wal_settings(settings), prewrite_bytes=64 << 10, prewrite_ahead_bytes=256 << 10)

    monkeypatch.setattr(node_log, "wal_settings", little_ahead)
    clients, rounds = 8, 10
    value = bytes(range(256)) * 3000
    async with running_node(tmp_path, wal_capacity_bytes=512 << 20) as node, AsyncExitStack() as stack:
        if not node.wal.snapshot().unwritten_bytes:
            pytest.skip("the file system does not tell which parts of a file were written")
        connections = [await stack.enter_async_context(raw_client(node.bootstrap)) for _ in range(clients)]
        await connections[0].call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        for _ in range(rounds):
            answers = await asyncio.gather(*(client.produce("t", [batch_of(value)]) for client in connections))
            for answer in answers:
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        stats = node.wal.snapshot()
        assert stats.over_capacity > 0, "no append had to wait"
        assert stats.unwritten_bytes > 0
        assert node.serving.storage.stats.uploads == 0, "a wait for the file is no reason for an upload"
    async with running_node(tmp_path, wal_capacity_bytes=512 << 20) as node:
        assert node.serving.topics.partition("t", 0).high_watermark == clients * rounds


async def test_a_newer_process_with_the_same_id_fences_the_older(tmp_path: Path) -> None:
    async with running_node(tmp_path, catalog_lease_ms=1000) as older:
        # As after a pause longer than the lease: no other process takes the id while the lease is renewed.
        await older.serving.catalog.register_node(1, "elsewhere", 9092, now_ms=wall_ms(), lease_ms=1000)
        async with asyncio.timeout(60):
            assert "fenced" in await older.failed


async def test_a_fenced_node_fails_its_log_at_once_and_uploads_nothing_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, asked_for_upload = S3Stream.close, []

    async def note_and_close(storage: S3Stream, *, upload: bool = True) -> None:
        asked_for_upload.append(upload)
        await close(storage, upload=upload)

    monkeypatch.setattr(S3Stream, "close", note_and_close)
    async with running_node(tmp_path, catalog_lease_ms=1000) as older, raw_client(older.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        await client.produce("t", [batch_of(b"before")])
        await older.serving.catalog.register_node(1, "elsewhere", 9092, now_ms=wall_ms(), lease_ms=1000)
        async with asyncio.timeout(60):
            await older.failed
        assert isinstance(older.wal.error, WalFenced), "no append or upload had to find the fence"
    assert older.serving.storage.uncommitted_bytes > 0, "there was something to upload"
    assert asked_for_upload
    assert not any(asked_for_upload), "a store that is away would hold up the end of a node that is fenced"


async def test_a_node_that_is_fenced_while_it_recovers_its_log_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover, report, reported = S3Stream.recover, NodeFailure.report, asyncio.Event()

    async def recover_when_fenced(storage: S3Stream) -> None:
        catalog = storage._catalog  # noqa: SLF001  # the node's own
        await catalog.register_node(1, "elsewhere", 9092, now_ms=wall_ms(), lease_ms=1000)
        await reported.wait()
        await recover(storage)

    def note_and_report(failure: NodeFailure, error: Exception) -> None:
        report(failure, error)
        reported.set()

    monkeypatch.setattr(S3Stream, "recover", recover_when_fenced)
    monkeypatch.setattr(NodeFailure, "report", note_and_report)
    async with asyncio.timeout(30):
        with pytest.raises(StartError, match="epoch 1 is not the registered 2"):
            async with running_node(tmp_path, catalog_lease_ms=1000):
                pass


async def test_a_stop_refuses_clients_before_it_waits_for_requests_on_the_admin_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, connected = AdminServer.close, asyncio.Event()

    async def close_slowly(admin: AdminServer) -> None:
        with suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            connected.set()
            writer.close()
        await close(admin)

    async with running_node(tmp_path) as node:
        port = node.advertised.port
        monkeypatch.setattr(AdminServer, "close", close_slowly)
    assert not connected.is_set()


async def test_what_keeps_a_node_from_starting_is_one_line(tmp_path: Path) -> None:
    taken = bind("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    used = f"127.0.0.1:{port}: Address already in use: stop the program that has it, or change"
    try:
        with pytest.raises(StartError, match=rf"cannot listen on {used} listener.port \(--port\)"):
            async with running_node(tmp_path, port=port):
                pass
        with pytest.raises(StartError, match=rf"admin port {used} admin.port \(--admin-port\)"):
            async with running_node(tmp_path, admin_port=port):
                pass
        with pytest.raises(StartError, match=f"internal port {used} cluster.internal_port"):
            async with running_node(tmp_path, cluster_internal_port=port):
                pass
        assert not (tmp_path / "data").exists(), "nothing is left before the ports are found free"
    finally:
        taken.close()
    with pytest.raises(StartError, match=r"admin port 127\.1:\d+: Kafka clients are served at this address"):
        async with running_node(tmp_path, port=port, admin_port=port, admin_host="127.1"):
            pass
    with pytest.raises(StartError, match=r"internal port 127\.1:\d+: Kafka clients are served at this address"):
        async with running_node(tmp_path, port=port, cluster_internal_port=port, cluster_internal_host="127.1"):
            pass
    with pytest.raises(StartError, match=r"admin port 127\.1:\d+: other nodes are served at this address"):
        async with running_node(tmp_path, cluster_internal_port=port, admin_port=port, admin_host="127.1"):
            pass
    async with running_node(tmp_path):
        pass
    for settings, expected in (
        ({"cluster": "other"}, "cluster"),
        ({"host": "no.such.host.invalid"}, "cannot listen on"),
        ({"host": "203.0.113.7"}, "address: no network interface of this machine has the address"),
        ({"data_dir": tmp_path / "data" / "wal" / "x"}, "data directory"),
        ({"wal_path": "/dev/null"}, "/dev/null"),
    ):
        with pytest.raises(StartError) as raised:
            async with running_node(tmp_path, **settings):
                pass
        assert expected in str(raised.value)
        assert "\n" not in str(raised.value)
    async with running_node(tmp_path):
        pass
