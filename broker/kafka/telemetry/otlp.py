"""Decoder of OpenTelemetry's `MetricsData` (protocol buffers), to the extent that Kafka's clients use it.

Only numbers are decoded: gauges and sums, with their attributes. Histograms and summaries, which no Kafka client sends,
are skipped, as are unknown fields. The input is not trusted: nesting is limited to that of the format, and decoding
stops at limits of points and fields.

Source: opentelemetry/proto/metrics/v1/metrics.proto and the encoding of protocol buffers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from anabranch.wal.interface import Buffer

_DOUBLE: Final = Struct("<d")
_SIGNED: Final = Struct("<q")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
FIELDS_MAX: Final = 50_000
"""About 40 ms of work."""
DELTA: Final = 1
"""AGGREGATION_TEMPORALITY_DELTA: a sum since the last push, not since the client's start."""


class OtlpError(Exception):
    """The bytes are not a valid message."""


@dataclass(frozen=True, slots=True)
class Point:
    """One number. A sum only grows; if `is_delta`, the value is its growth since the last push."""

    name: str
    value: float
    is_sum: bool
    is_delta: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Points:
    """Points decoded from a push."""

    points: list[Point]
    dropped: int
    """Number of skipped metrics, plus one if a limit has ended the decoding."""


def parse_metrics(data: Buffer, *, points_max: int, fields_max: int = FIELDS_MAX) -> Points:
    """Decode the points of a `MetricsData`, as many as the limits allow. Raises OtlpError."""
    reader = _Reader(points_max, fields_max)
    try:
        reader.read(memoryview(data))
    except _LimitReachedError:
        reader.dropped += 1
    return Points(reader.points, reader.dropped)


class _LimitReachedError(Exception):
    """A limit has ended the decoding."""


class _Reader:
    """Decoding of one message, with the rest of its limits."""

    def __init__(self, points_max: int, fields_left: int) -> None:
        self.points: list[Point] = []
        self.dropped = 0
        self._points_max = points_max
        self._fields_left = fields_left

    def read(self, data: memoryview) -> None:
        for resource in self._messages(data, 1):
            for scope in self._messages(resource, 2):
                for metric in self._messages(scope, 2):
                    self._metric(metric)

    def _metric(self, metric: memoryview) -> None:
        name, kind, body = "", 0, memoryview(b"")
        for number, wire_type, value in self._fields(metric):
            if number == 1:
                name = _text(wire_type, value)
            elif number in {5, 7, 9, 10, 11}:
                kind, body = number, _bytes(wire_type, value)
        if kind not in {5, 7}:
            self.dropped += bool(kind)
            return
        is_sum = kind == 7
        is_monotonic, temporality = False, 0
        if is_sum:
            for number, wire_type, value in self._fields(body):
                if wire_type == _VARINT and number == 2:
                    temporality = _number(value)
                elif wire_type == _VARINT and number == 3:
                    is_monotonic = bool(value)
        for point in self._messages(body, 1):
            if len(self.points) >= self._points_max:
                raise _LimitReachedError
            read, attributes = self._point(point)
            # A sum that may decrease is exported as a gauge.
            self.points.append(Point(name, read, is_sum and is_monotonic, is_sum and temporality == DELTA, attributes))

    def _point(self, point: memoryview) -> tuple[float, dict[str, str]]:
        read = 0.0
        attributes: dict[str, str] = {}
        for number, wire_type, value in self._fields(point):
            if number == 4 and wire_type == _FIXED64:
                (read,) = _DOUBLE.unpack(_bytes(_BYTES, value))
            elif number == 6 and wire_type == _FIXED64:
                read = float(_SIGNED.unpack(_bytes(_BYTES, value))[0])
            elif number == 7:
                key, text = self._attribute(_bytes(wire_type, value))
                attributes[key] = text
        return read, attributes

    def _attribute(self, data: memoryview) -> tuple[str, str]:
        key, text = "", ""
        for number, wire_type, value in self._fields(data):
            if number == 1:
                key = _text(wire_type, value)
            elif number == 2:
                for kind, inner_type, inner in self._fields(_bytes(wire_type, value)):
                    if kind == 1:
                        text = _text(inner_type, inner)
                    elif kind == 2:
                        text = "true" if inner else "false"
                    elif kind == 3:
                        number_value = _number(inner)
                        text = str(number_value - (1 << 64) if number_value >= 1 << 63 else number_value)
                    elif kind == 4:
                        text = str(_DOUBLE.unpack(_bytes(_BYTES, inner))[0])
        return key, text

    def _messages(self, data: memoryview, number: int) -> Iterator[memoryview]:
        """Yield the fields of that number, which must be messages."""
        for found, wire_type, value in self._fields(data):
            if found == number:
                yield _bytes(wire_type, value)

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
        """Yield (number, wire type, value) of each field: an int for a varint, otherwise bytes."""
        at, end = 0, len(data)
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _LimitReachedError
            tag, at = _varint(data, at)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise OtlpError(f"field number 0 at byte {at}")
            if wire_type == _VARINT:
                value, at = _varint(data, at)
                yield number, wire_type, value
                continue
            if wire_type == _BYTES:
                size, at = _varint(data, at)
            elif wire_type == _FIXED64:
                size = 8
            elif wire_type == _FIXED32:
                size = 4
            else:
                raise OtlpError(f"wire type {wire_type} at byte {at}")
            if size > end - at:
                raise OtlpError(f"field {number} of {size} bytes at byte {at}, {end - at} are left")
            yield number, wire_type, data[at : at + size]
            at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise OtlpError(f"the number at byte {at} is cut short")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise OtlpError(f"the number at byte {at} has more than {_VARINT_BYTES_MAX} bytes")


def _bytes(wire_type: int, value: int | memoryview) -> memoryview:
    if wire_type != _BYTES or isinstance(value, int):
        raise OtlpError(f"expected bytes, found wire type {wire_type}")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise OtlpError("expected a number, found bytes")
    return value


def _text(wire_type: int, value: int | memoryview) -> str:
    return str(_bytes(wire_type, value), "utf-8", "replace")
