"""Instructions of a part of this process, counted by Valgrind's tool Callgrind, which runs it.

A process asks Callgrind by a *client request*: a sequence of instructions that does nothing on a processor and that
Valgrind recognizes (valgrind.h, `VALGRIND_DO_CLIENT_REQUEST_EXPR`). So start-up and preparation run at a fifth of the
usual speed, and only what is counted at a fiftieth.
"""

import ctypes
import mmap
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.lab.processes import MissingError

_CODE: Final = bytes.fromhex(
    "48 89 f8"  # mov rax, rdi: the address of request and arguments
    "31 d2"  # xor edx, edx: the result without Valgrind
    "48 c1 c7 03 48 c1 c7 0d 48 c1 c7 3d 48 c1 c7 33"  # rol rdi by 3, 13, 61, 51: 128 in all, so nothing
    "48 87 db"  # xchg rbx, rbx
    "48 89 d0 c3"  # return rdx
)
_BASE: Final = ord("C") << 24 | ord("T") << 16
_ZERO, _DUMP, _START, _STOP = _BASE + 1, _BASE + 3, _BASE + 4, _BASE + 5
_DUMP_NAME: Final = "callgrind.out"
_SUMMARY: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def is_available() -> bool:
    """Return whether instructions can be counted on this machine."""
    return shutil.which("valgrind") is not None and platform.machine() == "x86_64"


def run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Run this Python with `arguments` under Callgrind; the dumps of its `InstructionCounter` go to `folder`.

    Raises MissingError without Valgrind, CalledProcessError.
    """
    if not is_available():
        raise MissingError("counting instructions needs Valgrind (Debian: valgrind) on x86-64")
    valgrind = [
        "valgrind",
        "-q",
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={folder / _DUMP_NAME}",
    ]
    subprocess.run([*valgrind, sys.executable, *arguments], check=True, env=environment)


class InstructionCounter:
    """Counts from `start` to `stop`, of all threads, in a process that Callgrind runs."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the one that `run` was given."""
        self._folder = folder
        self._dumps = 0
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._request = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)

    def start(self) -> None:
        """Count from here on."""
        self._ask(_START)
        self._ask(_ZERO)

    def stop(self) -> int:
        """Return the instructions since `start`."""
        name = ctypes.create_string_buffer(b"part")
        self._ask(_DUMP, ctypes.addressof(name))
        self._ask(_STOP)
        self._dumps += 1
        dump = (self._folder / f"{_DUMP_NAME}.{self._dumps}").read_text()
        found = _SUMMARY.findall(dump)
        assert found, "a dump has a total"
        return int(found[-1])

    def _ask(self, request: int, argument: int = 0) -> None:
        block = (ctypes.c_uint64 * 6)(request, argument)
        self._request(ctypes.addressof(block))
