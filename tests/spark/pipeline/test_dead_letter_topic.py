"""Dead letters in a topic: each once, as it was, whatever dies, and nobody else's."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from anabranch.spark.pipeline.dead_letter_topic import HEADERS, DeadLetterTopic
from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError
from anabranch.spark.pipeline.merge import PLACE_COLUMNS
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import RECORD_COLUMNS
from anabranch.spark.pipeline.tables import open_tables
from anabranch.spark.pipeline.toml_file import describe
from anabranch.spark.pipeline.topics import known_topics
from tests.spark.pipeline.support import (
    JANUARY_MS,
    every_offset_once,
    forget_last_commit,
    make_pipeline,
    numbered,
    offsets,
    run,
    run_until_it_dies,
)
from tests.support.events import Event, committed_records, create_topic, send

REAL = (pytest.mark.spark, pytest.mark.interop, pytest.mark.slow)


def with_marks(test: Any) -> Any:
    """Mark a test that needs Spark and a node."""
    for mark in REAL:
        test = mark(test)
    return test


@with_marks
def test_a_letter_is_the_record_and_says_where_it_is_from(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """A record read back from the topic equals the one that was read from its own."""
    dead = f"{topic}-dead"
    create_topic(servers, dead, 2)
    headers = [("a", b"\x00\xff"), ("a", None), ("__connect.errors.topic", b"another's")]
    plain = Event(2, b"", timestamp_ms=JANUARY_MS)
    send(servers, topic, [Event(1, b"{", b"\xffkey", JANUARY_MS, headers), plain])
    pipeline = make_pipeline(servers, tmp_path, topic, dead_letters={"topic": dead})
    run(spark, pipeline)
    letters = DeadLetterTopic.of(spark, pipeline).frozen()
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    records = source.option("includeHeaders", "true").load().select(*RECORD_COLUMNS)
    assert letters.select(*RECORD_COLUMNS).orderBy("partition").collect() == records.orderBy("partition").collect()
    assert {row["error"] for row in letters.select("error").collect()} == {
        "not JSON at character 1: expecting property name enclosed in double quotes",
        "not JSON at character 0: expecting value",
    }
    found = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", dead)
    (row,) = found.option("includeHeaders", "true").load().filter("key IS NULL").select("headers").collect()
    error = b"not JSON at character 0: expecting value"
    place = (pipeline.table.name or "").encode()
    values = [topic.encode(), b"2", b"0", error, str(JANUARY_MS).encode(), b"0", place]
    assert [(each["key"], bytes(each["value"])) for each in row["headers"]] == list(
        zip(HEADERS.values(), values, strict=True)
    )
    assert not open_tables(spark, pipeline)[1].exists()


@with_marks
def test_drivers_that_die_write_each_letter_once(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{topic}-dead"
    create_topic(servers, dead, 2)
    pipeline = make_pipeline(servers, tmp_path, topic, dead_letters={"topic": dead})
    send(servers, topic, [*numbered(0, 9), Event(0, b"first")])
    run(spark, pipeline)
    # A driver dies after the letters and before its own commit ...
    forget_last_commit(Path(pipeline.checkpoint))
    send(servers, topic, [*numbered(9, 12), Event(0, b"second")])
    run(spark, pipeline)
    # ... and between the table and the letters, which another one then writes.
    send(servers, topic, [Event(1, b"third")])
    run_until_it_dies(spark, pipeline, monkeypatch, DeadLetterTopic, "append")
    run(spark, pipeline)
    assert Counter(value for _, _, value in committed_records(servers, dead)) == Counter(
        {b"first": 1, b"second": 1, b"third": 1}
    )
    assert sum(offsets(open_tables(spark, pipeline)[0].read()).values()) == 12


@with_marks
def test_a_driver_with_a_successor_writes_no_letter(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    create_topic(servers, f"{topic}-dead", 1)
    pipeline = make_pipeline(servers, tmp_path, topic, dead_letters={"topic": f"{topic}-dead"})
    first, second = (DeadLetterTopic.of(spark, pipeline) for _ in range(2))
    letter = spark.sql(
        f"SELECT '{topic}' topic, 0 partition, 5L offset, timestamp_millis({JANUARY_MS}) timestamp, binary('k') key, "
        "binary('v') value, CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) headers, 'bad' error, 0L batch_id"
    )
    first.append(letter, "query", 0)
    second.append(letter, "query", 0)
    second.append(letter, "query", 1)
    with pytest.raises(AnotherDriver, match="another process has begun with the transactional id"):
        first.append(letter, "query", 2)
    assert (second.committed("query"), second.committed("another")) == (1, -1)
    # Likewise of two replays.
    assert (first.frozen().count(), second.frozen().count()) == (2, 2)
    place = letter.select(*PLACE_COLUMNS)
    second.remove(place.filter("offset = 6"))
    assert [(row["topic"], row["offset"]) for row in second.frozen().collect()] == [(topic, 5)] * 2
    with pytest.raises(AnotherDriver, match=f"topic {topic}-dead: another replay was faster; run it again"):
        first.remove(place)
    third = DeadLetterTopic.of(spark, pipeline)
    assert third.frozen().count() == 2
    third.remove(place)
    assert third.frozen().isEmpty()


@with_marks
def test_a_pattern_leaves_the_dead_letters_out(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    dead = f"{topic}-dead"
    for name in (f"{topic}-a", dead):
        create_topic(servers, name, 3)
    pipeline = make_pipeline(
        servers, tmp_path, topic,
        source={"topics": (), "topic_pattern": f"{topic}-.*"},
        table={"name": f"lake{topic.replace('-', '_')}.db.{{topic}}"},
        dead_letters={"topic": dead},
    )  # fmt: skip
    send(servers, f"{topic}-a", [*numbered(0, 6), Event(0, b"{")])
    run(spark, pipeline)
    run(spark, pipeline)
    send(servers, f"{topic}-a", [Event(0, b"{")])
    run(spark, pipeline)
    assert len(committed_records(servers, dead)) == 2
    assert known_topics(spark, pipeline) == [f"{topic}-a"]
    own = pipeline.for_topic(f"{topic}-a")
    assert offsets(open_tables(spark, own)[0].read()) == every_offset_once(6)
    assert offsets(DeadLetterTopic.of(spark, own).frozen()) == {(0, 2): 1, (0, 3): 1}


def test_a_client_that_only_java_can_be_is_refused(tmp_path: Path) -> None:
    kerberos = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "GSSAPI"}
    source = {"topics": ("t",), "options": kerberos}
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "t", source=source, dead_letters={"topic": "dead"})
    session: Any = None  # it asks the brokers without Spark
    with pytest.raises(PipelineError, match=r"topic dead: property sasl\.mechanism: expected one of PLAIN"):
        DeadLetterTopic.of(session, pipeline).exists()


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"dead_letters": {"topic": "a", "name": "l.d.t"}}, "name either a topic or a table"),
        ({"dead_letters": {"topic": "t"}}, "the pipeline reads this topic"),
        ({"source": {"topics": ["t"], "kind": "direct"}}, "the direct source has no broker"),
        ({"table": {"format": "parquet", "location": "/t"}}, "only pipelines into iceberg or delta"),
    ],
)
def test_settings_that_contradict_dead_letters_in_a_topic(sections: dict[str, Any], problem: str) -> None:
    given = {"checkpoint": "c", "source": {"topics": ["t"]}, "table": {"name": "l.d.u"}, "dead_letters": {"topic": "a"}}
    with pytest.raises(ValidationError) as caught:
        PipelineSettings.model_validate(given | sections)
    path, message = describe(caught.value.errors()[0])
    assert path == ("dead_letters", "topic")
    assert problem in message
