"""The object log while it is used: batches, order, repeated and second PUTs, back-pressure, fences, trims, the end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import uvloop

from anabranch.wal.interface import OverCapacity, QueueFull, RecordTooLarge, WalError, WalFailed, WalFenced
from anabranch.wal.object.format import EndedBy, Flags, Position
from anabranch.wal.object.recovery import end_log
from anabranch.wal.object.settings import ObjectWalSettings
from tests.support.memory_store import MemoryStore
from tests.support.object_log import NAME, TestStore, header_at, opened_wal, sequences
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

SETTINGS = ObjectWalSettings(capacity_bytes=100_000, put_interval_ms=0, batch_bytes_max=1_000, queue_bytes_max=20_000)


def time_s() -> float:
    return asyncio.get_running_loop().time()


def test_an_append_after_idleness_goes_out_at_once_with_those_of_its_turn() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), settings=SETTINGS)
        began = time_s()

        first, second = wal.append([b"a", b"b"]), wal.append([b"c"])
        await second.durable

        assert (first.offset, first.end_offset, second.offset) == (0, 26, 26)
        assert first.durable is second.durable
        assert time_s() == began
        assert header_at(memory, 1, 1).records == 2
        await wal.close()

    run_virtual(main())


def test_a_batch_waits_while_another_is_in_flight_until_it_is_old_or_large_or_alone() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        store = TestStore(memory)
        wal, _ = await opened_wal(store, settings=SETTINGS)
        gates = [store.gate(sequence) for sequence in (1, 2, 3)]
        wal.append([b"in flight"])
        await until(lambda: len(store.puts) == 2, pause_s=0.001)

        began = time_s()
        wal.append([b"old"])
        await until(lambda: len(store.puts) == 3, pause_s=0.001)
        assert time_s() - began == pytest.approx(0.1, abs=0.002)
        began = time_s()
        for _ in range(4):
            wal.append([bytes(300)])
        await until(lambda: len(store.puts) == 4, pause_s=0.001)
        assert time_s() - began < 0.1
        assert header_at(memory, 1, 0).records == 0
        last = wal.append([b"alone"])
        for gate in gates:
            gate.set()
        began = time_s()
        await last.durable
        assert time_s() - began < 0.1
        await wal.close()

    run_virtual(main())


def test_a_fast_store_is_asked_for_a_limited_number_of_puts_a_second() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=replace(SETTINGS, put_interval_ms=50, batch_bytes_max=2_000))
        await asyncio.sleep(1)
        began, before = time_s(), len(store.puts)
        await wal.append([b"after idleness"]).durable
        assert time_s() == began
        await wal.append([b"the next one"]).durable
        assert time_s() - began == pytest.approx(0.05, abs=0.002)
        while time_s() < began + 1:
            wal.append([b"a"])
            await asyncio.sleep(0.001)
        assert 18 <= len(store.puts) - before <= 21
        began, before = time_s(), len(store.puts)
        last = [wal.append([bytes(1_900)]) for _ in range(5)][-1]
        await until(lambda: len(store.puts) >= before + 4)
        assert time_s() - began < 0.01, "full batches do not wait"
        await last.durable
        await wal.close()

    run_virtual(main())


def test_a_batch_that_is_alone_again_does_not_wait_for_its_age() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=replace(SETTINGS, batch_ms=1_000, put_interval_ms=50))
        await asyncio.sleep(1)
        gate = store.gate(1)
        began = time_s()
        wal.append([b"in flight"])
        await asyncio.sleep(0.01)
        alone = wal.append([b"alone"])
        gate.set()
        await alone.durable
        assert time_s() - began == pytest.approx(0.05, abs=0.002)
        await wal.close()

    run_virtual(main())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_append_out_of_an_ack_is_acked_on_either_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """uvloop's handle of a timer that is due at once has no time."""

    async def main() -> None:
        wal, _ = await opened_wal(TestStore(MemoryStore("s")), settings=SETTINGS)
        outcome = asyncio.get_running_loop().create_future()
        first = wal.append([b"a"])
        first.durable.add_done_callback(lambda _: wal.append([b"b"]).durable.add_done_callback(outcome.set_result))
        assert await outcome is None
        await wal.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_acks_come_in_order_whatever_the_store_answers_first() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=SETTINGS)
        gate = store.gate(1)
        acked: list[int] = []
        last = wal.append([bytes(990)])
        last.durable.add_done_callback(lambda _: acked.append(0))
        for number in range(1, 5):
            last = wal.append([bytes(990)])
            last.durable.add_done_callback(partial(lambda number, _: acked.append(number), number))
        await until(lambda: len(sequences_of(store)) == 4, pause_s=0.001)
        assert not acked

        gate.set()
        await last.durable

        assert acked == [0, 1, 2, 3, 4]
        await wal.close()

    run_virtual(main())


