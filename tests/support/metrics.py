"""Samples of a scrape, by name and labels."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics.exposition import scrape


def samples_in(text: str) -> list[Sample]:
    """All samples of a scrape in Prometheus' text format."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


class Samples:
    """The samples of one scrape."""

    def __init__(self, text: str | bytes) -> None:
        self.text = text if isinstance(text, str) else text.decode()
        self._values = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples_in(self.text)}

    def get(self, name: str, **labels: str) -> float | None:
        """Value of a sample with exactly these labels; None if there is none."""
        return self._values.get((name, tuple(sorted(labels.items()))))

    def value(self, name: str, **labels: str) -> float:
        """The same of a sample that must be there."""
        found = self.get(name, **labels)
        assert found is not None, f"no sample {name}{labels}; of that name: {self.of(name)}"
        return found

    def of(self, name: str) -> Mapping[tuple[tuple[str, str], ...], float]:
        """Values of a name by labels."""
        return {labels: value for (each, labels), value in self._values.items() if each == name}

    @property
    def names(self) -> frozenset[str]:
        """Names of all samples."""
        return frozenset(name for name, _ in self._values)


async def metrics_of(node: Node) -> Samples:
    """Scrape a node in this loop."""
    return Samples((await scrape(node)).body)
