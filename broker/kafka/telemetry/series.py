"""The newest value of each series that clients have pushed, for the node's metrics page.

Since clients choose names and labels, everything is bounded: the number of series and of labels, and the length of
each. Dropped points are counted. The series of a client that has gone are kept for a while, so that its last values can
be scraped.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from anabranch.broker.kafka.telemetry.otlp import Point

LABELS_MAX: Final = 16
LABEL_CHARACTERS_MAX: Final = 128
NAME_CHARACTERS_MAX: Final = 200
KEPT_MS_MIN: Final = 300_000
"""Minimum time for which the series of a silent client are kept."""
KAFKA_PREFIX: Final = "org.apache.kafka."
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_]")
_NOT_TEXT = re.compile(r'[^ -~]|["\\]')

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, dict[str, str], float]


@dataclass(slots=True)
class _ClientSeries:
    expires_ms: int
    series: dict[tuple[str, Labels], float] = field(default_factory=dict)


@dataclass(slots=True)
class SeriesStats:
    """Counters since the start."""

    pushes: int = 0
    points: int = 0
    dropped_points: int = 0


class SeriesTable:
    """Series by client."""

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._clients: dict[bytes, _ClientSeries] = {}
        self._count = 0
        self.stats = SeriesStats()

    def __len__(self) -> int:
        return self._count

    def put(
        self, instance_id: bytes, labels: Mapping[str, str], points: Sequence[Point], *, now_ms: int, interval_ms: int
    ) -> None:
        """Store the points of a push. `labels` identify the client, and override labels of the same name on a point."""
        self.expire(now_ms)
        client = self._clients.setdefault(instance_id, _ClientSeries(0))
        client.expires_ms = now_ms + max(3 * interval_ms, KEPT_MS_MIN)
        self.stats.pushes += 1
        own = tuple((name, _clean_text(value)) for name, value in labels.items())
        for point in points:
            self._put_point(client, own, point)

    def _put_point(self, client: _ClientSeries, own: Labels, point: Point) -> None:
        key = (series_name(point), _labels(own, point.attributes))
        known = key in client.series
        if not math.isfinite(point.value) or (not known and self._count >= self._series_max):
            self.stats.dropped_points += 1
            return
        self.stats.points += 1
        if not known:
            self._count += 1
        before = client.series.get(key, 0.0) if point.is_delta else 0.0
        client.series[key] = before + point.value

    def expire(self, now_ms: int) -> None:
        """Remove the series of clients that have been silent for too long."""
        for instance_id in [key for key, client in self._clients.items() if client.expires_ms <= now_ms]:
            self._count -= len(self._clients.pop(instance_id).series)

    def samples(self, now_ms: int) -> Iterator[Sample]:
        """Yield all samples, grouped by name."""
        self.expire(now_ms)
        found = [
            (name, labels, value)
            for client in self._clients.values()
            for (name, labels), value in client.series.items()
        ]
        for name, labels, value in sorted(found, key=itemgetter(0)):
            yield name, dict(labels), value


def series_name(point: Point) -> str:
    """Return `client_` and the metric's name without Kafka's prefix; a sum ends in `_total`."""
    name = _NOT_NAME.sub("_", point.name[:NAME_CHARACTERS_MAX].removeprefix(KAFKA_PREFIX))
    suffix = "_total" if point.is_sum else ""
    return f"client_{name.removesuffix(suffix)}{suffix}" if name else f"client_unnamed{suffix}"


def _labels(own: Labels, attributes: Mapping[str, str]) -> Labels:
    taken = {name for name, _ in own}
    labels = []
    for key, value in sorted(attributes.items()):
        name = _NOT_NAME.sub("_", key[:LABEL_CHARACTERS_MAX])
        if not name or name[0].isdigit():
            name = f"_{name}"
        if name.startswith("__"):  # reserved: `__name__` would make Prometheus refuse everything
            name = f"_{name.lstrip('_')}"
        if name not in taken:
            taken.add(name)
            labels.append((name, _clean_text(value)))
    return (*own, *labels[:LABELS_MAX])


def _clean_text(value: str) -> str:
    return _NOT_TEXT.sub("_", value[:LABEL_CHARACTERS_MAX])
