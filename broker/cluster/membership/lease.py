"""Leases on node ids: a start waits until no process holds the node's id, and a running node renews its lease.

A process that registers a node writes its identity and address into the catalog, and renews its lease three times per
lease length, or more often if other nodes watch its beats. A start must not take the id from a live process. Clocks of
two machines are never compared: a lease has ended when it has not changed for its whole length, measured by the clock
of the process that waits.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import structlog

from anabranch.addresses import host_port
from anabranch.broker.cluster.membership.log_identity import utc
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, Pulse
from anabranch.s3stream.errors import CatalogDamaged, NodeFenced, NodeInUse, StorageError
from anabranch.s3stream.tasks import end_tasks

LEASE_POLL_S: Final = 0.5
"""Interval between reads of a lease that may have ended."""
RETRY_S: Final = 1.0
"""Longest interval from a beat that failed to the next one."""
LOG_PERIOD_S: Final = 5.0
"""Interval between log lines while waiting for a lease."""

_log = structlog.get_logger("node")


@dataclass(frozen=True, slots=True)
class Claimant:
    """A process that claims a node's id."""

    lock_id: str
    """Id of the lock it holds: see `NodeHolder.lock_id`."""
    host_name: str
    one_machine: bool
    """True if the catalog can be opened on one machine only, as with SQLite."""
    lease_ms: int


def is_free(seen: NodeInfo, claimant: Claimant) -> bool:
    """Return whether the last holder of the node is known to be gone, without waiting for its lease."""
    if seen.lease_until_ms <= 0:
        return True  # it stopped cleanly, or was removed
    held, own = seen.holder.lock_id, claimant.lock_id
    if not held or not own:
        return False
    if held == own:
        return True  # its lock is ours now
    # SQLite's processes share memory, so all processes of this catalog run on one machine, and it was rebooted since.
    # A copy of the file on another machine is a different catalog, which leases do not protect. Containers of one
    # machine may have different boot ids, but then their host names differ as well.
    same_host = seen.holder.host_name == claimant.host_name
    return claimant.one_machine and same_host and _boot(held) != _boot(own)


def _boot(lock_id: str) -> str:
    return lock_id.partition(":")[0]


def describe_holder(seen: NodeInfo) -> str:
    """Describe the process that holds a node, for messages."""
    holder = seen.holder
    who = f"process {holder.pid} on {holder.host_name}" if holder.pid else "a process"
    return f"{who} at {host_port(seen.host, seen.port)} (lease until {utc(seen.lease_until_ms)})"


async def wait_until_free(catalog: Catalog, node_id: int, claimant: Claimant) -> NodeInfo | None:
    """Wait until no process holds the node; return its row in the catalog, or None if it was never registered.

    Raises NodeInUse as soon as the lease changes, which proves that its holder is alive.
    """
    seen = await catalog.get_node(node_id)
    if seen is None or is_free(seen, claimant):
        return seen
    loop = asyncio.get_running_loop()
    end = loop.time() + max(claimant.lease_ms, seen.lease_ms) / 1000
    log_at = loop.time()
    while (left := end - loop.time()) > 0:
        if loop.time() >= log_at:
            log_at += LOG_PERIOD_S
            _log.info(
                "waiting for the end of the node's lease",
                node_id=node_id,
                holder=describe_holder(seen),
                seconds_left=round(left, 1),
            )
        await asyncio.sleep(min(LEASE_POLL_S, left))
        found = await catalog.get_node(node_id)
        if found is None or found.lease_until_ms <= 0:
            return found
        if found != seen:
            raise NodeInUse(
                f"node id {node_id} is held by {describe_holder(found)}, which is alive: give this node "
                "another node.node_id, or stop the other one first"
            )
    return seen


class LeaseKeeper:
    """Renews the lease of a registered node, from `async with` until `stop` or the end of the context."""

    def __init__(
        self,
        catalog: Catalog,
        node: NodeInfo,
        *,
        now_ms: Callable[[], int],
        on_lost: Callable[[NodeFenced | CatalogDamaged], None],
    ) -> None:
        """Set up; `on_lost` is called when another process has registered the node, or the catalog is damaged.

        Renewal stops then.
        """
        self.on_beat: Callable[[float], None] | None = None
        """Called after each beat that went through, with the time of the loop's clock at which it was sent."""
        self.on_pulse: Callable[[Pulse], None] | None = None
        """Called with the answer to each beat."""
        self.beat_s: Callable[[], float | None] = lambda: None
        """Returns the interval between beats, if shorter than the lease needs; None without other nodes."""
        self.on_renewed: Callable[[], Awaitable[None]] | None = None
        """Called after each renewal, to apply changes in the catalog. May raise StorageError."""
        self.on_failed: Callable[[StorageError], None] | None = None
        """Called when a renewal, or `on_renewed`, has failed."""
        self._catalog = catalog
        self._node = node
        self._now_ms = now_ms
        self._on_lost = on_lost
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._renewed = asyncio.Event()
        self._hurry = asyncio.Event()

    def beat_soon(self) -> None:
        """Renew the lease now: others may wait for a sign of life."""
        self._hurry.set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(self._keep()), self._group.create_task(self._follow())]
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.stop()
        # The group must not see the body's error: it would wrap it in an exception group.
        await self._group.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Stop the renewal."""
        await end_tasks(self._tasks)

    async def _keep(self) -> None:
        node, told_s, is_failing = self._node, self._interval_s(), False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(told_s, self._interval_s())):
                    await self._hurry.wait()
            self._hurry.clear()
            sent_s, next_s = asyncio.get_running_loop().time(), self._interval_s()
            told_s = min(told_s, next_s)  # others may have seen this beat although it seems to fail, or may not
            try:
                pulse = await self._catalog.beat(
                    node.node_id,
                    node.epoch,
                    now_ms=self._now_ms(),
                    lease_ms=node.lease_ms,
                    due_ms=int(next_s * 1000),
                )
                told_s, is_failing = next_s, False
                if self.on_beat is not None:
                    self.on_beat(sent_s)
                if self.on_pulse is not None:
                    self.on_pulse(pulse)
                self._renewed.set()
            except (NodeFenced, CatalogDamaged) as error:
                self._on_lost(error)
                return
            except StorageError as error:
                self._report("the lease cannot be renewed; trying again", error, again=is_failing)
                is_failing, told_s = True, min(told_s, RETRY_S)

    def _interval_s(self) -> float:
        return min(self._node.lease_ms / 3000, self.beat_s() or math.inf)

    async def _follow(self) -> None:
        """Call `on_renewed` after renewals, in a separate task: waiting for it must not delay the next renewal."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            try:
                if self.on_renewed is not None:
                    await self.on_renewed()
            except (NodeFenced, CatalogDamaged) as error:
                self._on_lost(error)
                return
            except StorageError as error:
                self._report("changes in the catalog cannot be applied; trying again", error)

    def _report(self, event: str, error: StorageError, *, again: bool = False) -> None:
        if self.on_failed is not None:
            self.on_failed(error)
        if not again:
            _log.warning(event, reason=str(error))
