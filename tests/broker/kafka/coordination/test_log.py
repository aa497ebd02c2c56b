import asyncio
from collections.abc import Sequence
from functools import partial
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given

from anabranch.broker.kafka.coordination import log as log_module
from anabranch.broker.kafka.coordination.log import BATCH_BYTES_MAX, JointWrites, KeyValue, LogWriter, ReplayedBatch
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.shard import TransactionShard
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode
from anabranch.s3stream.errors import AppendTooLarge, LogStalled, StorageError, StorageFull, StorageStopped
from anabranch.wal.interface import Durable, WalFailed
from tests.support.memory_log import MemoryLog
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until


def record(key: str, value: str | None = "v") -> KeyValue:
    return KeyValue(key.encode(), None if value is None else value.encode())


async def turn() -> None:
    await asyncio.sleep(0)


async def test_writes_of_one_turn_share_a_batch_and_are_reported_in_order() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    done: list[str] = []
    writer.write([record("a"), record("b")], lambda error: done.append(f"1 {error.name}"))
    writer.write([record("c")], lambda error: done.append(f"2 {error.name}"))
    assert not log.batches
    await turn()
    assert [batch.records for _, batch in log.batches] == [[record("a"), record("b"), record("c")]]
    assert done == ["1 NONE", "2 NONE"]


async def test_nothing_is_reported_before_it_is_durable() -> None:
    log = MemoryLog()
    log.hold = True
    writer = LogWriter(log)
    done: list[ErrorCode] = []
    writer.write([record("a")], done.append)
    await turn()
    assert done == []
    log.release()
    assert done == [ErrorCode.NONE]


