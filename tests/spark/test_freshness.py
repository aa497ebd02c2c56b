"""The lag of a query in offsets and in time, from a real node and without Spark."""

from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition

from anabranch.client.errors import ClientError
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.messages.fetch import AbortedTransaction, PartitionData
from anabranch.protocol.records import ControlType, Record, build_batch, build_marker
from anabranch.spark.freshness import REFRESH_S, Freshness, LagReader, PartitionLag
from anabranch.spark.listener import PipelineMetrics, prometheus_text
from anabranch.spark.unread import PARTITION_BYTES, Search, advance, find_first
from tests.support.events import QUIET, Event, create_topic, delete_topic, send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.interop

TIMEOUT_S = 30
T0 = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def reader(servers: str) -> Iterator[LagReader]:
    """Reads committed records only, as pipelines do."""
    made = LagReader(servers, {}, committed=True)
    yield made
    made.close()


def age_ms(lags: Mapping[tuple[str, int], PartitionLag], topic: str, partition: int = 0) -> int | None:
    """Age at T0 + 100,000 ms."""
    return lags[topic, partition].age_ms(T0 + 100_000)


def test_the_age_is_that_of_the_first_record_that_is_not_done(servers: str, topic: str, reader: LagReader) -> None:
    send(servers, topic, [Event(0, b"%d" % n, timestamp_ms=T0 + n * 1000) for n in range(10)])
    lags = reader.read({(topic, 0): 3})
    assert (lags[topic, 0].done, lags[topic, 0].end, lags[topic, 0].offsets) == (3, 10, 7)
    assert age_ms(lags, topic) == 97_000
    assert age_ms(reader.read({(topic, 0): 9}), topic) == 91_000
    done = reader.read({(topic, 0): 10})
    assert (done[topic, 0].offsets, age_ms(done, topic)) == (0, 0)
    assert (done[topic, 1].done, done[topic, 1].offsets, age_ms(done, topic, 1)) == (None, 0, 0)
    send(servers, topic, [Event(1, b"new", timestamp_ms=T0 + 40_000)])
    lags = reader.read({(topic, 0): 10})
    assert (lags[topic, 1].offsets, age_ms(lags, topic, 1)) == (1, 60_000)


@pytest.mark.parametrize("codec", CODECS)
def test_a_query_that_stopped_within_a_batch(servers: str, topic: str, reader: LagReader, codec: str) -> None:
    events = [Event(0, b"v" * 50, timestamp_ms=T0 + n * 1000) for n in range(20)]
    send(servers, topic, events, **{"compression.codec": codec, "linger.ms": 500, "batch.num.messages": 20})
    assert age_ms(reader.read({(topic, 0): 13}), topic) == 87_000


def test_batches_larger_than_their_share_are_asked_for_alone(servers: str, topic: str, reader: LagReader) -> None:
    large = b"x" * (PARTITION_BYTES * 3)
    send(servers, topic, [Event(partition, large, timestamp_ms=T0 + partition * 1000) for partition in range(3)])
    lags = reader.read({(topic, partition): 0 for partition in range(3)})
    assert [age_ms(lags, topic, partition) for partition in range(3)] == [100_000, 99_000, 98_000]


def test_records_of_the_future_and_without_a_time(servers: str, topic: str, reader: LagReader) -> None:
    send(servers, topic, [Event(0, b"later", timestamp_ms=T0 + 200_000)])
    assert age_ms(reader.read({(topic, 0): 0}), topic) == 0
    search = Search(0, 0)
    advance(search, PartitionData(records=build_batch([Record(None, b"untimed")], base_offset=0)))
    assert (search.position, search.timestamp_ms) == (0, -1)
    assert PartitionLag(0, 1, 1, -1, is_complete=False).age_ms(T0) is None


def test_aborted_records_and_markers_are_not_missing(servers: str, topic: str, reader: LagReader) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(TIMEOUT_S)

    def transaction(timestamp_ms: int, end: int, *, commit: bool) -> None:
        producer.begin_transaction()
        producer.produce(topic, b"value", partition=0, timestamp=timestamp_ms)
        assert producer.flush(TIMEOUT_S) == 0
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
        # The marker is written after the producer has its answer.
        wait_until(lambda: reader.read({(topic, 0): 0})[topic, 0].end == end, "the transaction has ended")

    transaction(T0, 2, commit=False)
    transaction(T0 + 1000, 4, commit=False)
    only_aborted = reader.read({(topic, 0): 0})
    assert (only_aborted[topic, 0].offsets, age_ms(only_aborted, topic)) == (4, 0)
    transaction(T0 + 2000, 6, commit=True)
    assert age_ms(reader.read({(topic, 0): 0}), topic) == 98_000
    # Past the record of offset 4 only its marker is left.
    marker = reader.read({(topic, 0): 5})
    assert (marker[topic, 0].offsets, age_ms(marker, topic)) == (1, 0)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0, timestamp=T0 + 3000)
    assert producer.flush(TIMEOUT_S) == 0
    # It is not for readers yet, and the end is before it.
    still_open = reader.read({(topic, 0): 6})
    assert (still_open[topic, 0].end, age_ms(still_open, topic)) == (6, 0)
    everything = LagReader(servers, {}, committed=False)
    assert age_ms(everything.read({(topic, 0): 0}), topic) == 100_000
    assert age_ms(everything.read({(topic, 0): 6}), topic) == 97_000
    everything.close()
    producer.abort_transaction(TIMEOUT_S)


