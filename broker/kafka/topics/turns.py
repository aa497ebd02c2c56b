"""Turns to change what the cluster shares: one change at a time, each of the newest state that the catalog has."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class ChangeTurns(Protocol):
    """Gives turns to commands. `broker.cluster.membership.loop` implements it, which stands above the topics."""

    def changing(self, *, see_outcome: bool = False) -> AbstractAsyncContextManager[None]:
        """Take a turn: earlier changes, by any node, are applied here before the body runs. Raises StorageError.

        With `see_outcome` this node has seen the body's own change, too, when the turn ends.
        """
        ...