async def test_a_failed_log_and_a_stopped_one_are_errors_a_client_may_retry() -> None:
    log = MemoryLog()
    log.hold = True
    writer = LogWriter(log)
    done: list[ErrorCode] = []
    writer.write([record("a")], done.append)
    await turn()
    log.release(WalFailed("broken"))
    log.refusal = StorageStopped("closing")
    writer.write([record("b")], done.append)
    await turn()
    assert done == [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def test_writes_wait_while_the_storage_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FULL_RETRY_S", 0)
    log = MemoryLog()
    log.refusal = StorageFull("later")
    writer = LogWriter(log)
    done: list[str] = []

    def append(key: str, _: ErrorCode) -> None:
        done.append(key)

    for key in "ab":
        writer.write([record(key)], partial(append, key))
        for _ in range(5):
            await turn()
    assert done == []
    log.refusal = None
    await until(lambda: len(done) == 2)
    assert done == ["a", "b"]
    assert log.records() == [record("a"), record("b")]


async def test_a_log_that_has_stalled_refuses_what_can_be_sent_again_and_keeps_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "FULL_RETRY_S", 0)
    log = MemoryLog()
    log.refusal = LogStalled("stalled")
    writer = LogWriter(log)
    done: dict[str, ErrorCode] = {}
    for key in "abcd":
        writer.write([record(key)], partial(done.__setitem__, key), refusable=key in "bd")
    await until(lambda: len(done) == 2)
    assert done == dict.fromkeys("bd", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    log.refusal = None
    await until(lambda: len(done) == 4)
    assert done == dict.fromkeys("bd", ErrorCode.COORDINATOR_NOT_AVAILABLE) | dict.fromkeys("ac", ErrorCode.NONE)
    assert log.records() == [record("a"), record("c")]


async def test_batches_are_bounded() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    done: dict[str, ErrorCode] = {}
    half = "x" * (BATCH_BYTES_MAX // 2)
    for key in "abc":
        writer.write([record(key, half)], partial(done.__setitem__, key))
    writer.write([record("d", half), record("e", half)], partial(done.__setitem__, "de"))
    writer.write([record("f", half + half)], partial(done.__setitem__, "f"))
    writer.write([record(key, half) for key in "ghijklmnopqrstuvw"], partial(done.__setitem__, "g-w"))
    await turn()
    assert [len(batch.records) for _, batch in log.batches] == [1, 1, 1, 2], "a write is in one batch"
    refused = dict.fromkeys(["f", "g-w"], ErrorCode.MESSAGE_TOO_LARGE)
    assert done == dict.fromkeys(["a", "b", "c", "de"], ErrorCode.NONE) | refused


async def test_a_write_of_nothing_is_done() -> None:
    done: list[ErrorCode] = []
    LogWriter(MemoryLog()).write([], done.append)
    assert done == [ErrorCode.NONE]


async def test_a_write_that_the_log_has_no_room_for_ever_is_too_large_and_those_behind_it_may_be_repeated() -> None:
    log = MemoryLog()
    log.refusal = AppendTooLarge("never")
    writer = LogWriter(log)
    done: list[ErrorCode] = []
    half = "x" * (BATCH_BYTES_MAX // 2)
    writer.write([record(key, half) for key in "abc"], done.append)
    writer.write([record("d")], done.append)
    await turn()
    assert done == [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def test_writes_queued_behind_a_failed_one_fail_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their records may build on its own. What is written after its report may not."""
    log = MemoryLog()
    writer = LogWriter(log)
    done: dict[str, ErrorCode] = {}
    half = "x" * (BATCH_BYTES_MAX // 2)
    outcomes = [None, AppendTooLarge("never")]
    append = log.append

    def fail_once(records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        if outcomes and (error := outcomes.pop(0)) is not None:
            raise error
        return append(records, producer)

    def write_again(error: ErrorCode) -> None:
        done["b"] = error
        writer.write([record("d")], partial(done.__setitem__, "d"))

    monkeypatch.setattr(log, "append", fail_once)
    writer.write([record("a", half)], partial(done.__setitem__, "a"))
    writer.write([record("b", half)], write_again)
    writer.write([record("c", half)], partial(done.__setitem__, "c"))
    await until(lambda: len(done) == 4)
    assert done == {"a": 0, "b": ErrorCode.MESSAGE_TOO_LARGE, "c": ErrorCode.COORDINATOR_NOT_AVAILABLE, "d": 0}
    assert [kept.key for kept in log.records()] == [b"a", b"d"]


SOME = 40
"""Bytes of a large record of the next test, whose batches take 100."""


@given(
    turns=st.lists(
        st.lists(st.tuples(st.lists(st.sampled_from([1, SOME]), min_size=1, max_size=4), st.booleans()), max_size=6),
        max_size=4,
    ),
    outcomes=st.lists(
        st.sampled_from([None, StorageFull("later"), LogStalled("stalled"), AppendTooLarge("never")]), max_size=12
    ),
)
def test_the_log_has_all_of_a_write_or_nothing_as_its_writer_is_told(
    turns: list[list[tuple[list[int], bool]]], outcomes: list[StorageError | None]
) -> None:
    """A log that fails once, in the middle."""

    async def main() -> None:
        log = MemoryLog()
        append, left = log.append, list(outcomes)

        def fail_or_append(records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
            if left and (error := left.pop(0)) is not None:
                raise error
            return append(records, producer)

        log.append = fail_or_append  # type: ignore[method-assign]
        writer = LogWriter(log)
        told: dict[int, list[ErrorCode]] = {}
        written: dict[int, list[KeyValue]] = {}
        for writes in turns:
            for sizes, refusable in writes:
                number = len(told)
                told[number] = []
                written[number] = [record(f"{number}/{index}", "x" * size) for index, size in enumerate(sizes)]
                writer.write(written[number], told[number].append, refusable=refusable)
            await turn()
        await asyncio.sleep(len(outcomes))  # retries included
        assert all(len(codes) == 1 for codes in told.values()), "each write is answered once"
        durable = [number for number, codes in told.items() if codes == [ErrorCode.NONE]]
        assert log.records() == [each for number in durable for each in written[number]]

    with mock.patch.multiple(log_module, BATCH_BYTES_MAX=100, WRITE_BYTES_MAX=1_000):
        run_virtual(main())


@pytest.mark.parametrize("errors", [[None, "e"], ["e", None], [None, None], []])
def test_joint_writes_end_with_the_last_and_tell_the_first_error(errors: list[str | None]) -> None:
    done: list[ErrorCode] = []
    writes = JointWrites(len(errors), done.append)
    for error in errors:
        assert not done
        writes.ended(ErrorCode.COORDINATOR_NOT_AVAILABLE if error else ErrorCode.NONE)
    assert done == [ErrorCode.COORDINATOR_NOT_AVAILABLE if any(errors) else ErrorCode.NONE]


async def test_a_rewrite_deletes_nothing_unless_all_of_it_is_durable() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    half = "x" * (BATCH_BYTES_MAX // 2)
    live = [record(key, half) for key in "abc"]
    writer.write(live)
    await turn()
    log.hold = True
    rewriting = asyncio.create_task(writer.rewrite(lambda: live))
    await until(lambda: len(log.held) == 3)
    first, *others = log.held
    first.complete(WalFailed("broken"))
    for durable in others:
        durable.complete()
    with pytest.raises(WalFailed):
        await rewriting
    assert log.records() == live + live


async def test_a_rewrite_leaves_the_live_state_and_what_came_meanwhile() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    live = {"a": "2"}
    for value in "12":
        writer.write([record("a", value)])
        await turn()
    log.hold = True
    writer.write([record("b", "1")], lambda _: live.update(b="1"))
    await turn()
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.rewrite(lambda: [record(key, value) for key, value in live.items()]))
        await turn()
        writer.write([record("a", "3")], lambda _: live.update(a="3"))
        await turn()
        assert len(log.batches) == 3, "the rewrite waits for what is under way, and holds what comes"
        log.hold = False
        log.release()
    await turn()
    assert log.records() == [record("a", "2"), record("b", "1"), record("a", "3")]
    assert live == {"a": "3", "b": "1"}
    assert writer.written_bytes == record("a").size_bytes


async def test_a_rewrite_waits_for_a_marker_under_way() -> None:
    """Else it would write the transaction's records again behind the marker, and nothing would ever end them."""
    log = MemoryLog()
    writer = LogWriter(log)
    producer = Producer(7, 0)
    pending = {producer: [record("a")]}
    live: list[KeyValue] = []
    assert writer.write_transactional([record("a")], producer, lambda _: None)
    log.hold = True
    marker = log.append_marker(producer, committed=True)
    marker.add_done_callback(lambda _: live.extend(pending.pop(producer)))
    writer.track_marker(marker)
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.rewrite(lambda: live, pending.items))
        await turn()
        log.hold = False
        log.release()
    assert [batch for _, batch in log.batches] == [ReplayedBatch([record("a")])]


@pytest.mark.parametrize("kind", ["groups", "transactions"])
async def test_a_shard_closed_while_its_rewrite_waits_keeps_its_log(kind: str) -> None:
    """A closed shard has no live state, and a log rewritten to that would be empty."""
    log = MemoryLog()
    writer = LogWriter(log)
    shard: GroupShard | TransactionShard
    if kind == "groups":
        shard = GroupShard(writer, GroupSettings(), now_ms=lambda: 0)
    else:
        shard = TransactionShard(writer, lambda *_: None)
    log.hold = True
    writer.write([record("a")])
    await turn()
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.rewrite(shard.live_records))
        await turn()
        shard.close()
        log.hold = False
        log.release()
    assert log.records() == [record("a")]


async def test_a_rewrite_of_nothing_empties_the_log() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    writer.write([record("a"), record("a", None)])
    await turn()
    await writer.rewrite(list)
    assert log.records() == []


async def test_a_refused_rewrite_loses_nothing() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    done: list[ErrorCode] = []
    writer.write([record("a")])
    await turn()
    log.refusal = StorageFull("later")
    with pytest.raises(StorageFull):
        await writer.rewrite(lambda: [record("a")])
    log.refusal = None
    writer.write([record("b")], done.append)
    await turn()
    assert log.records() == [record("a"), record("b")]
    assert done == [ErrorCode.NONE]


@pytest.mark.parametrize("stage", ["queued", "waiting for room", "appended"])
async def test_a_closed_writer_reports_what_is_under_way_once_and_not_as_durable(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FULL_RETRY_S", 0)
    log = MemoryLog()
    log.hold = True
    log.refusal = StorageFull("later") if stage == "waiting for room" else None
    writer = LogWriter(log)
    done: list[ErrorCode] = []
    writer.write([record("a")], done.append)
    if stage != "queued":
        await turn()
    writer.close()
    assert done == [ErrorCode.NOT_COORDINATOR]
    log.refusal = None
    log.release()
    for _ in range(5):
        await turn()
    assert done == [ErrorCode.NOT_COORDINATOR]
    assert log.records() == ([record("a")] if stage == "appended" else [])


async def test_a_closed_writer_writes_nothing() -> None:
    log = MemoryLog()
    writer = LogWriter(log)
    done: list[ErrorCode] = []
    writer.close()
    writer.write([record("a")])
    writer.write([record("a")], done.append)
    assert not writer.write_transactional([record("a")], Producer(7, 0), done.append)
    await writer.rewrite(lambda: [record("a")])
    await turn()
    assert done == [ErrorCode.NOT_COORDINATOR] * 2
    assert log.records() == []


async def test_a_rewrite_that_is_closed_before_it_is_durable_deletes_nothing() -> None:
    """The log may belong to somebody else by then."""
    log = MemoryLog()
    writer = LogWriter(log)
    for value in "12":
        writer.write([record("a", value)])
        await turn()
    log.hold = True
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.rewrite(lambda: [record("a", "2")]))
        await until(lambda: bool(log.held))
        writer.close()
        log.release()
    assert log.records() == [record("a", "1"), record("a", "2"), record("a", "2")]


async def test_a_write_that_comes_while_others_are_put_back_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stalls, the report to a write that is refused causes another, and the rest waits."""
    monkeypatch.setattr(log_module, "FULL_RETRY_S", 0)
    log = MemoryLog()
    writer = LogWriter(log)
    half = "x" * (BATCH_BYTES_MAX // 2)
    refusals = [LogStalled("stalled"), StorageFull("later")]
    really = log.append

    def append(records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        if refusals:
            raise refusals.pop(0)
        return really(records, producer)

    monkeypatch.setattr(log, "append", append)
    writer.write([record("a", half)], lambda _: writer.write([record("c")]), refusable=True)
    writer.write([record("b", half)])
    await until(lambda: len(log.records()) == 2)
    assert [kept.key for kept in log.records()] == [b"b", b"c"]
