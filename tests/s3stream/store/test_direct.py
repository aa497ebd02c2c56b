"""Direct writes: the same bytes as plain writes, for any split into pieces and any start position."""

import os
import random
from pathlib import Path

import pytest

from anabranch.s3stream.store.direct import DIRECT_BYTES_MIN, PAGE_BYTES, STAGE_BYTES, FileWriter


def pieces(rng: random.Random, total: int) -> list[bytes]:
    """Random bytes in random pieces, some of them empty."""
    data = rng.randbytes(total)
    cuts = sorted(rng.randrange(total + 1) for _ in range(rng.randrange(20)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


@pytest.mark.parametrize(
    "total",
    [0, 1, DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 1, 2 * STAGE_BYTES, 3 * STAGE_BYTES + 4711],
)
@pytest.mark.parametrize("position", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 12345])
def test_bytes_arrive_at_the_file_s_position(tmp_path: Path, total: int, position: int) -> None:
    parts = pieces(random.Random(f"{total} {position}"), total)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b"\xaa" * position)
        assert FileWriter().write(fd, parts) == total
        os.write(fd, b"end")
    finally:
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"\xaa" * position + b"".join(parts) + b"end"


def test_the_page_cache_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole pages leave in direct mode, the rest does not; afterwards the file is in its old mode."""
    import fcntl

    written: list[tuple[int, bool]] = []
    writev = os.writev

    def spy(fd: int, views: list[memoryview]) -> int:
        count = writev(fd, views)
        written.append((count, bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)))
        return count

    monkeypatch.setattr(os, "writev", spy)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.lseek(fd, PAGE_BYTES - 10, os.SEEK_SET)
        FileWriter().write(fd, [bytes(STAGE_BYTES + PAGE_BYTES + 20)])
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    finally:
        os.close(fd)
    if not any(direct for _, direct in written):
        pytest.skip("the file system of the test's folder has no O_DIRECT")
    assert written == [(10, False), (STAGE_BYTES, True), (PAGE_BYTES, True), (10, False)]
