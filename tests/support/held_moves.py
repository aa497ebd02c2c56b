"""Holds back the moves of nodes in this process, so that a test can look at their orders.

hold_moves(monkeypatch)
...                                      # orders stay
async with moves_carried_out(nodes):
    ...                                  # leaders carry them out
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from anabranch.broker.cluster.handover import orders
from anabranch.broker.cluster.node import Node

AT_ONCE_MAX = orders.AT_ONCE_MAX


def hold_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no move begin until the end of the test, but inside `moves_carried_out`."""
    monkeypatch.setattr(orders, "AT_ONCE_MAX", 0)


@asynccontextmanager
async def moves_carried_out(nodes: Sequence[Node]) -> AsyncIterator[None]:
    """Carry out all orders while the body runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "AT_ONCE_MAX", AT_ONCE_MAX)
        for node in nodes:
            for listener in node.serving.topics.listeners:
                listener()
        yield
