"""The ring by itself: operations that do nothing, round and round."""

import errno
import os
from pathlib import Path

import pytest

import anabranch.wal.device_ring
from anabranch.wal.device_ring import Opcode, Ring, Submission
from tests.support.seccomp import without_io_uring

NOP = Submission(Opcode.NOP)

pytestmark = pytest.mark.usefixtures("io_uring")


def taken(ring: Ring) -> list[tuple[int, int]]:
    return [ring.take() for _ in range(ring.ready())]


def test_each_operation_completes_once_with_its_user_data() -> None:
    ring = Ring(4)
    number = 0
    for lap in range(200):
        pushed = range(number, number + lap % 5)
        for user_data in pushed:
            ring.push(NOP, -1, user_data)
        assert ring.pushed == len(pushed)
        ring.submit()
        assert ring.pushed == 0
        assert taken(ring) == [(user_data, 0) for user_data in pushed]
        number += lap % 5
    ring.push(NOP, -1, (1 << 64) - 1)
    ring.submit()
    assert taken(ring) == [((1 << 64) - 1, 0)]
    ring.close()


def test_a_failed_operation_says_why() -> None:
    ring = Ring(2)
    ring.push(Submission(Opcode.READV), -1, 7)
    ring.push(NOP, -1, 8)
    ring.submit()
    assert sorted(taken(ring)) == [(7, -errno.EBADF), (8, 0)]
    ring.close()


def test_what_the_kernel_did_not_accept_can_be_submitted_again_or_withdrawn() -> None:
    ring = Ring(4)
    for user_data in range(3):
        ring.push(NOP, -1, user_data)
    with pytest.raises(PermissionError):
        without_io_uring(ring.submit, refused=1)
    assert ring.pushed == 3
    ring.submit()
    assert taken(ring) == [(0, 0), (1, 0), (2, 0)]
    for user_data in range(10, 14):
        ring.push(NOP, -1, user_data)
    assert ring.withdraw() == [10, 11, 12, 13]
    ring.submit()
    assert taken(ring) == []
    ring.close()


def test_loads_are_ordered_by_a_system_call_where_the_machine_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(anabranch.wal.device_ring, "_ORDERED_LOADS", False)
    monkeypatch.setattr(os, "getppid", lambda: calls.append(1))
    ring = Ring(2)
    calls.clear()
    assert ring.ready() == 0
    assert calls == []
    ring.push(NOP, -1, 1)
    ring.submit()
    assert ring.ready() == 1
    assert calls == [1]
    ring.close()


def test_a_closed_ring_leaves_no_descriptor() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    ring = Ring(2)
    assert len(list(descriptors.iterdir())) > before
    ring.close()
    assert len(list(descriptors.iterdir())) == before
