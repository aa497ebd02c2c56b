"""A process that appends numbered records to a log as fast as it can, reports each ack, and waits to be killed.

`python -m tests.support.wal_writer PATH EPOCH CAPACITY DURABILITY ENGINE FIRST`. Each line it prints is a guarantee
from then on: `acked N` (every record up to number N is durable) or `trimmed N`.
"""

import asyncio
import os
import sys
from asyncio import sleep
from pathlib import Path
from random import Random
from typing import cast

import structlog

from anabranch.wal.device import open_device
from anabranch.wal.interface import AppendedRecord, OverCapacity, QueueFull, RecoveredRecord
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import Durability, EngineName, WalSettings


def body_of(number: int) -> bytes:
    """Return the body of the record with that number: its size and content follow from it."""
    random = Random(number)
    return number.to_bytes(8, "little") + random.randbytes(random.choice([0, 10, 300, 3000, 40000]))


def number_of(record: RecoveredRecord) -> int:
    return int.from_bytes(record.body[:8], "little")


def settings_of(capacity_bytes: int, durability: Durability, engine: EngineName) -> WalSettings:
    """Return settings with which a new file takes a while to be written, so that a kill comes in the middle."""
    return WalSettings(
        capacity_bytes=capacity_bytes,
        block_bytes_max=64 << 10,
        window_bytes=256 << 10,
        window_bytes_max=1 << 20,
        queue_bytes_max=1 << 20,
        prewrite_bytes=4 << 10,
        prewrite_ahead_bytes=16 << 10,
        durability=durability,
        engine=engine,
        allow_volatile=True,
    )


async def main(path: Path, epoch: int, settings: WalSettings, first: int) -> None:
    wal = DeltaWal(open_device(path, settings), settings, node_id=1, node_epoch=epoch, now_ms=lambda: epoch)
    offsets: list[tuple[int, int]] = []
    number = 0
    async for record in wal.recover():
        offsets.append((number_of(record), record.offset))
        number = number_of(record) + 1
    number = max(number, first)

    def say(text: str) -> None:
        os.write(1, f"{text}\n".encode())

    last: AppendedRecord | None = None

    def append() -> None:
        nonlocal number, last
        last = appended = wal.append([body_of(number)])
        offsets.append((number, appended.offset))
        mine = number
        appended.durable.add_done_callback(lambda error: say(f"acked {mine}") if error is None else None)
        number += 1

    while True:
        try:
            for _ in range(20):
                append()
            await sleep(0)
        except QueueFull as full:
            await full.durable
        except OverCapacity:
            if last is not None:
                await last.durable
            half = offsets[: len(offsets) // 2 + 1]
            say(f"trimming {half[-1][0]}")
            await wal.trim(half[-1][1])
            say(f"trimmed {half[-1][0]}")
            del offsets[: len(half)]


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    path, epoch, capacity_bytes, durability, engine, first = sys.argv[1:]
    settings = settings_of(int(capacity_bytes), cast("Durability", durability), cast("EngineName", engine))
    asyncio.run(main(Path(path), int(epoch), settings, int(first)))
