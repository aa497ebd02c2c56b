"""The lease of reads: a node answers them only for a time after a proof that it still owns its partitions.

A write needs its node's log, a read needs nothing. A node that is cut off from the catalog would therefore serve stale
reads while another node leads its partitions and has newer records. The proof is a beat in the catalog, or the log
itself: the log of a dead node is fenced before another node serves its partitions.

While the catalog is away for all, the logs prove the ownership. A log that others can open only when this process has
ended needs no proof at all.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from anabranch.wal.interface import NodeWal, WalError

CHECK_S: Final = 1.0
"""Interval at which the log is asked while no beat goes through."""


class Ownership:
    """Proofs of the ownership. Beats are noted by `prove`, and `run` asks the log when there are none."""

    def __init__(
        self, wal: NodeWal, *, is_exclusive: bool, lease_s: Callable[[], float], on_proved: Callable[[], None]
    ) -> None:
        """Set up right after a proof. `is_exclusive`: no other process can open the log while this one runs.

        `lease_s` returns how long a proof holds: exactly the time that other nodes wait before they take over.
        `on_proved` is called when the ownership is proved again after a lapse. It must not raise.
        """
        self.may_lapse = not is_exclusive
        """False if nothing has to be proved, ever."""
        self._wal = wal
        self._lease_s = lease_s
        self._on_proved = on_proved
        self._until_s = math.inf
        if self.may_lapse:
            self._until_s = asyncio.get_running_loop().time() + lease_s()

    @property
    def is_proved(self) -> bool:
        """True while reads may be answered."""
        return not self.may_lapse or asyncio.get_running_loop().time() < self._until_s

    def prove(self, asked_s: float) -> None:
        """Note a proof that was asked for at `asked_s` of the loop's clock: it may be as old as that."""
        was_proved = self.is_proved
        self._until_s = max(self._until_s, asked_s + self._lease_s())
        if not was_proved and self.is_proved:
            self._on_proved()

    async def run(self) -> None:
        """Ask the log while beats fail, until cancelled."""
        loop = asyncio.get_running_loop()
        while self.may_lapse:
            await asyncio.sleep(CHECK_S)
            if self._until_s - loop.time() > self._lease_s() - CHECK_S:
                continue  # a beat has just gone through
            asked_s = loop.time()
            try:
                async with asyncio.timeout(self._lease_s()):
                    await self._wal.prove_ownership()
            except (WalError, TimeoutError):
                continue  # it is not known; a log that was fenced has failed, which ends the node
            self.prove(asked_s)
