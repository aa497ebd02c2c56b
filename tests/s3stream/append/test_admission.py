"""The states of admission, the reasons they give, and the waiters they wake."""

import asyncio

import pytest

from anabranch.s3stream.append.admission import NEXT_STATES, UPLOADING, Admission, AdmissionState, StreamAdmission
from anabranch.s3stream.append.log_cache import LogCache
from anabranch.s3stream.errors import Discontinuity, StorageStopped, StreamFenced
from anabranch.s3stream.stats import StorageStats
from tests.support.memory_wal import MemoryWal
from tests.support.waiting import until

FAILURE = StorageStopped("the WAL failed: pulled out")
STEPS = {
    "wal_full": lambda admission: admission.wal_full(),
    "queue_full": lambda admission: admission.wal_full(needs_upload=False),
    "made_room": lambda admission: admission.made_room(),
    "begin_close": lambda admission: admission.begin_close(),
    "fail": lambda admission: admission.fail(FAILURE),
    "end_close": lambda admission: admission.end_close(),
}


class Leaving(StorageStopped):
    """A refusal of the owner's."""


def new_admission() -> Admission:
    return Admission(MemoryWal(1000), LogCache(1000, StorageStats()), cache_bytes_max=100, wal_bytes_max=500)


def after(*steps: str) -> Admission:
    admission = new_admission()
    for step in steps:
        STEPS[step](admission)
    return admission


@pytest.mark.parametrize(
    ("steps", "state", "reason"),
    [
        ((), "OPEN", None),
        (("made_room",), "OPEN", None),
        (("wal_full",), "FULL", None),
        (("wal_full", "wal_full"), "FULL", None),
        (("wal_full", "made_room"), "OPEN", None),
        (("begin_close",), "CLOSING", "the engine is closing"),
        (("wal_full", "begin_close"), "CLOSING", "the engine is closing"),
        (("begin_close", "wal_full"), "CLOSING", "the engine is closing"),
        (("begin_close", "made_room"), "CLOSING", "the engine is closing"),
        (("begin_close", "fail"), "FAILED", "the WAL failed: pulled out"),
        (("fail", "begin_close"), "FAILED", "the WAL failed: pulled out"),
        (("fail", "made_room"), "FAILED", "the WAL failed: pulled out"),
        (("begin_close", "end_close"), "CLOSED", "the engine is closing"),
        (("begin_close", "end_close", "fail", "begin_close", "end_close"), "CLOSED", "the engine is closing"),
        (("fail", "end_close"), "CLOSED", "the WAL failed: pulled out"),
    ],
)
def test_states_and_their_reasons(steps: tuple[str, ...], state: str, reason: str | None) -> None:
    admission = after(*steps)
    assert admission.state is AdmissionState[state]
    assert (None if admission.error is None else str(admission.error)) == reason
    assert admission.uploads == (state in {"OPEN", "FULL", "CLOSING"})
    assert admission.is_writable == (state == "OPEN")


@pytest.mark.parametrize(
    ("steps", "needs_upload"),
    [
        (("queue_full",), False),
        (("wal_full",), True),
        (("queue_full", "wal_full"), True),
        (("wal_full", "queue_full"), True),
        (("wal_full", "made_room"), False),
        (("begin_close", "wal_full"), False),
    ],
)
def test_only_a_log_that_is_full_needs_an_upload(steps: tuple[str, ...], needs_upload: bool) -> None:
    assert after(*steps).needs_upload == needs_upload


def test_only_the_first_failure_counts() -> None:
    admission = new_admission()
    assert admission.fail(FAILURE)
    assert not admission.fail(StorageStopped("an upload failed"))
    assert admission.error is FAILURE


def test_an_engine_is_never_closed_before_it_is_closing() -> None:
    with pytest.raises(AssertionError, match="never goes from OPEN to CLOSED"):
        new_admission().end_close()


def test_every_state_but_the_last_leads_on_and_no_refusal_is_lifted() -> None:
    refusing = {AdmissionState.CLOSING, AdmissionState.FAILED, AdmissionState.CLOSED}
    assert set(NEXT_STATES) == set(AdmissionState)
    assert [state.name for state, following in NEXT_STATES.items() if not following] == ["CLOSED"]
    for state in refusing:
        assert NEXT_STATES[state] <= refusing
    assert {AdmissionState.FAILED, AdmissionState.CLOSED}.isdisjoint(UPLOADING)


def test_levels_above_their_limits_are_obstacles_and_not_states() -> None:
    wal, cache = MemoryWal(1000), LogCache(1000, StorageStats())
    admission = Admission(wal, cache, cache_bytes_max=100, wal_bytes_max=500)
    cache.current.size_bytes = 101
    assert list(admission.obstacles()) == [
        "the log cache is full: 101 bytes are not in objects yet, and 100 is the limit"
    ]
    cache.current.size_bytes = 100
    assert admission.is_writable
    admission.wal_full()
    assert list(admission.obstacles()) == [
        "the log had no room for an append, and nothing was written out or uploaded since"
    ]


@pytest.mark.parametrize("step", ["made_room", "begin_close", "fail"])
async def test_waiters_wake_at_each_change_that_they_wait_for(step: str) -> None:
    admission = after("wal_full")
    waiters = [asyncio.create_task(admission.wait_change()) for _ in range(3)]
    await until(lambda: admission.waiting == 3)
    STEPS[step](admission)
    assert admission.waiting == 0
    await asyncio.gather(*waiters)


async def test_waiters_wake_in_the_order_in_which_they_came() -> None:
    admission = after("wal_full")
    woken: list[int] = []

    async def wait(number: int) -> None:
        await admission.wait_change()
        woken.append(number)

    waiters = [asyncio.create_task(wait(number)) for number in range(50)]
    await until(lambda: admission.waiting == len(waiters))
    admission.made_room()
    await asyncio.gather(*waiters)
    assert woken == list(range(len(waiters)))


async def test_a_waiter_that_gives_up_leaves_nothing_behind() -> None:
    admission = after("wal_full")
    waiter = asyncio.create_task(admission.wait_change())
    await until(lambda: admission.waiting == 1)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert admission.waiting == 0


@pytest.mark.parametrize("step", ["begin_close", "fail"])
async def test_waiting_for_room_raises_once_appends_are_refused(step: str) -> None:
    admission = after(step)
    with pytest.raises(StorageStopped, match=str(admission.error)):
        await admission.wait_change()
    assert await admission.wait_stopped() is admission.error


def test_a_stream_is_accepted_by_the_kind_it_was_refused_with() -> None:
    stream = StreamAdmission()
    assert stream.error is None
    stream.accept(Leaving)
    stream.refuse(Leaving("detaching"))
    stream.accept(Discontinuity)
    assert str(stream.error) == "detaching"
    stream.accept(Leaving)
    assert stream.error is None


def test_a_stream_keeps_its_first_refusal() -> None:
    stream = StreamAdmission()
    stream.refuse(Discontinuity("a gap"))
    stream.refuse(StorageStopped("stream 1 is closed"))
    assert str(stream.error) == "a gap"


def test_a_fence_replaces_any_refusal_and_is_never_lifted_by_the_owner() -> None:
    stream = StreamAdmission()
    stream.refuse(Leaving("detaching"))
    stream.refuse(StreamFenced("epoch 3"))
    stream.accept(Leaving)
    stream.refuse(Leaving("detaching"))
    assert str(stream.error) == "epoch 3"
