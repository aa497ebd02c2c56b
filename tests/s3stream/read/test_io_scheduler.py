"""GETs shared, bounded, and in the order of urgency."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace

import pytest

from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.read.io_plan import Priority
from anabranch.s3stream.read.io_scheduler import HAND_OUT_PAUSE_S, IoScheduler
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats
from tests.support.memory_store import MemoryStore
from tests.support.virtual_time import run_virtual

SETTINGS = StorageSettings(
    reads_in_flight=8, read_bytes_max=400, read_split_bytes_min=100, read_gap_bytes_max=0, read_deadline_ms=60_000
)
DATA = bytes(range(250)) * 4
READER: ContextVar[str] = ContextVar("reader")


class Bench:
    """A scheduler on a store whose GETs wait for the test."""

    def __init__(self, group: asyncio.TaskGroup, settings: StorageSettings) -> None:
        self.stats = StorageStats()
        self.store = MemoryStore("main", hook=self.hold)
        self.gate = asyncio.Event()
        self.started: list[str] = []
        self.readers: list[str] = []
        """Value of READER in each GET."""
        self.is_log_writing = False
        self.io = IoScheduler(
            settings=settings, stats=self.stats, spawn=self.spawn, is_log_writing=lambda: self.is_log_writing
        )
        self._group = group

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run in the group."""
        self._group.create_task(work)

    async def hold(self, call: str, key: str) -> None:
        """Let puts through and hold GETs."""
        if call == "get":
            self.started.append(key)
            self.readers.append(READER.get(""))
            await self.gate.wait()

    def ask(self, key: str, start: int, end: int, priority: Priority = Priority.TAIL) -> "asyncio.Future[memoryview]":
        """Queue a read."""
        return self.io.submit(self.store, key, start, end, priority)


@asynccontextmanager
async def bench(settings: StorageSettings = SETTINGS) -> AsyncIterator[Bench]:
    async with asyncio.TaskGroup() as group:
        made = Bench(group, settings)
        for key in "abcdefghijklmnop":
            await made.store.put(key, [DATA], writer_id="w")
        yield made


