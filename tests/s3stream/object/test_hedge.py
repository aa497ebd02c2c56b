"""A slow part is sent twice, and counted once."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch.s3stream.background import BackgroundIo, Pace
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.model import ObjectKind, StreamBatch
from anabranch.s3stream.object.hedge import HEDGES_MAX, LOOK_S_MIN, OBSERVED_MIN, PartHedge
from anabranch.s3stream.object.reader import read_index
from anabranch.s3stream.object.writer import ObjectWriter, PartLimits
from anabranch.s3stream.store.interface import PartReceipt
from anabranch.wal.interface import Durable
from tests.support.memory_store import MemoryStore
from tests.support.virtual_time import run_virtual

MIB = 1024 * 1024


@dataclass(slots=True)
class Counts:
    hedged_parts: int = 0
    hedges_won: int = 0


def hedge(counts: Counts, *, ratio: float = 3) -> PartHedge:
    return PartHedge(ratio=ratio, delay_ms_min=500, counts=counts, clock=lambda: asyncio.get_running_loop().time())


class TimedAttempts:
    """Attempts that take their time, one after the other."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.cancelled = 0

    async def send(self, *, pace: Pace | None) -> PartReceipt:
        seconds = self.seconds.pop(0)
        try:
            if pace is not None:
                async with pace.piece(100):
                    pass
            await asyncio.sleep(abs(seconds))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if seconds < 0:
            raise StoreError(f"after {-seconds} s")
        return PartReceipt(1, str(seconds), 100)


async def practised(counts: Counts, *, ratio: float = 3) -> PartHedge:
    made = hedge(counts, ratio=ratio)
    for _ in range(OBSERVED_MIN + 12):
        await made.put(TimedAttempts(1).send, 100)
    return made


async def elapsed(work: Coroutine[Any, Any, PartReceipt]) -> tuple[str, float]:
    began = asyncio.get_running_loop().time()
    receipt = await work
    return receipt.tag, round(asyncio.get_running_loop().time() - began, 3)


def test_a_slow_part_is_sent_again_and_the_first_success_counts() -> None:
    async def main() -> None:
        counts = Counts()
        made = await practised(counts)
        script = TimedAttempts(100, 2)
        assert await elapsed(made.put(script.send, 100)) == ("2", 5)
        assert (script.cancelled, counts) == (1, Counts(1, 1))
        script = TimedAttempts(4, 50)
        assert await elapsed(made.put(script.send, 100)) == ("4", 4)
        assert (script.cancelled, counts) == (1, Counts(2, 1))
        # A part of ten times the size may take ten times as long.
        assert made.delay_s(1000) == pytest.approx(10 * (made.delay_s(100) or 0))
        assert made.delay_s(1) == 0.5

    run_virtual(main())


def test_failures_of_one_attempt_leave_the_other() -> None:
    async def main() -> None:
        counts = Counts()
        made = await practised(counts)
        assert await elapsed(made.put(TimedAttempts(-10, 9).send, 100)) == ("9", 12)
        assert await elapsed(made.put(TimedAttempts(10, -1).send, 100)) == ("10", 10)
        for _ in range(10):
            await made.put(TimedAttempts(1).send, 100)
        with pytest.raises(StoreError, match="after 40 s"):
            await made.put(TimedAttempts(-40, -80).send, 100)
        with pytest.raises(StoreError, match="after 1 s"):
            await made.put(TimedAttempts(-1).send, 100)

    run_virtual(main())


def test_hedges_are_few_and_need_experience() -> None:
    async def main() -> None:
        counts = Counts()
        made = hedge(counts)
        assert await elapsed(made.put(TimedAttempts(1000).send, 100)) == ("1000", 1000)
        off = await practised(counts, ratio=0)
        assert await elapsed(off.put(TimedAttempts(1000).send, 100)) == ("1000", 1000)
        assert counts == Counts()
        made = await practised(counts)
        for _ in range(200):
            await made.put(TimedAttempts(0.1).send, 100)
        # A store that has become slow: at most the hedges saved up, and then one for ten parts.
        for _ in range(100):
            await made.put(TimedAttempts(10_000, 10_000).send, 1)
        assert HEDGES_MAX <= counts.hedged_parts <= 25

    run_virtual(main())


