"""Detection of clients that hold memory without progress: in mid-frame, or with responses that they do not read. Pure.

Checks run only while other frames wait for that memory. Time is counted in checks, a fixed number of which make up the
time allowed, so that a process that was suspended for a while finds no client late.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

STALL_CHECKS = 5
"""Checks without progress after which a connection is closed."""
PROGRESS_PARTS = 10
"""Progress is one part in this many of the whole, so no frame takes longer than this many times the time allowed."""

Key = TypeVar("Key", bound=Hashable)


class Transfer(NamedTuple):
    """An incomplete frame, or responses that the peer has not read."""

    what: object
    """Identity of the transfer. The next transfer of a connection has another one."""
    size_bytes: int
    """Size of the frame, or of the unread responses."""
    moved_bytes: int
    """Grows with the bytes received or read. Only differences are significant."""


class TransferProgress(NamedTuple):
    """A transfer at its last progress, and the number of checks since."""

    transfer: Transfer
    checks: int = 0


class StallCheck(NamedTuple, Generic[Key]):
    """Outcome of a check."""

    seen: Mapping[Key, TransferProgress]
    """Progress of each transfer, for the next check."""
    stalled: list[Key]


def check_stalls(seen: Mapping[Key, TransferProgress], transfers: Iterable[tuple[Key, Transfer]]) -> StallCheck[Key]:
    """Compare the current transfers with those of the previous check."""
    now: dict[Key, TransferProgress] = {}
    stalled: list[Key] = []
    for key, each in transfers:
        before = seen.get(key)
        if before is None or before.transfer.what is not each.what:
            now[key] = TransferProgress(each)
            continue
        moved = each.moved_bytes - before.transfer.moved_bytes
        if moved * PROGRESS_PARTS >= each.size_bytes:
            now[key] = TransferProgress(each)
        elif before.checks + 1 >= STALL_CHECKS:
            stalled.append(key)
        else:
            now[key] = TransferProgress(before.transfer, before.checks + 1)
    return StallCheck(now, stalled)
