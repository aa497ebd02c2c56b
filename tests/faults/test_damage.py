"""An object that is damaged or gone: whoever reads it is told, the node goes on, and `storage verify` finds it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import NodeProcess
from tests.support.raw_client import RawClient, batch_of, raw_client


async def fetch(client: RawClient) -> PartitionData:
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=10_000, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[partition])]
    )
    data: PartitionData = (await client.call(request, 12)).responses[0].partitions[0]
    return data


@pytest.mark.parametrize("damage", ["a bit", "all"])
async def test_it_is_an_error_by_name_and_stays_one(tmp_path: Path, damage: str) -> None:
    with NodeProcess(tmp_path, compaction_enabled="false") as node:
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            await client.produce("t", [batch_of(b"x" * 1000)])
        assert node.terminate() == 0
        (path,) = (path for path in (tmp_path / "data" / "objects").rglob("*") if path.is_file())
        if damage == "all":
            path.unlink()
        else:
            content = bytearray(path.read_bytes())
            content[len(content) // 3] ^= 1
            path.write_bytes(content)
        node.start()
        async with raw_client(node.bootstrap) as client:
            for _ in range(3):
                assert (await fetch(client)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            response = await client.produce("t", [batch_of(b"more")])
            assert response.responses[0].partition_responses[0].base_offset == 1, "writes go on"
        assert node.terminate() == 0
    (told,) = node.events("records cannot be read")  # once, not for each request
    assert told["partition"] == "t-0"
    expected = "no such object" if damage == "all" else "CRC32C: expected"
    assert expected in told["reason"]
    assert path.parent.name in told["reason"]
    verified = verify(tmp_path / "data")
    assert verified.returncode == 1
    assert expected in verified.stdout


def verify(data: Path) -> "subprocess.CompletedProcess[str]":
    """Run `anabranch storage verify`, wide enough to be read by a test."""
    command = [sys.executable, "-m", "broker", "storage", "verify", "--deep", "--data-dir", str(data)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "500"})
