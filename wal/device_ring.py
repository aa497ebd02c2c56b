"""An io_uring: two rings in memory shared with the kernel, and the system calls `io_uring_setup` and `io_uring_enter`.

Called through ctypes: docs/adr/0007 gives the reasons. Names and layouts are those of linux/io_uring.h. After its
set-up, one thread uses a ring: that of the event loop.

Memory order. Submission needs no barrier: the kernel reads the entries in `io_uring_enter`, on the same thread.
Completion does: an entry must be read after the tail that announces it, and a kernel worker on another core may have
written both. x86-64 keeps loads in order. On arm64 `ready` makes a system call between the two: a load, a branch on its
value and the exception of a system call order all later loads behind the first.
"""

import ctypes
import errno
import os
from enum import IntEnum
from mmap import MAP_SHARED, mmap
from platform import machine
from struct import Struct
from typing import Final, NamedTuple

from anabranch.native import native_part
from anabranch.platform import IS_LINUX, MAP_POPULATE

SYSTEM_CALLS: Final = {"x86_64": (425, 426), "aarch64": (425, 426)}
"""Numbers of `io_uring_setup` and `io_uring_enter` by machine, on Linux: elsewhere they are other calls, or none."""
_ORDERED_LOADS: Final = machine() == "x86_64"
_FEATURES: Final = 0b1111
"""SINGLE_MMAP, NODROP, SUBMIT_STABLE and RW_CUR_POS: Linux 5.6 has them all."""
_SQES_OFFSET: Final = 0x10000000
_PARAMS: Final = Struct("=40I")
_FEATURES_AT, _SQ_AT, _CQ_AT = 5, 10, 20
"""Indices in `struct io_uring_params` as 32-bit words: features, and the offsets of the two rings."""
_SQE: Final = Struct("=BBHiQQIIQ24x")
"""opcode, flags, ioprio, fd, off, addr, len, rw_flags, user_data."""
_CQE: Final = Struct("=QiI")
"""user_data, res, flags."""
_U32: Final = 0xFFFFFFFF
_PROBE: Final = 1


class Opcode(IntEnum):
    """Operations of the kernel (`enum io_uring_op`)."""

    NOP = 0
    READV = 1
    WRITEV = 2
    FSYNC = 3
    WRITE = 23


class SubmissionFlag(IntEnum):
    """Flags of an entry (`IOSQE_*`)."""

    NONE = 0
    ASYNC = 1 << 4
    """Perform the operation in a kernel worker, which may block."""


class FsyncFlag(IntEnum):
    """Flags of an operation."""

    NONE = 0
    DATASYNC = 1


class Submission(NamedTuple):
    """One operation, as the kernel takes it."""

    opcode: Opcode
    position: int = 0
    address: int = 0
    """Address of an array of `struct iovec`, or for WRITE of the memory itself. Both outlive the operation."""
    length: int = 0
    """Number of buffers in the array, or for WRITE of bytes."""
    flags: SubmissionFlag = SubmissionFlag.NONE
    fsync: FsyncFlag = FsyncFlag.NONE


# PyDLL keeps the interpreter lock during a call. `io_uring_enter` only hands requests over, in 10 to 20 us. To release
# the lock and take it again can take longer beside other threads, and is what the ring is to avoid.
_CALL: Final = ctypes.PyDLL(None, use_errno=True).syscall
_CALL.restype = ctypes.c_long
_CALL.argtypes = [ctypes.c_ulong] * 7


def _call(number: int, first: int, second: int, third: int = 0) -> int:
    """Make a system call of up to three arguments, the others 0. Raises OSError."""
    result: int = _CALL(number, first, second, third, 0, 0, 0)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Layout(NamedTuple):
    """Places of heads, tails and entries in the memory of a ring: offsets in bytes, and numbers of entries."""

    sq_head: int
    sq_tail: int
    sq_entries: int
    cq_head: int
    cq_tail: int
    cq_entries: int
    completions: int