def sequences_of(store: TestStore) -> list[int]:
    memory = store._store  # noqa: SLF001
    assert isinstance(memory, MemoryStore)
    return sequences(memory, 1)


def test_no_more_puts_are_in_flight_than_allowed() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=replace(SETTINGS, puts_in_flight=2))
        gates = [store.gate(sequence) for sequence in (1, 2)]
        last = [wal.append([bytes(990)]) for _ in range(6)][-1]
        await asyncio.sleep(0.05)
        assert len(store.puts) == 3

        for gate in gates:
            gate.set()
        await last.durable
        assert len(store.puts) == 7
        await wal.close()

    run_virtual(main())


def test_a_put_without_an_answer_is_repeated_and_its_own_object_is_a_success() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        store = TestStore(memory)
        wal, _ = await opened_wal(store, settings=SETTINGS)
        lost = iter([True, True, False])
        store.lose = lambda _key: next(lost, False)

        await wal.append([b"a"]).durable

        assert store.puts.count(NAME.key(Position(1, 1))) == 3
        assert wal.stats.repeated_writes == 2
        await wal.close()

    run_virtual(main())


def test_a_slow_put_is_sent_a_second_time_with_the_same_bytes() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        store = TestStore(memory)

        async def usual(call: str, _key: str) -> None:
            if call == "put":
                await asyncio.sleep(0.02)

        memory.hook = usual
        wal, _ = await opened_wal(store, settings=SETTINGS)
        await wal.append([b"a"]).durable
        store.gate(2)  # never set
        began = time_s()

        await wal.append([b"b"]).durable

        assert time_s() - began == pytest.approx(0.22)
        assert store.puts[-2:] == [NAME.key(Position(1, 2))] * 2
        assert wal.stats.repeated_writes == 1
        await wal.close()

    run_virtual(main())


def test_an_outage_is_back_pressure_and_heals() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        store = TestStore(memory)
        wal, _ = await opened_wal(store, settings=SETTINGS)
        store.refuse = lambda _key: True
        appended = [wal.append([bytes(990)])]
        appended += [wal.append([bytes(976)]) for _ in range(18)]
        with pytest.raises(QueueFull, match="the store is behind") as full:
            wal.append([bytes(990)])
        await asyncio.sleep(600)
        assert wal.error is None
        assert not any(each.durable.done for each in appended)

        store.refuse = lambda _key: False
        await full.value.durable
        await appended[-1].durable

        wal.append([b"more"])
        await wal.close()
        assert header_at(memory, 1, max(sequences(memory, 1))).flags is Flags.CLOSED

    run_virtual(main())


def test_a_fence_stops_the_log_and_names_who_put_it() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory, "old"), settings=SETTINGS)
        await wal.append([b"a"]).durable
        tail = await end_log(TestStore(memory, "new"), NAME, 2, EndedBy(9, 4))

        appended = wal.append([b"b"])
        with pytest.raises(WalFenced, match="fenced by node 9 with epoch 4"):
            await appended.durable

        assert isinstance(wal.error, WalFenced)
        with pytest.raises(WalFenced):
            wal.append([b"c"])
        with pytest.raises(WalFenced):
            await wal.trim(0)
        assert [bytes(record.body) async for record in tail.records()] == [b"a"]
        await wal.close()

    run_virtual(main())


def test_an_object_of_another_writer_under_a_key_stops_the_log() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), settings=SETTINGS)
        await memory.put(NAME.key(Position(1, 1)), [b"foreign"], writer_id="x")

        with pytest.raises(WalFenced, match="another writer's object has this key"):
            await wal.append([b"a"]).durable
        await wal.close()

    run_virtual(main())


def test_an_error_that_is_no_outage_stops_the_log() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=SETTINGS)

        def broken(_key: str) -> bool:
            raise ValueError("a bug")

        store.refuse = broken
        with pytest.raises(WalFailed, match="a bug"):
            await wal.append([b"a"]).durable
        await wal.close()

    run_virtual(main())


def test_the_number_of_objects_past_the_trim_is_bounded() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), settings=replace(SETTINGS, objects_max=32))
        offsets = []
        for number in range(32):
            assert wal.is_long is (number > 2), "a trim is asked for at a sixteenth"
            record = wal.append([b"small"])
            offsets.append(record.offset)
            await record.durable
        with pytest.raises(OverCapacity, match="32 objects hold what is not trimmed"):
            wal.append([b"small"])
        await wal.trim(offsets[-2])
        assert not wal.is_long
        await wal.append([b"small"]).durable
        await wal.close()

    run_virtual(main())