def test_two_producers_of_which_one_aborts() -> None:
    def data(producer: int, base: int, at_ms: int) -> bytes:
        record = Record(None, b"v", at_ms)
        return bytes(build_batch([record], base_offset=base, producer_id=producer, attributes=TRANSACTIONAL_MASK))

    def marker(control: ControlType, producer: int, base: int) -> bytes:
        return bytes(
            build_marker(
                control, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=T0, base_offset=base
            )
        )

    abort = marker(ControlType.ABORT, 7, 2)
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    search = Search(0, 0)
    # The producer's next transaction, after the marker, is not aborted.
    records = data(7, 0, 1) + data(7, 1, 2) + abort + data(7, 3, 4)
    advance(search, PartitionData(records=records, aborted_transactions=aborted))
    assert (search.position, search.timestamp_ms) == (3, 4)
    search = Search(0, 0)
    advance(search, PartitionData(records=data(7, 0, 1) + data(8, 1, 2) + abort, aborted_transactions=aborted))
    assert (search.position, search.timestamp_ms) == (1, 2)


def test_what_was_found_is_not_fetched_again(
    servers: str, topic: str, reader: LagReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(cluster: object, searches: Mapping[object, object], *arguments: object, **options: object) -> None:
        asked.append(len(searches))
        find_first(cluster, searches, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("anabranch.spark.freshness.find_first", counted)
    send(servers, topic, [Event(partition, b"v", timestamp_ms=T0) for partition in (0, 0, 1)])
    for _ in range(3):
        assert age_ms(reader.read({(topic, 0): 0}), topic) == 100_000
    assert asked == [2]
    reader.read({(topic, 0): 1})
    assert asked == [2, 1]


def test_deleted_records_are_not_waited_for(servers: str, topic: str, reader: LagReader) -> None:
    send(servers, topic, [Event(0, b"v", timestamp_ms=T0 + n * 1000) for n in range(10)])
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        done.result(TIMEOUT_S)
    lags = reader.read({(topic, 0): 2})
    assert (lags[topic, 0].offsets, age_ms(lags, topic)) == (4, 94_000)


def test_a_topic_that_was_created_anew_has_no_known_age(servers: str, topic: str, reader: LagReader) -> None:
    lags = reader.read({(topic, 0): 50})
    assert (lags[topic, 0].done, lags[topic, 0].end, lags[topic, 0].offsets) == (50, 0, 0)
    assert age_ms(lags, topic) is None


def test_a_page_of_metrics_while_the_query_hangs_and_the_topic_is_gone(servers: str, topic: str) -> None:
    name = f"{topic}-gone"
    create_topic(servers, name, 2)
    send(servers, name, [Event(0, b"v", timestamp_ms=T0)])
    now_s = 0.0
    reader = LagReader(servers, {}, committed=True)
    freshness = Freshness("flights", reader, (name,), {(name, 0): 1}, lambda: now_s)

    def page(at_ms: int) -> list[str]:
        found = prometheus_text(PipelineMetrics(), freshness, at_ms).splitlines()
        return [each.partition("anabranch_pipeline_")[2] for each in found if "lag" in each and each[0] != "#"]

    def lag(partition: int, value: float) -> str:
        return f'lag_seconds{{query="flights",topic="{name}",partition="{partition}"}} {value}'

    assert page(T0) == [
        lag(0, 0.0), lag(1, 0.0), 'table_lag_seconds{query="flights"} 0.0', "lag_failures_total 0",
    ]  # fmt: skip
    send(servers, name, [Event(1, b"v", timestamp_ms=T0 + 1000)])
    assert lag(1, 0.0) in page(T0 + 5000), "it is looked up every few seconds only"
    now_s = REFRESH_S
    # No micro-batch has ended since.
    assert page(T0 + 5000) == [
        lag(0, 0.0), lag(1, 4.0), 'table_lag_seconds{query="flights"} 4.0', "lag_failures_total 0",
    ]  # fmt: skip
    delete_topic(servers, name)
    now_s *= 2
    # What was 0 may have changed.
    assert page(T0 + 9000) == [
        lag(1, 8.0), 'table_lag_seconds{query="flights"} 8.0', "lag_failures_total 1",
    ]  # fmt: skip
    freshness.close()


def test_a_new_query_has_no_known_lag_before_its_first_micro_batch() -> None:
    reader = LagReader("127.0.0.1:1", {}, committed=True)
    freshness = Freshness("flights", reader, ("t",), {})
    assert freshness.ages_ms(None, T0) == {}
    assert freshness.failures == 0


def test_a_broker_that_is_not_there() -> None:
    with pytest.raises(ClientError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
        LagReader("127.0.0.1:1", {}, committed=True).read({("t", 0): 1})
    with pytest.raises(ClientError, match="expected HOST:PORT"):
        LagReader("nowhere", {}, committed=True).read({("t", 0): 1})
