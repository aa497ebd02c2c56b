"""Decoding metrics that clients push: the numbers, and bounded work on arbitrary bytes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.telemetry.otlp import OtlpError, Point, parse_metrics
from tests.broker.kafka.telemetry.otlp_data import CUMULATIVE, field, gauge, metrics_data, point, total


def test_gauges_and_sums_are_read_with_their_attributes() -> None:
    data = metrics_data(
        gauge("a.gauge", point(1.5, {"node": "n", "topic": "t"}), point(-7)),
        total("a.sum", point(3.0)),
        total("a.total", point(4.0), temporality=CUMULATIVE),
        total("a.balance", point(5.0), monotonic=False),
    )
    assert parse_metrics(data, points_max=10).points == [
        Point("a.gauge", 1.5, False, False, {"node": "n", "topic": "t"}),
        Point("a.gauge", -7.0, False, False, {}),
        Point("a.sum", 3.0, True, True, {}),
        Point("a.total", 4.0, True, False, {}),
        Point("a.balance", 5.0, False, True, {}),
    ]


def test_other_kinds_are_passed_over_and_counted() -> None:
    histogram = field(1, b"h") + field(9, field(1, b""))
    found = parse_metrics(metrics_data(histogram, gauge("g", point(1.0))), points_max=10)
    assert (len(found.points), found.dropped) == (1, 1)


def test_points_beyond_the_limit_are_dropped() -> None:
    found = parse_metrics(metrics_data(gauge("g", *[point(float(at)) for at in range(9)])), points_max=4)
    assert [each.value for each in found.points] == [0.0, 1.0, 2.0, 3.0]
    assert found.dropped == 1


def test_fields_without_end_are_not_read_to_their_end() -> None:
    begin = metrics_data(gauge("g", point(1.0)))
    found = parse_metrics(begin + b"\x48\x01" * 100_000, points_max=4)
    assert (len(found.points), found.dropped) == (1, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 20,
        b"\x0a",
        b"\x0a\x05abc",
        b"\x08\x01",
        b"\x0b",
        b"\x00\x00",
        field(1, b"\x12\x7f"),
        metrics_data(field(5, field(1, b"\x3a\x02\x12"))),
        metrics_data(b"\x28\x01"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(OtlpError):
        parse_metrics(data, points_max=10)


@given(st.binary(max_size=200))
def test_anything_is_read_or_refused(data: bytes) -> None:
    for candidate in (data, metrics_data(data), metrics_data(gauge("g", data))):
        with suppress(OtlpError):
            assert len(parse_metrics(candidate, points_max=3).points) <= 3
