"""Configs of consumer and share groups that are times."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class GroupTimes(NamedTuple):
    """Times of one group, in ms."""

    session_timeout_ms: int
    assignment_interval_ms: int = 0
    """Shortest time between two assignments (KIP-1263)."""


GroupTimesGetter: TypeAlias = Callable[[str], GroupTimes]
"""Returns the current times of a group."""
