"""A node that uploads its data to objects of both kinds at once, and functions that wait for the upload."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import StreamInfo
from anabranch.spark.direct import register
from tests.support.events import QUIET, TIMEOUT_S
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

WAIT_S = 300


class Lake:
    """The node of these tests, and Spark's two sources for its topics."""

    def __init__(self, node: NodeProcess, data_dir: Path, spark: SparkSession) -> None:
        self.node = node
        self.data_dir = data_dir
        self.spark = spark

    @property
    def servers(self) -> str:
        return self.node.bootstrap

    def streams(self, topic: str) -> dict[int, StreamInfo]:
        """The catalog's streams of a topic, by partition."""

        async def find() -> dict[int, StreamInfo]:
            catalog = Catalog(f"sqlite:///{self.data_dir / 'catalog.db'}")
            await catalog.open(cluster="anabranch")
            try:
                (found,) = [each for each in await catalog.list_topics() if each.name == topic]
                infos = await catalog.get_streams([each.stream_id for each in found.partitions])
                return {each.index: infos[each.stream_id] for each in found.partitions}
            finally:
                await catalog.close()

        return asyncio.run(find())

    def wait_committed(self, topic: str) -> None:
        """Wait until everything that is in the topic now is in objects."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "unused", **QUIET})
        try:
            ends = {
                index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=TIMEOUT_S)[1]
                for index in self.streams(topic)
            }
        finally:
            consumer.close()
        wait_until(
            lambda: all(self.streams(topic)[index].end_offset >= end for index, end in ends.items()),
            "all is in objects",
            timeout_s=WAIT_S,
        )

    def direct(self, **options: str) -> DataFrame:
        return self.spark.read.format("anabranch").option("dataDir", str(self.data_dir)).options(**options).load()

    def kafka(self, **options: str) -> DataFrame:
        source = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        return source.options(**options).load()


@pytest.fixture(scope="session")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The lake that all tests of a run share."""
    register(spark)
    folder = tmp_path_factory.mktemp("lake")
    with NodeProcess(
        folder,
        wal_capacity_bytes=64 << 20,
        storage_upload_age_ms=100,
        storage_split_bytes=64 << 10,
        compaction_enabled=False,
    ) as node:
        yield Lake(node, folder / "data", spark)
        assert node.terminate() == 0
