"""The table of a topic of the test broker: all that is committed, at once, as Arrow, pandas and Python have it."""

import json
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from anabranch.testing import Broker, BrokerError
from tests.support.waiting import WAIT_S, wait_until

ORDER = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
CONFIGS = {
    "table.enable": "true",
    "table.value": "json",
    "table.value.schema": ORDER,
    "table.commit.interval.ms": 3_600_000,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def send(broker: Broker, topic: str, ids: range, partitions: int = 1, transactional_id: str = "") -> Producer:
    settings = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    if transactional_id:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    for each in ids:
        producer.produce(topic, b'{"id": %d}' % each, partition=each % partitions)
    assert producer.flush(WAIT_S) == 0
    return producer


def ids_of(broker: Broker, topic: str) -> list[int]:
    return [row["id"] for row in broker.table(topic).to_pylist()]


def test_all_committed_records_are_rows(broker: Broker) -> None:
    broker.create_topic("orders", 2, CONFIGS)
    send(broker, "orders", range(10), 2)
    table = broker.table("orders")
    rows = table.to_arrow()
    assert rows["id"].to_pylist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9], "by partition and offset"
    assert rows.schema.names == ["id", "_kafka"]
    assert [row["_kafka"]["offset"] for row in table.to_pylist()] == [*range(5), *range(5)]
    assert list(table.to_pandas()["id"]) == rows["id"].to_pylist()
    send(broker, "orders", range(10, 11), 2)
    assert ids_of(broker, "orders")[5] == 10
    assert len(table.to_pylist()) == 10, "it is the table as it was"
    assert table.metadata_location.startswith("file:///")


def test_a_topic_has_schemas_as_long_as_a_config_may_be(broker: Broker) -> None:
    names = {f"field{number:04}": {"type": "string"} for number in range(950)}
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, **names}})
    assert 30_000 < len(schema) < 32_767
    broker.create_topic(
        "wide", 1, {**CONFIGS, "table.value.schema": schema, "table.key.schema": schema, "table.key": "json"}
    )
    send(broker, "wide", range(2))
    table = broker.table("wide").to_arrow()
    assert (table["id"].to_pylist(), len(table.schema.names)) == ([0, 1], 952)


def test_an_open_transaction_is_not_waited_for(broker: Broker) -> None:
    broker.create_topic("paid", 1, CONFIGS)
    send(broker, "paid", range(2))
    producer = send(broker, "paid", range(2, 4), transactional_id="payer")
    assert ids_of(broker, "paid") == [0, 1]
    producer.commit_transaction(WAIT_S)
    wait_until(lambda: len(broker.records("paid", committed=True)) == 4, "the markers are written")
    assert ids_of(broker, "paid") == [0, 1, 2, 3]


def test_a_topic_without_records_has_an_empty_table(broker: Broker) -> None:
    broker.create_topic("empty", 1, CONFIGS)
    rows = broker.table("empty").to_arrow()
    assert (rows.num_rows, rows.schema.names) == (0, ["id", "_kafka"])


def test_what_is_wrong_is_said_at_once(broker: Broker) -> None:
    broker.create_topic("plain")
    with pytest.raises(BrokerError, match=r"topic 'plain' is no table: give it configs=\{'table.enable': 'true'\}"):
        broker.table("plain")
    with pytest.raises(BrokerError, match="there is no topic 'nowhere'"):
        broker.table("nowhere")
    broker.create_topic("unknown", 1, {"table.enable": "true", "table.value": "avro"})
    send(broker, "unknown", range(1))
    with pytest.raises(
        BrokerError, match=r"table 'unknown' waits: the schema registry .* has no /subjects/unknown-value"
    ):
        broker.table("unknown")


def test_a_missing_package_is_named_in_one_line(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("rows", 1, CONFIGS)
    send(broker, "rows", range(1))
    table = broker.table("rows")
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(BrokerError, match=r"^a table of the test broker needs pyiceberg, .*: pip install 'anabranch"):
        table.to_arrow()


@pytest.mark.slow
def test_a_table_whose_partitions_several_nodes_lead() -> None:
    with Broker(nodes=3) as cluster:
        cluster.create_topic("orders", 6, CONFIGS)
        send(cluster, "orders", range(60), 6)
        assert sorted(ids_of(cluster, "orders")) == list(range(60))
