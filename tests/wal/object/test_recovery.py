"""Recovery of the object log: crashes at each call of the store, fences, takeovers, damage."""

import random
from collections.abc import Sequence

import pytest

from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.s3 import S3Store
from anabranch.wal.interface import WalCorrupt, WalError, WalFenced
from anabranch.wal.object.format import EndedBy, Flags, Position
from anabranch.wal.object.log import ObjectWal
from anabranch.wal.object.recovery import end_log
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.object.store import StoreAway
from tests.support.memory_store import MemoryStore
from tests.support.object_log import NAME, TestStore, header_at, opened_wal, sequences
from tests.support.s3 import S3Bucket
from tests.support.virtual_time import run_virtual

OTHER = EndedBy(8, 5)
SETTINGS = ObjectWalSettings()


async def filled(memory: MemoryStore, bodies: Sequence[bytes], epoch: int = 1) -> ObjectWal:
    """Return a log with one object for each body, which is then left as by a crash."""
    wal, _ = await opened_wal(TestStore(memory, f"w{epoch}"), epoch)
    for body in bodies:
        await wal.append([body]).durable
    return wal


async def taken_over(memory: MemoryStore, epoch: int) -> list[bytes]:
    tail = await end_log(TestStore(memory, f"other-{epoch}"), NAME, epoch, OTHER)
    return [bytes(record.body) async for record in tail.records()]


def damage(memory: MemoryStore, key: str, at: int) -> None:
    data, writer, time_ms = memory.objects[key]
    memory.objects[key] = (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], writer, time_ms)


def test_a_start_after_a_crash_finds_what_was_acked_and_continues_the_offsets() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"bc"])

        wal, found = await opened_wal(TestStore(memory, "w2"), 2)

        assert found == [b"a", b"bc"]
        assert header_at(memory, 1, 3).flags is Flags.FENCE
        assert header_at(memory, 2, 0).first_live == Position(1, 1)
        appended = wal.append([b"d"])
        assert appended.offset == 51
        assert wal.used_bytes == 51 + 25
        await appended.durable
        _, found = await opened_wal(TestStore(memory, "w3"), 3)
        assert found == [b"a", b"bc", b"d"]

    run_virtual(main())


def test_what_an_earlier_epoch_left_is_trimmed_like_own_records() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"b", b"c"])
        wal, _ = await opened_wal(TestStore(memory, "w2"), 2)

        await wal.trim(25)
        assert sequences(memory, 1) == [3, 4]
        _, found = await opened_wal(TestStore(memory, "w3"), 3)
        assert found == [b"c"]

    run_virtual(main())


def test_a_trim_inside_an_object_hides_its_first_records() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory))
        appended = [wal.append([bytes([number])]) for number in range(3)]
        await appended[-1].durable
        await wal.trim(appended[1].offset)

        assert await taken_over(memory, 2) == [b"\2"]

    run_virtual(main())


def test_objects_past_a_missing_one_were_never_acked_and_are_not_read() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"b", b"c"])
        del memory.objects[NAME.key(Position(1, 2))]  # as if its PUT were still on its way

        wal, found = await opened_wal(TestStore(memory, "w2"), 2)

        assert found == [b"a"]
        assert header_at(memory, 1, 2).flags is Flags.FENCE
        assert sequences(memory, 1) == [1, 2]
        assert wal.append([b"x"]).offset == 25

    run_virtual(main())


def test_an_owner_that_has_put_nothing_yet_is_fenced_too() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        paused = ObjectWal(TestStore(memory, "w1"), NAME, SETTINGS, node_epoch=1)
        assert await taken_over(memory, 3) == []

        with pytest.raises(WalFenced, match="claimed with node epoch 2"):
            assert [each async for each in paused.recover()] == []

        assert header_at(memory, 1, 0).flags is header_at(memory, 2, 0).flags is Flags.FENCE

    run_virtual(main())


def test_a_takeover_reads_all_marks_the_log_empty_and_keeps_the_ends() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"b"])
        tail = await end_log(TestStore(memory, "other"), NAME, 2, OTHER)
        assert [bytes(record.body) async for record in tail.records()] == [b"a", b"b"]

        await tail.finish(OTHER)

        assert (sequences(memory, 1), sequences(memory, 2)) == ([3], [0])
        wal, found = await opened_wal(TestStore(memory, "back"), 3)
        assert found == []
        assert wal.append([b"c"]).offset == 50

    run_virtual(main())


