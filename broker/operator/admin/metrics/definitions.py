"""Definitions of metrics: name, type, help and labels, and the families that a scrape builds from them.

Names follow Prometheus' rules: base units (seconds, bytes) at the end, `_total` for counters. The documentation is
written from the same definitions, so no metric is without a description.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Final, Literal

from prometheus_client import Metric
from prometheus_client.samples import Sample

SAMPLES_PER_PIECE: Final = 250
"""Samples of one piece of a scrape, which take about 1 ms. Between two pieces the loop serves clients."""
_UNITS: Final = ("seconds", "bytes")
_TOTAL: Final = "_total"
_LEAST_BUCKET: Final = 7
"""Number of the first bucket of latencies that is shown: under 2**7 us."""

Row = tuple[Sequence[str], float]
"""Values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric. `name` is the name of its samples; those of a histogram add `_bucket`, `_count` and `_sum`."""

    name: str
    type: Literal["counter", "gauge", "histogram", "unknown"]
    help: str
    labels: tuple[str, ...] = ()

    def family(self, rows: Iterable[Row]) -> Metric:
        """Return a family with one sample for each row."""
        metric = self._empty()
        name, labels = self.name, self.labels
        metric.samples = [Sample(name, dict(zip(labels, values, strict=True)), value) for values, value in rows]
        return metric

    def single(self, value: float) -> Metric:
        """Return a family with one sample without labels."""
        return self.family([((), value)])

    def pieces(self, rows: Iterable[Row]) -> Iterator[Metric]:
        """Yield families of this metric with a limited number of samples each, to be written one after the other."""
        yield from self.labelled((dict(zip(self.labels, values, strict=True)), value) for values, value in rows)

    def labelled(self, samples: Iterable[tuple[dict[str, str], float]]) -> Iterator[Metric]:
        """Yield such families of samples that have labels of their own."""
        left = (Sample(self.name, labels, value) for labels, value in samples)
        while part := list(islice(left, SAMPLES_PER_PIECE)):
            metric = self._empty()
            metric.samples = part
            yield metric

    def buckets(self, rows: Iterable[tuple[Sequence[str], Sequence[int], float]]) -> Metric:
        """Return a histogram of rows with labels, counts by bucket, and the sum in seconds.

        Bucket n counts durations under 2**n us, the last one all others. They become cumulative.
        """
        metric = self._empty()
        for values, counts, seconds in rows:
            labels = dict(zip(self.labels, values, strict=True))
            cumulative = list(accumulate(counts))
            for bucket in range(_LEAST_BUCKET, len(counts) - 1):
                bound = {"le": repr((1 << bucket) / 1e6)}
                metric.samples.append(Sample(f"{self.name}_bucket", labels | bound, cumulative[bucket]))
            metric.samples.append(Sample(f"{self.name}_bucket", labels | {"le": "+Inf"}, cumulative[-1]))
            metric.samples.append(Sample(f"{self.name}_count", labels, cumulative[-1]))
            metric.samples.append(Sample(f"{self.name}_sum", labels, seconds))
        return metric

    def _empty(self) -> Metric:
        base = self.name.removesuffix(_TOTAL) if self.type == "counter" else self.name
        unit = next((unit for unit in _UNITS if base.endswith(f"_{unit}")), "")
        return Metric(base, self.help, self.type, unit)


def counter(name: str, text: str, *labels: str) -> Definition:
    """Define a counter; its name ends in `_total`."""
    assert name.endswith(_TOTAL), name
    return Definition(name, "counter", text, labels)


def gauge(name: str, text: str, *labels: str) -> Definition:
    """Define a gauge."""
    assert not name.endswith(_TOTAL), name
    return Definition(name, "gauge", text, labels)


def histogram(name: str, text: str, *labels: str) -> Definition:
    """Define a histogram of durations."""
    assert name.endswith("_seconds"), name
    return Definition(name, "histogram", text, labels)


def definitions_in(values: Mapping[str, object]) -> Sequence[Definition]:
    """Return the definitions among a module's values, single ones and those in tables, in their order."""
    found: list[Definition] = []
    for value in values.values():
        if isinstance(value, Definition):
            found.append(value)
        elif isinstance(value, dict):
            found += [each for each in value.values() if isinstance(each, Definition)]
    return found


def of_stats(table: Mapping[str, Definition], stats: Any) -> Iterator[Metric]:
    """Yield a family for each field of a component's counters, as the table of that component says."""
    for name, definition in table.items():
        yield definition.single(getattr(stats, name))
