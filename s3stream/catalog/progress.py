"""Progress of a catalog: numbers that only grow, unless its database goes back to an earlier state."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class CatalogProgress(NamedTuple):
    """Numbers of the last changes that a catalog has, or was once seen to have."""

    change: int = 0
    """Number of the last change that other nodes must see."""
    uploads: Mapping[int, int] = MappingProxyType({})
    """By node id, the number of uploads that the catalog has committed for the node."""

    def joined(self, other: "CatalogProgress") -> "CatalogProgress":
        """Return the progress of a catalog that has what both say."""
        uploads = {key: max(self.uploads.get(key, 0), number) for key, number in other.uploads.items()}
        return CatalogProgress(max(self.change, other.change), {**self.uploads, **uploads})

    def lacks(self, known: "CatalogProgress") -> str:
        """Return, for messages, the earlier state that is missing here; empty if none is."""
        lacks = [
            f"node {node_id} has committed {number} uploads, and it knows {self.uploads.get(node_id, 0)}"
            for node_id, number in known.uploads.items()
            if number > self.uploads.get(node_id, 0)
        ]
        if known.change > self.change:
            lacks.append(f"its last change was {known.change}, and is {self.change}")
        return "; ".join(lacks)
