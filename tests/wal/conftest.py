"""Fixtures for the write-ahead log's tests: quiet messages, both engines, file systems that report holes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import structlog

from anabranch.wal.device import unwritten_ranges
from anabranch.wal.device_ring import Ring
from anabranch.wal.settings import EngineName


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


@pytest.fixture
def io_uring() -> None:
    """Skip the test where the kernel refuses io_uring."""
    try:
        Ring(2).close()
    except OSError as error:
        pytest.skip(f"no io_uring: {error}")


@pytest.fixture(params=["io_uring", "threads"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    """Each engine in turn."""
    if request.param == "io_uring":
        request.getfixturevalue("io_uring")
    return cast("EngineName", request.param)
