"""A table and its tail by Spark: each record of the topic once, whatever the moment."""

import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession

from anabranch.client.errors import ClientError
from anabranch.spark.table_tail import TailError, catalog_settings, table_and_tail
from tests.support.events import Event, create_topic, delete_topic, send
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until
from tests.tables.engines.rows import Row, committed_records, engine_rows, expected_rows, same
from tests.tables.engines.topics import AVRO, HOSTILE, MARKS, START_MS, TRANSACTIONS, Cluster, TableTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS = (MARKS, AVRO, HOSTILE, TRANSACTIONS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(
        tmp_path_factory.mktemp("tail"), wal_capacity_bytes=64 << 20, storage_upload_age_ms=200
    ) as process:
        yield process


@pytest.fixture
def catalog(node: NodeProcess, spark: SparkSession) -> str:
    """Name of the node's catalog in Spark."""
    name = f"tail_{node.port}"
    for key, value in catalog_settings(f"http://{node.admin}/", name=name).items():
        spark.conf.set(key, value)
    spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", "false")
    return name


def is_listed(node: NodeProcess, topic: str) -> bool:
    with urllib.request.urlopen(f"http://{node.admin}/iceberg/v1/namespaces/default/tables") as answer:
        return topic in [each["name"] for each in json.loads(answer.read())["identifiers"]]


def commit(node: NodeProcess, topic: str) -> None:
    """Let the table have all records."""
    node.wait_uploaded()
    node.ask(f"/api/v1/tables/{topic}/commit", "POST")


def read(spark: SparkSession, node: NodeProcess, catalog: str, topic: TableTopic) -> Sequence[Row]:
    frame = table_and_tail(
        spark,
        f"{catalog}.default.`{topic.name}`",
        {"kafka.bootstrap.servers": node.bootstrap},
        registry=f"http://{node.admin}/schema-registry",
    )
    return engine_rows(frame.toArrow().to_pylist())


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_records_of_the_tail_are_rows_of_the_table(
    node: NodeProcess, spark: SparkSession, catalog: str, topic: TableTopic
) -> None:
    with SchemaRegistryClient({"url": f"http://{node.admin}/schema-registry"}) as registry:
        cluster = Cluster(node.bootstrap, registry)
        slow = {**topic.configs(cluster), "table.enable": "true", "table.commit.interval.ms": "3600000"}
        create_topic(node.bootstrap, topic.name, topic.partitions, slow)
        topic.send(topic, cluster)
        commit(node, topic.name)
        topic.send(topic, cluster)  # the same records once more, which are not in the table
        found = read(spark, node, catalog, topic)
        expected = expected_rows(topic, committed_records(node.bootstrap, topic.name, topic.partitions).records)
        assert same(found, expected) == ""
        in_table = spark.read.table(f"{catalog}.default.`{topic.name}`").count()
        assert 0 < in_table < len(expected)
        cluster.producers.clear()


def test_each_record_is_there_once_while_producers_run(node: NodeProcess, spark: SparkSession, catalog: str) -> None:
    topic = replace(MARKS, name="running")
    create_topic(node.bootstrap, topic.name, 2, {"table.enable": "true", "table.commit.interval.ms": "1000"})
    acknowledged: list[int] = [0, 0]
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.is_set():
            for partition in (0, 1):
                events = [Event(partition, b"%d" % number, None, START_MS) for number in range(50)]
                send(node.bootstrap, topic.name, events)
                acknowledged[partition] += len(events)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        wait_until(lambda: is_listed(node, topic.name), "the table is there")
        for _ in range(3):
            before = list(acknowledged)
            found = read(spark, node, catalog, topic)
            records = committed_records(node.bootstrap, topic.name, 2).records
            ends = {index: 1 + max(row["_kafka"]["offset"] for row in found if row["_kafka"]["partition"] == index)
                    for index in (0, 1)}  # fmt: skip
            shown = [record for record in records if record.offset < ends[record.partition]]
            assert same(found, expected_rows(topic, shown)) == ""
            assert all(ends[index] >= before[index] for index in (0, 1))
    finally:
        is_over.set()
        producer.join()


def test_a_kept_table_is_not_continued_by_a_new_topic_of_its_name(
    node: NodeProcess, spark: SparkSession, catalog: str
) -> None:
    create_topic(node.bootstrap, "again", 1, {"table.enable": "true", "table.retention": "keep"})
    send(node.bootstrap, "again", [Event(0, b"old %d" % at) for at in range(3)])
    commit(node, "again")
    delete_topic(node.bootstrap, "again")
    create_topic(node.bootstrap, "again", 1)
    send(node.bootstrap, "again", [Event(0, b"new %d" % at) for at in range(5)])
    with pytest.raises(TailError, match=r"again has records of another topic than again is now, with the id \S+ and"):
        table_and_tail(spark, f"{catalog}.default.again", {"kafka.bootstrap.servers": node.bootstrap})
    assert spark.read.table(f"{catalog}.default.again").count() == 3


def test_what_cannot_be_read_is_said_so(node: NodeProcess, spark: SparkSession, catalog: str) -> None:
    create_topic(node.bootstrap, "said", 1, {"table.enable": "true", "table.commit.interval.ms": "1000"})
    send(node.bootstrap, "said", [Event(0, b"x")])
    wait_until(lambda: is_listed(node, "said"), "the table is there")
    with pytest.raises(ClientError, match="topic other does not exist"):
        table_and_tail(spark, f"{catalog}.default.said", {"kafka.bootstrap.servers": node.bootstrap}, topic="other")
    spark.conf.set("spark.sql.catalog.tail_plain", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.tail_plain.type", "hadoop")
    spark.conf.set("spark.sql.catalog.tail_plain.warehouse", str(node.data_dir.parent / "plain"))
    spark.sql("CREATE TABLE tail_plain.db.plain USING iceberg AS SELECT 1 AS x")
    with pytest.raises(TailError, match=r"tail_plain.db.plain is not the table of a topic: .* anabranch.offsets"):
        table_and_tail(spark, "tail_plain.db.plain", {"kafka.bootstrap.servers": node.bootstrap})
