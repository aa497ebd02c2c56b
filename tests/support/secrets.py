"""Marked secrets that tests plant, and the search for them in everything that can be seen."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.node import NodeProcess

MARK: Final = "MARKED-SECRET"
PATHS: Final = ("/api/v1/status", "/metrics", "/api/v1/nodes", "/api/v1/cluster/status")


def node_output(process: NodeProcess) -> dict[str, str]:
    """Text of the pages of a running node's admin port, by path."""
    return {path: process.ask(path).decode() for path in PATHS}


def assert_unmarked(shown: Mapping[str, str], others: Sequence[str] = ()) -> None:
    """Assert that no text has a marked secret, or one of the others."""
    for where, text in shown.items():
        assert MARK not in text, where
        assert not [other for other in others if other in text], where
