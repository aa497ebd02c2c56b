"""Deadlines that commands of the catalog set."""

import asyncio
from typing import Final

from anabranch.s3stream.errors import CatalogError

WAIT_COUNTED_S: Final = 1.0
"""Shortest wait of a command that postpones its deadline. The delays allow for more."""


class Deadline:
    """A deadline that counts from when its command runs: until then readers find the objects, and begin to read them.

    A command may wait for the writers' lock, behind commits that hang, and be repeated after an outage.
    """

    def __init__(self, now_ms: int, deadline_ms: int) -> None:
        if deadline_ms < now_ms:
            raise CatalogError(f"a deadline is a time at or after now ({now_ms} ms), found {deadline_ms} ms")
        self._deadline_ms = deadline_ms
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    @property
    def ms(self) -> int:
        """The deadline of a command that runs now."""
        waited_s = self._loop.time() - self._began_s
        return self._deadline_ms + (int(1000 * waited_s) if waited_s >= WAIT_COUNTED_S else 0)
