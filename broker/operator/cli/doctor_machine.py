"""Checks of the machine for `doctor`: clock, limits, memory, native part."""

import ctypes
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from anabranch.broker.node.settings.memory import available_memory, memory_for
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.processes import process_count
from anabranch.broker.node.settings.sizes import size_text
from anabranch.extras import install_command
from anabranch.native import VARIABLE, NativeError, NativePart, native_part

Status = Literal["ok", "warning", "failed"]
CLOCKS_SLOW: Final = frozenset({"hpet", "acpi_pm", "jiffies"})
CLOCK_SOURCE: Final = "sys/devices/system/clocksource/clocksource0/current_clocksource"
DESCRIPTORS_BESIDE: Final = 256
"""Descriptors that a node needs beside those of clients: log, catalog, store, other nodes."""
MEMORY_BYTES_MIN: Final = 256 << 20
_TIMEX_BYTES: Final = 512
"""More than the size of `struct timex`."""
_TIME_ERROR: Final = 5
"""State that adjtimex(2) returns for a clock that nothing synchronizes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of a check. `advice` says what to change, in one line; None if nothing."""

    check: str
    status: Status
    found: str
    advice: str | None = None


def check_machine(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Check clock, limits and memory against what the settings ask for."""
    yield judge_clock(_clock_state(), _read(root / CLOCK_SOURCE))
    yield judge_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0], settings.network.connections_max)
    yield _memory(settings, root)
    yield judge_native(native_part)


def judge_native(part: Callable[[], NativePart]) -> Finding:
    """Say whether nodes that are started from here use the native part."""
    try:
        found = part()
        return Finding("native part", "warning" if found.advice else "ok", found.description, found.advice or None)
    except NativeError as error:
        return Finding("native part", "failed", str(error), f"{install_command('native')}, or set {VARIABLE}=auto")


def judge_clock(state: int | None, source: str | None) -> Finding:
    """Judge the state that adjtimex returned and the clock source; None: unknown."""
    if source in CLOCKS_SLOW:
        found = f"the clock source is {source}, which is slow to read"
        return Finding("clock", "warning", found, "set the clock source tsc or kvm-clock")
    if state is None:
        advice = "check by hand that a time server sets this machine's clock"
        return Finding("clock", "warning", "cannot be read", advice)
    if state == _TIME_ERROR:
        return Finding(
            "clock",
            "warning",
            "nothing synchronizes it",
            "run chrony or systemd-timesyncd: leases, retention and offsets by time depend on it",
        )
    return Finding("clock", "ok", f"synchronized{f', source {source}' if source else ''}")


def judge_descriptors(limit: int, connections: int) -> Finding:
    """Judge the limit of open files, which a node started from here would have."""
    needed = connections + DESCRIPTORS_BESIDE
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Finding("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"limit {limit:,}")
    return Finding(
        "open files",
        "warning",
        f"limit {limit:,}, below network.connections_max = {connections:,} and {DESCRIPTORS_BESIDE} more",
        f"set LimitNOFILE={needed} (ulimit -n), or network.connections_max = {max(1, limit - DESCRIPTORS_BESIDE)}",
    )


def _memory(settings: Settings, root: Path) -> Finding:
    available, where = available_memory(root)
    count = process_count(settings, root)
    text = f"{size_text(available)} ({where}){f' for {count} processes' if count > 1 else ''}"
    if available < count * MEMORY_BYTES_MIN:
        return Finding("memory", "failed", text, f"give each node {size_text(MEMORY_BYTES_MIN)} or more")
    if memory_for(replace(settings, node=replace(settings.node, processes=count)), root).is_overcommitted:
        found = f"{text}; the sizes in the settings take more than that"
        return Finding("memory", "warning", found, "lower the cache sizes, or give the node more memory")
    return Finding("memory", "ok", text)


def _clock_state() -> int | None:
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