def test_of_two_recoverers_the_one_with_the_older_epoch_cannot_finish() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a"])
        first = await end_log(TestStore(memory, "first"), NAME, 2, OTHER)
        second = await end_log(TestStore(memory, "second"), NAME, 3, EndedBy(9, 1))

        with pytest.raises(WalFenced, match="another node has taken this log over"):
            await first.finish(OTHER)
        assert [bytes(record.body) async for record in second.records()] == [b"a"]
        await second.finish(EndedBy(9, 1))
        with pytest.raises(WalFenced, match="claimed with node epoch 3"):
            assert [each async for each in first.records()] == []

    run_virtual(main())


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_that_is_in_use_or_past_is_refused(epoch: int) -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a"], epoch=2)

        with pytest.raises(WalFenced, match="claimed with node epoch 2"):
            await opened_wal(TestStore(memory, "late"), epoch)

    run_virtual(main())


@pytest.mark.parametrize(("sequence", "at"), [(1, 0), (1, 70), (2, 110), (2, 128), (3, 130)])
def test_damage_names_the_object_and_nothing_is_deleted(sequence: int, at: int) -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"b", b"c" * 9])
        key = NAME.key(Position(1, sequence))
        damage(memory, key, at if at < len(memory.objects[key][0]) else -1)

        with pytest.raises(WalCorrupt, match=key):
            await taken_over(memory, 2)
        assert sequences(memory, 1)[:4] == [0, 1, 2, 3]

    run_virtual(main())


def test_a_missing_object_between_live_ones_is_damage() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"b", b"c"])
        await taken_over(memory, 2)
        key = NAME.key(Position(1, 2))
        del memory.objects[key]

        with pytest.raises(WalCorrupt, match=f"{key}.*is missing"):
            await taken_over(memory, 3)

    run_virtual(main())


def test_a_store_that_is_away_ends_the_recovery_and_a_later_one_succeeds() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a", b"b"])
        calls = 0
        failing_call = 0

        async def fail(call: str, key: str) -> None:
            nonlocal calls
            calls += 1
            if calls == failing_call:
                raise StoreError(f"{key}: {call} failed by the test")

        memory.hook = fail
        failures = 0
        for epoch in range(2, 40):
            calls, failing_call = 0, epoch - 1
            try:
                found = await taken_over(memory, epoch)
            except StoreAway:
                failures += 1
            else:
                assert found == [b"a", b"b"]
        assert failures > 5

    run_virtual(main())


@pytest.mark.parametrize("failing", range(1, 14))
def test_a_start_that_crashes_at_any_call_of_the_store_loses_nothing(failing: int) -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal = await filled(memory, [b"a", b"b", b"c"])
        await wal.trim(0)
        calls = 0

        class Crash(Exception):
            pass

        async def crash(_call: str, _key: str) -> None:
            nonlocal calls
            calls += 1
            if calls >= failing:
                raise Crash

        memory.hook = crash
        second = ObjectWal(TestStore(memory, "w2"), NAME, SETTINGS, node_epoch=2)
        try:
            async for _ in second.recover():
                pass
            second.append([b"d"])
            await second.trim(25)
        except* (Crash, WalError):
            pass

        async def let_through(_call: str, _key: str) -> None:
            pass

        memory.hook = let_through
        found = await taken_over(memory, 3)
        assert found in ([b"b", b"c"], [b"b", b"c", b"d"])

    run_virtual(main())


async def test_a_real_s3_server_refuses_the_old_owner_after_the_fence(bucket: S3Bucket) -> None:
    store = S3Store("s3", bucket.settings(), rng=random.Random(1))
    await store.open()
    try:
        old = ObjectWal(ObjectLogStore(store, "old"), NAME, SETTINGS, node_epoch=1)
        assert [each async for each in old.recover()] == []
        appended = [old.append([bytes([number]) * 50_000]) for number in range(20)]
        await appended[-1].durable
        await old.trim(appended[4].offset)

        new = ObjectWal(ObjectLogStore(store, "new"), NAME, SETTINGS, node_epoch=2)
        found = [bytes(record.body) async for record in new.recover()]

        assert found == [bytes([number]) * 50_000 for number in range(5, 20)]
        with pytest.raises(WalFenced, match="fenced by node 3 with epoch 2"):
            await old.append([b"late"]).durable
        await new.append([b"more"]).durable
        await old.close()
        await new.close()
    finally:
        await store.close()
