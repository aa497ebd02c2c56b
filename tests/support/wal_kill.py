"""Kill a writing process repeatedly, and check the log against everything the process reported before it died."""

import subprocess
import sys
from pathlib import Path
from random import Random

from anabranch.wal.device import open_device
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import WalSettings
from tests.support.wal_writer import body_of, number_of

ROOT = Path(__file__).resolve().parents[2]


def run_writer(path: Path, epoch: int, settings: WalSettings, first: int, lines: int) -> list[str]:
    """Start a writer, kill it with SIGKILL after it printed `lines` lines, and return its output."""
    arguments = [str(path), str(epoch), str(settings.capacity_bytes), settings.durability, settings.engine, str(first)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.wal_writer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = [line for _, line in zip(range(lines), process.stdout, strict=False)]
        process.kill()
        printed += process.stdout.readlines()
    assert len(printed) >= lines, "the writer stopped by itself"
    return [line for line in printed if line.endswith("\n")]


async def kill_and_recover(path: Path, rounds: int, settings: WalSettings, random: Random) -> tuple[int, int]:
    """Return how many records were acked in all, and how many kills came before the file was written in full.

    `settings` are those of `wal_writer.settings_of`. Raises AssertionError for a record that was lost, doubled or
    changed.
    """
    acked, trimming, trimmed, total, early = -1, -1, -1, 0, 0
    for round_number in range(rounds):
        epoch = 2 * round_number + 1
        printed = run_writer(path, epoch, settings, acked + 1, random.randrange(1, 1000))
        for line in printed:
            what, number = line.split()
            if what == "acked":
                assert int(number) > acked, "acked out of order"
                acked = int(number)
                total += 1
            elif what == "trimming":
                trimming = int(number)
            else:
                trimmed = int(number)
        device = open_device(path, settings)
        early += bool(await device.unwritten())
        wal = DeltaWal(device, settings, node_id=1, node_epoch=epoch + 1, now_ms=lambda: 0)
        numbers = []
        async for record in wal.recover():
            numbers.append(number_of(record))
            assert bytes(record.body) == body_of(numbers[-1]), f"record {numbers[-1]} changed"
        if random.random() < 0.5:
            await wal.close()
        else:
            await wal.device.close()
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else trimming == acked
        assert not numbers or trimmed < numbers[0] <= trimming + 1, f"{numbers[0]}, trimmed {trimmed} to {trimming}"
        assert not numbers or numbers[-1] >= acked, f"acked {acked}, found up to {numbers[-1]}"
        acked = max(acked, numbers[-1] if numbers else -1)
    return total, early
