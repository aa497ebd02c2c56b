"""Series of clients' metrics: bounded, with deltas summed, and removed with their client."""

from anabranch.broker.kafka.telemetry.otlp import Point
from anabranch.broker.kafka.telemetry.series import (
    KEPT_MS_MIN,
    LABEL_CHARACTERS_MAX,
    LABELS_MAX,
    SeriesTable,
    series_name,
)

LABELS = {"client_id": "c", "client_instance_id": "i"}


def gauge(value: float, name: str = "org.apache.kafka.producer.connection.count", **attributes: str) -> Point:
    return Point(name, value, is_sum=False, is_delta=False, attributes=attributes)


def put(table: SeriesTable, *points: Point, client: bytes = b"1", now_ms: int = 0, interval_ms: int = 1000) -> None:
    table.put(client, LABELS, points, now_ms=now_ms, interval_ms=interval_ms)


def test_the_newest_value_shows() -> None:
    table = SeriesTable(10)
    put(table, gauge(1.0, topic="t"), gauge(2.0, topic="u"))
    put(table, gauge(3.0, topic="t"))
    assert list(table.samples(0)) == [
        ("client_producer_connection_count", {**LABELS, "topic": "t"}, 3.0),
        ("client_producer_connection_count", {**LABELS, "topic": "u"}, 2.0),
    ]


def test_deltas_add_up_and_totals_do_not() -> None:
    table = SeriesTable(10)
    delta = Point("sent.total", 2.0, is_sum=True, is_delta=True, attributes={})
    total = Point("received", 5.0, is_sum=True, is_delta=False, attributes={})
    for _ in range(3):
        put(table, delta, total)
    assert [(name, value) for name, _, value in table.samples(0)] == [
        ("client_received_total", 5.0),
        ("client_sent_total", 6.0),
    ]


def test_what_is_too_much_is_counted_and_dropped() -> None:
    table = SeriesTable(2)
    put(table, gauge(1.0, a="1"), gauge(1.0, a="2"), gauge(1.0, a="3"), gauge(float("nan"), a="1"))
    put(table, gauge(7.0, a="1"), client=b"1")
    assert len(table) == len(list(table.samples(0))) == 2
    assert (table.stats.points, table.stats.dropped_points) == (3, 2)


def test_a_silent_client_is_forgotten() -> None:
    table = SeriesTable(1)
    put(table, gauge(1.0))
    assert len(list(table.samples(KEPT_MS_MIN - 1))) == 1
    put(table, gauge(1.0), client=b"2", now_ms=KEPT_MS_MIN)  # there is room again
    assert len(table) == 1
    put(table, gauge(1.0), client=b"2", now_ms=KEPT_MS_MIN, interval_ms=3_600_000)
    assert len(list(table.samples(KEPT_MS_MIN + 3 * 3_600_000 - 1))) == 1
    assert list(table.samples(KEPT_MS_MIN + 3 * 3_600_000)) == []
    assert len(table) == 0


def test_names_and_labels_are_made_fit_for_the_page() -> None:
    table = SeriesTable(10)
    strange = {'a"}\n': 'x"\\\n\u00e4', "0": "y" * 1000, "client_id": "stolen", **{f"k{at}": "" for at in range(50)}}
    put(table, gauge(1.0, "no\nname{}", **strange))
    ((name, labels, _),) = table.samples(0)
    assert name == "client_no_name__"
    assert labels["client_id"] == "c"
    assert labels["a___"] == "x____"
    assert labels["_0"] == "y" * LABEL_CHARACTERS_MAX
    assert len(labels) == LABELS_MAX + len(LABELS)
    assert series_name(gauge(1.0, "")) == "client_unnamed"
