"""A node that keeps its objects on a real S3 server."""

from pathlib import Path

from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.s3 import S3Bucket


async def test_records_go_to_a_bucket_and_come_back(tmp_path: Path, bucket: S3Bucket) -> None:
    settings = bucket.node_settings()
    async with running_node(tmp_path, **settings) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        for at in range(20):
            await client.produce("t", [batch_of(b"%d" % at * 1000)])
    async with running_node(tmp_path, **settings) as node, raw_client(node.bootstrap) as client:
        partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=10_000, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[partition])]
        )
        response = await client.call(request, 12)
        data = response.responses[0].partitions[0]
        assert [header.base_offset for header, _ in iterate_batches(data.records)] == list(range(20))
        assert sum(store.calls.get for store in node.stores.values()) > 0
    assert not (tmp_path / "data" / "objects").exists()