def test_a_full_log_refuses_until_it_is_trimmed() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), settings=replace(SETTINGS, capacity_bytes=4_000))
        appended = [wal.append([bytes(976)]) for _ in range(4)]
        assert wal.used_bytes == 4_000
        with pytest.raises(OverCapacity, match="0 of 4000 bytes free"):
            wal.append([b""])
        with pytest.raises(RecordTooLarge):
            wal.append([bytes(1000)])
        await appended[-1].durable

        await wal.trim(appended[2].offset)

        assert wal.used_bytes == 1_000
        assert sequences(memory, 1) == [4, 5]
        assert header_at(memory, 1, 5).first_live == Position(1, 4)
        await wal.append([bytes(976)]).durable
        await wal.close()

    run_virtual(main())


def test_keys_are_deleted_only_when_the_object_that_names_the_first_live_one_is_durable() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        store = TestStore(memory)
        wal, _ = await opened_wal(store, settings=SETTINGS)
        first = wal.append([bytes(990)])
        await first.durable
        before = store.gate(2)
        second = wal.append([bytes(990)])
        await until(lambda: len(store.puts) == 3, pause_s=0.001)
        trimming = asyncio.get_running_loop().create_task(wal.trim(first.offset))
        await until(
            lambda: sequences(memory, 1) == [0, 1, 3], pause_s=0.001
        )  # the name is stored, an earlier object is not

        assert not trimming.done()
        before.set()
        await trimming

        assert second.durable.done
        assert sequences(memory, 1) == [2, 3]
        await wal.close()

    run_virtual(main())


def test_keys_that_could_not_be_deleted_are_deleted_by_the_next_trim() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        store = TestStore(memory)
        wal, _ = await opened_wal(store, settings=SETTINGS)
        away = True

        async def delete(keys: list[str]) -> list[str]:
            return keys if away else list(await memory.delete(keys))

        store.delete = delete  # type: ignore[method-assign, assignment]
        for _ in range(2):
            appended = wal.append([b"a"])
            await appended.durable
            await wal.trim(appended.offset)
            away = False

        assert sequences(memory, 1) == [4]
        await wal.close()

    run_virtual(main())


def test_a_clean_stop_closes_the_prefix_and_an_empty_log_is_drained() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), settings=SETTINGS)
        appended = wal.append([b"a"])
        await appended.durable
        await wal.trim(appended.offset)
        await wal.close()
        await wal.close()

        assert wal.drained
        with pytest.raises(WalError, match="closed"):
            wal.append([b"b"])
        again, found = await opened_wal(TestStore(memory, "w2"), 2, SETTINGS)
        assert found == []
        assert sequences(memory, 1) == [3]
        assert header_at(memory, 1, 3).flags is Flags.CLOSED
        await again.close()

    run_virtual(main())


def test_a_stop_without_the_store_ends_and_is_not_graceful() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=SETTINGS)
        store.refuse = lambda _key: True
        appended = wal.append([b"a"])
        began = time_s()

        await wal.close()

        assert time_s() - began == pytest.approx(SETTINGS.close_ms / 1000)
        assert not wal.drained
        with pytest.raises(WalFailed, match="did not take the rest"):
            await appended.durable

    run_virtual(main())


def test_an_idle_log_proves_its_ownership_until_it_is_fenced() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), settings=SETTINGS)
        await wal.prove_ownership()
        await wal.append([b"a"]).durable
        await wal.prove_ownership()
        assert sequences(memory, 1) == [0, 1], "nothing is put for it"
        await end_log(TestStore(memory, "other"), NAME, 2, EndedBy(NAME.node_id, 2))
        with pytest.raises(WalFenced):
            await wal.prove_ownership()
        assert isinstance(wal.error, WalFenced)
        with pytest.raises(WalFenced):
            await wal.prove_ownership()

    run_virtual(main())


def test_a_busy_log_proves_its_ownership_by_the_next_ack() -> None:
    async def main() -> None:
        store = TestStore(MemoryStore("s"))
        wal, _ = await opened_wal(store, settings=SETTINGS)
        gate = store.gate(1)
        wal.append([b"a"])
        proving = asyncio.create_task(wal.prove_ownership())
        await asyncio.sleep(1)
        assert not proving.done()
        gate.set()
        await proving
        await wal.close()

    run_virtual(main())
