"""SIGKILL of a writing process, on a real file."""

from pathlib import Path
from random import Random

import pytest

from anabranch.wal.settings import EngineName
from tests.support.wal_kill import kill_and_recover
from tests.support.wal_writer import settings_of

pytestmark = pytest.mark.slow


async def test_kill_9_loses_nothing_acked(tmp_path: Path, engine: EngineName) -> None:
    acked, _ = await kill_and_recover(tmp_path / "wal", 6, settings_of(4 << 20, "flush", engine), Random(3))
    assert acked > 1000


@pytest.mark.usefixtures("holes")
async def test_kill_9_while_the_file_is_being_written_loses_nothing_acked(tmp_path: Path, engine: EngineName) -> None:
    acked, early = await kill_and_recover(tmp_path / "wal", 6, settings_of(256 << 20, "direct", engine), Random(4))
    assert acked > 1000
    assert early >= 3