class Queues:
    """The queues of a ring: operations that are pushed and submitted, and completions that are taken.

    At most as many operations as the ring has entries may be between `push` and `take`: then neither queue overflows.
    """

    def __init__(self, enter: int, fd: int, rings: mmap, entries: mmap, layout: Layout) -> None:
        self._enter: Final = enter
        """Number of the system call."""
        self._fd: Final = fd
        self._rings: Final = rings
        self._entries: Final = entries
        # A load or store of an aligned 32-bit element is one access, as the kernel expects of heads and tails.
        self._words: Final = memoryview(rings).cast("I")
        self._sq_head, self._sq_tail, self._sq_mask = layout.sq_head // 4, layout.sq_tail // 4, layout.sq_entries - 1
        self._cq_head, self._cq_tail, self._cq_mask = layout.cq_head // 4, layout.cq_tail // 4, layout.cq_entries - 1
        self._completions: Final = layout.completions

    def push(self, submission: Submission, fd: int, user_data: int) -> None:
        """Add an operation on `fd`. It begins at the next `submit`; its completion carries `user_data`."""
        opcode, position, address, length, flags, fsync = submission
        tail = self._words[self._sq_tail]
        at = (tail & self._sq_mask) * _SQE.size
        _SQE.pack_into(self._entries, at, opcode, flags, 0, fd, position, address, length, fsync, user_data)
        self._words[self._sq_tail] = (tail + 1) & _U32

    def write(self, fd: int, position: int, memory: memoryview, user_data: int) -> None:
        """Add a write of `memory`, which the caller keeps until it is complete."""
        self.push(Submission(Opcode.WRITE, position, address_of(memory), len(memory)), fd, user_data)

    @property
    def pushed(self) -> int:
        """Operations that were pushed and not submitted yet."""
        return (self._words[self._sq_tail] - self._words[self._sq_head]) & _U32

    def submit(self) -> None:
        """Hand the pushed operations to the kernel. Raises OSError; those that it did not accept stay pushed."""
        while count := self.pushed:
            if not _call(self._enter, self._fd, count):
                raise OSError(errno.EAGAIN, "the kernel accepted no operation")

    def withdraw(self) -> list[int]:
        """Take back the operations pushed and not submitted; return the user data of each."""
        words, mask = self._words, self._sq_mask
        head = words[self._sq_head]
        places = [((head + number) & mask) * _SQE.size for number in range(self.pushed)]
        words[self._sq_tail] = head
        return [_SQE.unpack_from(self._entries, at)[-1] for at in places]

    def ready(self) -> int:
        """Return the number of completions that may be taken."""
        count = (self._words[self._cq_tail] - self._words[self._cq_head]) & _U32
        if count and not _ORDERED_LOADS:
            os.getppid()  # a cheap system call: see "Memory order"
        return count

    def take(self) -> tuple[int, int]:
        """Return the user data and the result of the oldest completion: an errno, negated, or a number of bytes."""
        head = self._words[self._cq_head]
        user_data, result, _ = _CQE.unpack_from(self._rings, self._completions + (head & self._cq_mask) * _CQE.size)
        self._words[self._cq_head] = (head + 1) & _U32
        return user_data, result

    def release(self) -> None:
        """Give the memory back. Nothing can be pushed or taken afterwards."""
        self._words.release()


class Ring:
    """An io_uring with room for `entries` operations, a power of two. Raises OSError if the kernel refuses it."""

    def __init__(self, entries: int) -> None:
        if not IS_LINUX or machine() not in SYSTEM_CALLS:
            raise OSError(errno.ENOSYS, f"no io_uring on {machine()}")
        self.entries: Final = entries
        setup, enter = SYSTEM_CALLS[machine()]
        params = bytearray(_PARAMS.size)
        self.fd: Final = _call(setup, entries, _address_of(params))
        """Descriptor of the ring: readable while completions wait to be taken."""
        try:
            self.queues = self._map(enter, _PARAMS.unpack(params))
            self._probe()
        except BaseException:
            os.close(self.fd)
            raise

    def _map(self, enter: int, words: tuple[int, ...]) -> Queues:
        if words[_FEATURES_AT] & _FEATURES != _FEATURES:
            raise OSError(errno.ENOSYS, "the kernel is older than 5.6")
        sq_entries, cq_entries = words[:2]
        sq, cq = words[_SQ_AT:_CQ_AT], words[_CQ_AT:]
        layout = Layout(sq[0], sq[1], sq_entries, cq[0], cq[1], cq_entries, completions=cq[5])
        size_bytes = max(sq[6] + 4 * sq_entries, cq[5] + _CQE.size * cq_entries)
        self._rings = mmap(self.fd, size_bytes, flags=MAP_SHARED | MAP_POPULATE)
        self._entries = mmap(self.fd, _SQE.size * sq_entries, flags=MAP_SHARED | MAP_POPULATE, offset=_SQES_OFFSET)
        with memoryview(self._rings).cast("I") as array:
            for index in range(sq_entries):
                array[sq[6] // 4 + index] = index
        return native_part().twin(Queues)(enter, self.fd, self._rings, self._entries, layout)

    def _probe(self) -> None:
        """Perform an operation that does nothing: a filter may allow one system call and not the other."""
        queues = self.queues
        queues.push(Submission(Opcode.NOP), -1, _PROBE)
        queues.submit()
        if queues.ready() != 1 or queues.take() != (_PROBE, 0):
            raise OSError(errno.EIO, "an operation without effect did not complete")

    def close(self) -> None:
        """Give the ring back. No operation may be under way: the kernel would still use its buffers."""
        self.queues.release()
        self._rings.close()
        self._entries.close()
        os.close(self.fd)


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def address_of(memory: memoryview) -> int:
    """Return the address of writable memory. The caller keeps the memory alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