async def turns(count: int = 5) -> None:
    """Let ready tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_adjacent_and_equal_reads_of_one_turn_are_one_get() -> None:
    async with bench(replace(SETTINGS, read_split_bytes_min=400)) as made:
        made.gate.set()
        asked = [made.ask("a", 0, 100), made.ask("a", 100, 200), made.ask("a", 0, 100), made.ask("a", 300, 400)]
        found = [bytes(await answer) for answer in asked]
        assert found == [DATA[0:100], DATA[100:200], DATA[0:100], DATA[300:400]]
        assert made.started == ["a", "a"]
        assert (made.stats.gets, made.stats.gets_merged) == (2, 2)


async def test_a_run_is_cut_for_idle_connections_but_goes_whole_while_others_wait() -> None:
    async with bench() as made:
        alone = [made.ask("a", at, at + 100) for at in range(0, 400, 100)]
        await turns()
        assert made.started == ["a"] * 4
        busy = [made.ask(key, at, at + 100) for key in "bc" for at in range(0, 400, 100)]
        await turns()
        assert made.started == ["a"] * 4 + ["b", "c"]
        made.gate.set()
        await asyncio.gather(*alone, *busy)


async def test_catch_up_leaves_slots_for_the_tail() -> None:
    async with bench() as made:
        history = [made.ask(key, 0, 100, Priority.CATCH_UP) for key in "abcdefghijkl"]
        await turns()
        assert len(made.started) == 6
        tail = made.ask("p", 0, 100, Priority.TAIL)
        await turns()
        assert made.started[-1] == "p"
        made.gate.set()
        await asyncio.gather(tail, *history)


async def test_a_read_somebody_waits_for_now_overtakes() -> None:
    async with bench(replace(SETTINGS, reads_in_flight=1)) as made:
        first = made.ask("a", 0, 1)
        await turns()
        rest = [made.ask(key, 0, 1, Priority.READ_AHEAD) for key in "bcd"]
        made.io.raise_priority(rest[2], Priority.CATCH_UP)
        made.gate.set()
        await asyncio.gather(first, *rest)
        assert made.started == ["a", "d", "b", "c"]


async def test_the_least_urgent_is_not_starved() -> None:
    async with bench(replace(SETTINGS, reads_in_flight=1)) as made:
        first = made.ask("a", 0, 1)
        await turns()
        rest = [made.ask(key, 0, 1, Priority.COMPACTION if key == "b" else Priority.TAIL) for key in "bcdefghijklmn"]
        made.gate.set()
        await asyncio.gather(first, *rest)
        assert "b" in made.started[:8]


async def test_a_get_without_an_answer_fails_by_its_deadline_and_frees_its_slot() -> None:
    async with bench(replace(SETTINGS, reads_in_flight=1, read_deadline_ms=1)) as made:
        answers = await asyncio.gather(made.ask("a", 0, 100), made.ask("a", 0, 100), return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, StoreError)
            assert str(answer) == "main:a bytes [0, 100): no answer within 1 ms"
        made.gate.set()
        with pytest.raises(StoreError, match="no such object"):
            await made.io.read(made.store, "zzz", 0, 1, Priority.TAIL)
        assert bytes(await made.io.read(made.store, "b", 0, 1, Priority.TAIL)) == DATA[:1]


async def test_a_block_longer_than_a_get_may_be_comes_in_several() -> None:
    async with bench() as made:
        answer = made.ask("a", 5, 995)
        beside = made.ask("b", 0, 400)
        made.gate.set()
        assert bytes(await answer) == DATA[5:995]
        assert bytes(await beside) == DATA[:400]
        assert sorted(made.started) == ["a", "a", "a", "b"]
        assert (made.stats.gets, made.stats.get_bytes) == (4, 1390)


async def test_a_failing_part_of_a_long_block_fails_it_with_its_own_error() -> None:
    async with bench() as made:
        made.gate.set()
        with pytest.raises(StoreError, match="asked for bytes"):
            await made.ask("a", 500, 2000)
        assert bytes(await made.ask("a", 0, 10)) == DATA[:10]


async def test_a_long_run_is_handed_out_over_several_turns() -> None:
    """A reader decodes in the turn in which it is answered: appends must not wait for a whole run."""
    mib = 1024 * 1024
    async with bench(replace(SETTINGS, read_bytes_max=8 * mib, read_split_bytes_min=8 * mib)) as made:
        await made.store.put("long", [bytes(4 * mib)], writer_id="w")
        made.gate.set()
        answers = [made.ask("long", at * mib // 2, (at + 1) * mib // 2, Priority.CATCH_UP) for at in range(8)]
        loop = asyncio.get_running_loop()
        turn = 0
        seen: list[int] = []
        for answer in answers:
            answer.add_done_callback(lambda _: seen.append(turn))

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            if len(seen) < len(answers):
                loop.call_soon(next_turn)

        next_turn()
        await asyncio.gather(*answers)
        assert made.stats.gets == 1
        assert max(seen.count(each) for each in set(seen)) <= 2


def test_runs_leave_the_loop_to_appends_that_wait_for_the_log() -> None:
    """A MiB a turn, and the next turn a pause later; without appends at once."""

    async def seconds_for_four_mib(*, is_log_writing: bool) -> float:
        mib = 1024 * 1024
        async with bench(replace(SETTINGS, read_bytes_max=8 * mib, read_split_bytes_min=8 * mib)) as made:
            made.is_log_writing = is_log_writing
            await made.store.put("long", [bytes(4 * mib)], writer_id="w")
            made.gate.set()
            loop = asyncio.get_running_loop()
            began = loop.time()
            await asyncio.gather(*(made.ask("long", at * mib, (at + 1) * mib, Priority.CATCH_UP) for at in range(4)))
            return loop.time() - began

    assert run_virtual(seconds_for_four_mib(is_log_writing=True)) == pytest.approx(3 * HAND_OUT_PAUSE_S)
    assert run_virtual(seconds_for_four_mib(is_log_writing=False)) == 0


async def test_a_get_runs_in_the_context_of_its_reader_whichever_get_made_room_for_it() -> None:
    async with bench(replace(SETTINGS, reads_in_flight=1)) as made:
        answers = []
        for key in "abc":
            token = READER.set(f"reader of {key}")
            answers.append(made.ask(key, 0, 100))
            READER.reset(token)
        await turns()
        assert made.started == ["a"]
        made.gate.set()
        for answer in answers:
            await answer
        assert made.readers == ["reader of a", "reader of b", "reader of c"]
