"""Choice of the engine that performs the requests of a device: io_uring where it works, threads everywhere else."""

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from anabranch.wal.device_ring import Ring
from anabranch.wal.device_threads import ThreadEngine
from anabranch.wal.device_uring import RING_ENTRIES, UringEngine
from anabranch.wal.interface import WalRefused
from anabranch.wal.requests import Engine
from anabranch.wal.settings import WalSettings

_LOG = structlog.get_logger(__name__)
_DISABLED: Final = Path("/proc/sys/kernel/io_uring_disabled")


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """An engine, and its name for messages, with the reason if it is not the preferred one."""

    engine: Engine
    description: str


def choose_engine(fd: int, path: Path, settings: WalSettings, *, direct: bool, flushes: bool = False) -> ChosenEngine:
    """Return the engine for `fd` that `settings` choose. `direct`: opened with O_DIRECT. Raises WalRefused.

    `flushes`: each write has to be flushed, since the descriptor was opened without O_DSYNC, so threads do it.

    A ring is set up and tried here, so that the choice is known before the first request.
    """
    if settings.engine == "threads":
        return _threads(fd, settings, "threads", flushes=flushes)
    if not direct:
        # A write through the page cache is performed by the call that submits it, which would stop the event loop.
        reason = "it needs O_DIRECT, which the file system refuses"
        return _instead(fd, path, settings, reason, flushes=flushes)
    try:
        ring = Ring(RING_ENTRIES)
    except OSError as error:
        return _instead(fd, path, settings, _reason(error), flushes=flushes)
    return ChosenEngine(UringEngine(fd, ring), "io_uring")


def _instead(fd: int, path: Path, settings: WalSettings, reason: str, *, flushes: bool) -> ChosenEngine:
    """Return threads, if the settings leave the choice."""
    if settings.engine == "io_uring":
        raise WalRefused(
            f"{path}: wal.engine is io_uring, but {reason}; allow it, or set wal.engine to auto or threads"
        )
    _LOG.info("threads write the log, not io_uring", path=str(path), reason=reason)
    return _threads(fd, settings, f"threads ({reason})", flushes=flushes)


def _threads(fd: int, settings: WalSettings, description: str, *, flushes: bool) -> ChosenEngine:
    # Two more than the writes in flight, so that a header write never waits behind them, nor behind zeros.
    return ChosenEngine(ThreadEngine(fd, settings.writes_in_flight_max + 2, flushes=flushes), description)


def _reason(error: OSError) -> str:
    """Return why the kernel refused a ring."""
    text = f"the kernel refuses io_uring: {error.strerror}"
    if error.errno == errno.EPERM:
        return f"{text}: {_forbidden()}"
    if error.errno == errno.ENOMEM:
        return f"{text}: the limit of locked memory (ulimit -l) is too low"
    return text


def _forbidden() -> str:
    """Return what forbids io_uring to this process."""
    try:
        disabled = _DISABLED.read_text().strip() != "0"
    except OSError:  # before Linux 6.6
        disabled = False
    if disabled:
        return "the sysctl kernel.io_uring_disabled is set"
    return "a seccomp profile forbids it, as those of container run-times do by default"
