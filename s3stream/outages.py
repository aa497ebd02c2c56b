"""What does not answer at the moment, since when, and what it said last: for the status of a node.

Whoever meets a failure that is waited for notes it here, and whoever then succeeds at the same place says that it is
over. Nothing is decided by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

CATALOG: Final = "catalog"


def object_store(name: str) -> str:
    """Place of an object store's outages."""
    return f"object store {name}"


@dataclass(frozen=True, slots=True)
class Outage:
    """A place that fails."""

    where: str
    reason: str
    """The last error's text."""
    since_ms: int
    """Wall clock of the first failure since the last success."""


class Outages:
    """Those of one node, by place."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._current: dict[str, Outage] = {}

    def note(self, where: str, error: Exception) -> None:
        """A call has failed that will be repeated."""
        known = self._current.get(where)
        if known is None:
            self._current[where] = Outage(where, str(error), self._now_ms())
        else:
            self._current[where] = replace(known, reason=str(error))

    def over(self, where: str) -> None:
        """A call has succeeded."""
        self._current.pop(where, None)

    def current(self) -> Sequence[Outage]:
        """Those that last, the longest first."""
        return sorted(self._current.values(), key=lambda outage: (outage.since_ms, outage.where))
