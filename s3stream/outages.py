"""Current outages of the catalog and the object stores, for the status of a node.

A caller that waits for a failed service notes the failure here, and its end when a call succeeds again. No decision
depends on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

CATALOG: Final = "catalog"


def object_store(name: str) -> str:
    """Return the place under which outages of an object store are noted."""
    return f"object store {name}"


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of one place: the catalog or an object store."""

    where: str
    reason: str
    """Text of the last error."""
    since_ms: int
    """Wall clock of the first failure since the last success."""


class Outages:
    """Current outages of one node, by place."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._current: dict[str, Outage] = {}

    def note(self, where: str, error: Exception) -> None:
        """Note that a call failed and will be repeated."""
        known = self._current.get(where)
        if known is None:
            self._current[where] = Outage(where, str(error), self._now_ms())
        else:
            self._current[where] = replace(known, reason=str(error))

    def over(self, where: str) -> None:
        """Note that a call succeeded: the outage, if any, is over."""
        self._current.pop(where, None)

    def current(self) -> Sequence[Outage]:
        """Return the current outages, the longest first."""
        return sorted(self._current.values(), key=lambda outage: (outage.since_ms, outage.where))
