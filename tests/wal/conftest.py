"""Fixtures for the write-ahead log's tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from wal.device import unwritten_ranges


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep the log's messages (structlog) out of the tests' output."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def holes(tmp_path: Path) -> None:
    """Skip the test on a file system that does not tell which parts of a file were written."""
    size_bytes = 1 << 20
    with (tmp_path / "probe").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        if unwritten_ranges(file.fileno(), size_bytes) != [(0, size_bytes)]:
            pytest.skip("the file system does not tell which parts of a file were written")
