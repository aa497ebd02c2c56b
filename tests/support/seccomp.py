"""A thread in which the kernel refuses io_uring, as under the seccomp profiles of container run-times."""

import ctypes
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from platform import machine
from struct import pack
from typing import TypeVar

from anabranch.wal.device_ring import SYSTEM_CALLS

T = TypeVar("T")

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def without_io_uring(call: Callable[[], T], code: int = errno.EPERM, *, refused: int = 0) -> T:
    """Return `call()`, made in a thread where a system call of io_uring fails with `code`; processes inherit it.

    `refused`: 0 for `io_uring_setup`, 1 for `io_uring_enter`.
    """

    def filtered() -> T:
        _filter(SYSTEM_CALLS[machine()][refused], code)
        return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(filtered).result()


def _filter(number: int, code: int) -> None:
    """Have system call `number` of this thread fail with `code`, forever."""
    program = ctypes.create_string_buffer(
        b"".join(
            pack("=HBBI", *instruction)
            for instruction in (
                (LOAD_WORD, 0, 0, 0),  # the number of the system call
                (JUMP_IF_EQUAL, 0, 1, number),
                (RETURN, 0, 0, ERRNO | code),
                (RETURN, 0, 0, ALLOW),
            )
        )
    )
    described = ctypes.create_string_buffer(pack("@HP", 4, ctypes.addressof(program)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(described), 0, 0),
    ):
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
