"""The ring by itself: operations that do nothing, round and round; its queues and their native twin."""

import errno
import os
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

import anabranch.wal.device_ring
from anabranch.native import choose
from anabranch.wal.block import aligned_buffer
from anabranch.wal.device_ring import FsyncFlag, Layout, Opcode, Queues, Ring, Submission, SubmissionFlag, address_of
from tests.support.native import native_mode, require_native
from tests.support.seccomp import without_io_uring

NOP = Submission(Opcode.NOP)
LAYOUT = Layout(sq_head=0, sq_tail=4, sq_entries=4, cq_head=8, cq_tail=12, cq_entries=8, completions=16)


@pytest.fixture(autouse=True, params=["off", "require"])
def native(request: pytest.FixtureRequest, io_uring: None) -> Iterator[None]:
    with native_mode(request.param):
        yield


def taken(ring: Ring) -> list[tuple[int, int]]:
    return [ring.queues.take() for _ in range(ring.queues.ready())]


def test_each_operation_completes_once_with_its_user_data() -> None:
    ring = Ring(4)
    number = 0
    for lap in range(200):
        pushed = range(number, number + lap % 5)
        for user_data in pushed:
            ring.queues.push(NOP, -1, user_data)
        assert ring.queues.pushed == len(pushed)
        ring.queues.submit()
        assert ring.queues.pushed == 0
        assert taken(ring) == [(user_data, 0) for user_data in pushed]
        number += lap % 5
    ring.queues.push(NOP, -1, (1 << 64) - 1)
    ring.queues.submit()
    assert taken(ring) == [((1 << 64) - 1, 0)]
    ring.close()


def test_a_failed_operation_says_why() -> None:
    ring = Ring(2)
    ring.queues.push(Submission(Opcode.READV), -1, 7)
    ring.queues.push(NOP, -1, 8)
    ring.queues.submit()
    assert sorted(taken(ring)) == [(7, -errno.EBADF), (8, 0)]
    ring.close()


def test_what_the_kernel_did_not_accept_can_be_submitted_again_or_withdrawn() -> None:
    ring = Ring(4)
    for user_data in range(3):
        ring.queues.push(NOP, -1, user_data)
    with pytest.raises(PermissionError, match=os.strerror(errno.EPERM)) as raised:
        without_io_uring(ring.queues.submit, refused=1)
    assert raised.value.errno == errno.EPERM
    assert ring.queues.pushed == 3
    ring.queues.submit()
    assert taken(ring) == [(0, 0), (1, 0), (2, 0)]
    for user_data in range(10, 14):
        ring.queues.push(NOP, -1, user_data)
    assert ring.queues.withdraw() == [10, 11, 12, 13]
    ring.queues.submit()
    assert taken(ring) == []
    ring.close()


@pytest.mark.parametrize("native", ["off"], indirect=True)
def test_loads_are_ordered_by_a_system_call_where_the_machine_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(anabranch.wal.device_ring, "_ORDERED_LOADS", False)
    monkeypatch.setattr(os, "getppid", lambda: calls.append(1))
    ring = Ring(2)
    calls.clear()
    assert ring.queues.ready() == 0
    assert calls == []
    ring.queues.push(NOP, -1, 1)
    ring.queues.submit()
    assert ring.queues.ready() == 1
    assert calls == [1]
    ring.close()


def test_a_closed_ring_leaves_no_descriptor() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    ring = Ring(2)
    assert len(list(descriptors.iterdir())) > before
    ring.close()
    assert len(list(descriptors.iterdir())) == before


def words(rings: mmap) -> memoryview:
    return memoryview(rings).cast("I")


def made(kind: Any) -> tuple[Any, mmap, mmap]:
    """Return queues in memory that no kernel knows, one operation before their numbers start again at zero."""
    rings, entries = mmap(-1, 4096), mmap(-1, 4096)
    with words(rings) as of_rings:
        of_rings[0] = of_rings[1] = of_rings[2] = of_rings[3] = 0xFFFFFFFF
    return kind(426, -1, rings, entries, LAYOUT), rings, entries


def test_both_write_the_same_entries() -> None:
    require_native()
    memory = aligned_buffer(4096)
    operations = [
        Submission(Opcode.WRITEV, 1 << 50, address_of(memory), 3, SubmissionFlag.ASYNC),
        Submission(Opcode.FSYNC, fsync=FsyncFlag.DATASYNC),
    ]
    found = []
    for kind in (Queues, choose("require").twin(Queues)):
        queues, rings, entries = made(kind)
        for number, operation in enumerate(operations):
            queues.push(operation, 7, (1 << 64) - 1 - number)
        queues.write(8, 8192, memory, 3)
        found.append((bytes(rings), bytes(entries), queues.pushed, queues.withdraw(), queues.pushed, bytes(rings)))
        queues.release()
        rings.close()
        entries.close()
    assert found[0] == found[1]
    assert found[0][3] == [(1 << 64) - 1, (1 << 64) - 2, 3]


def test_both_take_the_same_completions() -> None:
    require_native()
    found = []
    for kind in (Queues, choose("require").twin(Queues)):
        queues, rings, _ = made(kind)
        rings[16 + 7 * 16 : 16 + 8 * 16] = (
            (5).to_bytes(8, "little") + (-4).to_bytes(4, "little", signed=True) + bytes(4)
        )
        rings[16:32] = ((1 << 64) - 2).to_bytes(8, "little") + (4096).to_bytes(4, "little") + bytes(4)
        with words(rings) as of_rings:
            of_rings[3] = 1
        ready = queues.ready()
        found.append((ready, [queues.take() for _ in range(ready)], queues.ready(), bytes(rings)))
        queues.release()
    assert found[0] == found[1]
    assert found[0][:3] == (2, [(5, -4), ((1 << 64) - 2, 4096)], 0)


def test_queues_of_a_closed_ring_raise() -> None:
    ring = Ring(2)
    ring.close()
    with pytest.raises(ValueError, match=r"released|closed"):
        ring.queues.ready()
    with pytest.raises(ValueError, match=r"released|closed"):
        ring.queues.push(NOP, -1, 1)


def test_native_queues_lie_in_the_memory_given() -> None:
    require_native()
    kind = choose("require").twin(Queues)
    wrong = [{"sq_tail": 4094}, {"cq_head": 4096}, {"sq_entries": 128}, {"sq_entries": 3}, {"completions": 4000}]
    for change in wrong:
        with pytest.raises(ValueError, match="do not lie"):
            kind(426, -1, mmap(-1, 4096), mmap(-1, 4096), LAYOUT._replace(**change))
