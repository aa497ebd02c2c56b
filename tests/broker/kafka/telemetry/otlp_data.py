"""Builds metrics as clients push them: the protocol buffers of OpenTelemetry, by hand."""

import struct
from collections.abc import Mapping

from anabranch.protocol.varint import uvarint

DELTA, CUMULATIVE = 1, 2


def field(number: int, data: bytes) -> bytes:
    return uvarint(number << 3 | 2) + uvarint(len(data)) + data


def attribute(key: str, value: str) -> bytes:
    return field(7, field(1, key.encode()) + field(2, field(1, value.encode())))


def point(value: float, attributes: Mapping[str, str] | None = None) -> bytes:
    """A NumberDataPoint: an int as `as_int`, a float as `as_double`."""
    number = struct.pack("<Bq", 6 << 3 | 1, value) if isinstance(value, int) else struct.pack("<Bd", 4 << 3 | 1, value)
    time = struct.pack("<BQ", 3 << 3 | 1, 1_700_000_000_000_000_000)
    return time + number + b"".join(attribute(key, text) for key, text in (attributes or {}).items())


def gauge(name: str, *points: bytes) -> bytes:
    """A Metric."""
    return field(1, name.encode()) + field(5, b"".join(field(1, each) for each in points))


def total(name: str, *points: bytes, temporality: int = DELTA, monotonic: bool = True) -> bytes:
    """A Metric that is a sum."""
    data = b"".join(field(1, each) for each in points) + bytes([2 << 3, temporality, 3 << 3, monotonic])
    return field(1, name.encode()) + field(7, data)


def metrics_data(*metrics: bytes) -> bytes:
    """MetricsData with one resource and one scope."""
    return field(1, field(2, b"".join(field(2, metric) for metric in metrics)))