def test_waiting_for_a_turn_makes_no_part_slow() -> None:
    async def main() -> None:
        counts = Counts()
        made = await practised(counts)
        log_write = Durable()
        asyncio.get_running_loop().call_later(60, log_write.complete)
        pace = BackgroundIo(lambda: log_write)
        # One second after the turn came; the delay is three seconds.
        assert await elapsed(made.put(TimedAttempts(1).send, 100, pace)) == ("1", 61)
        assert counts == Counts()
        assert made.delay_s(100) == pytest.approx(3)
        # A part that is slow by itself is still sent twice.
        assert await elapsed(made.put(TimedAttempts(100, 2).send, 100, pace)) == ("2", 5)
        assert counts == Counts(1, 1)

    run_virtual(main())


def test_a_part_that_waits_is_not_looked_at_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    real = asyncio.wait

    async def wait(tasks: Any, *, timeout: float | None = None, **options: Any) -> Any:
        looks.append(asyncio.get_running_loop().time())
        return await real(tasks, timeout=timeout, **options)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made = await practised(Counts())
        log_write = Durable()

        async def send(*, pace: Pace | None) -> PartReceipt:
            assert pace is not None
            await asyncio.sleep(2.9999)
            async with pace.piece(100):
                return PartReceipt(1, "1", 100)

        loop.call_later(10, log_write.complete)
        await made.put(send, 100, BackgroundIo(lambda: log_write))
        assert len(looks) <= 10 / LOOK_S_MIN + 5

    monkeypatch.setattr(asyncio, "wait", wait)
    run_virtual(main())


def test_the_waits_of_a_second_attempt_are_its_own() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        counts = Counts()
        made = hedge(counts)
        for _ in range(OBSERVED_MIN):
            await made.put(TimedAttempts(1).send, 100)
        log_write = Durable()
        loop.call_later(20, log_write.complete)
        sent = 0

        async def send(*, pace: Pace | None) -> PartReceipt:
            nonlocal sent
            sent += 1
            assert pace is not None
            if sent == 2:
                async with pace.piece(100):
                    await asyncio.sleep(100)
            await asyncio.sleep(50)
            return PartReceipt(1, "1", 100)

        await made.put(send, 100, BackgroundIo(lambda: log_write))
        assert counts.hedged_parts == 1
        # The first attempt took fifty seconds, and waited for nothing. It is the slowest of nine.
        assert made.delay_s(100) == pytest.approx(3 * 50)

    run_virtual(main())


def test_a_cancelled_upload_leaves_no_attempt() -> None:
    async def main() -> None:
        made = await practised(Counts())
        script = TimedAttempts(100, 100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await made.put(script.send, 100)
        assert (script.cancelled, script.seconds) == (2, [])

    run_virtual(main())


def test_an_object_with_a_hedged_part_is_committed_once_and_whole() -> None:
    """The first attempt of one part hangs forever; the object is the same as without the hang."""

    async def write(store: MemoryStore, key: str, made: PartHedge) -> bytes:
        async with ObjectWriter(
            store, key, object_id=1, kind=ObjectKind.SO, writer_id="w", parts=PartLimits(5 * MIB), hedge=made
        ) as writer:
            for base in range(60):
                await writer.write(StreamBatch(1, base, base + 1, 1, -1, memoryview(bytes([base]) * MIB)))
            await writer.finish()
        await read_index(store, key)
        return store.objects[key][0]

    async def main() -> None:
        parts = 0
        stuck: list[str] = []

        async def slow(call: str, key: str) -> None:
            nonlocal parts
            if call == "part":
                parts += 1
                await asyncio.sleep(0.2)
                if key == "slow" and not stuck:
                    stuck.append(key)
                    await asyncio.Event().wait()

        counts = Counts()
        made = hedge(counts)
        store = MemoryStore("main", hook=slow)
        whole = await write(store, "even", made)
        sent = parts
        assert counts == Counts()
        assert await write(store, "slow", made) == whole
        assert (counts, parts) == (Counts(1, 1), 2 * sent + 1)
        assert (store.uploads, store.calls.multipart) == (set(), 4)

    run_virtual(main())
