"""An interpreter that lacks what only Linux has: on PYTHONPATH, it changes each Python program that starts.

The names that macOS's Python does not have are gone, `/dev/shm` is not there, and in processes of `anabranch` neither
are `/proc` and `/sys`: tests read these to look at a broker from outside. The module of platform facts sees `darwin`;
nothing else may ask. Those processes have the packages of the extras that BARE_EXTRAS names; unset, all but uvloop.
"""

import errno
import fcntl
import mmap
import os
import select
import selectors
import socket
import sys
from collections.abc import Callable
from typing import Any

GONE: dict[Any, tuple[str, ...]] = {
    os: (
        "EFD_CLOEXEC",
        "EFD_NONBLOCK",
        "EFD_SEMAPHORE",
        "MFD_CLOEXEC",
        "O_DIRECT",
        "O_TMPFILE",
        "POSIX_FADV_DONTNEED",
        "copy_file_range",
        "eventfd",
        "eventfd_read",
        "eventfd_write",
        "fdatasync",
        "memfd_create",
        "pipe2",
        "posix_fadvise",
        "posix_fallocate",
        "sched_getaffinity",
        "sched_setaffinity",
        "splice",
    ),
    mmap: ("MADV_HUGEPAGE", "MAP_POPULATE"),
    select: ("POLLRDHUP",),
    socket: ("SO_INCOMING_CPU", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
}
IS_BROKER = "anabranch" in sys.orig_argv
HIDDEN = ("/dev/shm", "/proc", "/sys") if IS_BROKER else ("/dev/shm",)


def is_hidden(path: object) -> bool:
    """Return whether a path is one of those that are not there."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    text = os.fsdecode(path)
    return any(text == each or text.startswith(f"{each}/") for each in HIDDEN)


def without_hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a path that fails for those that are not there."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if is_hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return function(path, *arguments, **options)

    return call


def refuse_hidden(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail where a file or folder that is not there is opened."""
    if event in {"open", "os.listdir", "os.scandir"} and is_hidden(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(arguments[0]))


socket.TCP_KEEPALIVE = socket.TCP_KEEPIDLE  # type: ignore[attr-defined]  # macOS's name
fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined]  # Linux refuses it, as some file systems of macOS do
for module, names in GONE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment, misc]
for name in ("stat", "lstat", "statvfs"):
    setattr(os, name, without_hidden(getattr(os, name)))
sys.addaudithook(refuse_hidden)
kept, sys.platform = sys.platform, "darwin"
try:
    import anabranch.platform
finally:
    sys.platform = kept
anabranch.platform._boot_session = lambda: "boot"  # noqa: SLF001 - macOS tells its boots apart, by a call of its own
if IS_BROKER:
    from anabranch.extras import EXTRAS

    has = os.environ["BARE_EXTRAS"].split() if "BARE_EXTRAS" in os.environ else EXTRAS.keys() - {"speed"}
    for name in {package.partition(".")[0] for extra in EXTRAS.keys() - {*has} for package in EXTRAS[extra]}:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
