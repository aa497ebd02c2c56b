"""SIGKILL of a writing process, on a real file."""

from pathlib import Path
from random import Random

from tests.support.wal_kill import kill_and_recover


async def test_kill_9_loses_nothing_acked(tmp_path: Path) -> None:
    assert await kill_and_recover(tmp_path / "wal", 6, 4 << 20, "flush", Random(3)) > 1000
