"""Who holds a node's id: found out before a start, and kept known while the node runs.

A process that registers a node writes into the catalog who and where it is, and renews a lease three times in its
length. A start must not take the id from a process that lives. Two clocks are never compared: a lease that does not
change for its whole length, by the clock of the one who watches, is one that nobody renews.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import structlog

from broker.membership.log_identity import utc
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import NodeInfo
from s3stream.errors import CatalogDamaged, NodeFenced, NodeInUse, StorageError
from s3stream.tasks import end_tasks

LEASE_POLL_S: Final = 0.5
"""How often a lease is looked at that may have ended."""
LOG_PERIOD_S: Final = 5.0
"""How often whoever waits for it says so."""

_log = structlog.get_logger("node")


@dataclass(frozen=True, slots=True)
class Claimant:
    """A process that wants a node's id."""

    lock_id: str
    """What it holds locked: see `NodeHolder.lock_id`."""
    host_name: str
    one_machine: bool
    """Whether the catalog can be opened on one machine only, as SQLite's can."""
    lease_ms: int


def is_free(seen: NodeInfo, claimant: Claimant) -> bool:
    """Whether the process that registered the node last is known to be gone, without watching its lease."""
    if seen.lease_until_ms <= 0:
        return True  # it stopped cleanly, or was removed
    held, own = seen.holder.lock_id, claimant.lock_id
    if not held or not own:
        return False
    if held == own:
        return True  # its lock is ours now
    # Processes share SQLite's log through memory, so that all of a catalog's are on one machine, which was started anew
    # since. A copy of the file on another machine is another catalog: no lease reaches there. Containers of one machine
    # may have a boot id each, but then they have names of their own, too.
    same_host = seen.holder.host_name == claimant.host_name
    return claimant.one_machine and same_host and _boot(held) != _boot(own)


def _boot(lock_id: str) -> str:
    return lock_id.partition(":")[0]


def describe_holder(seen: NodeInfo) -> str:
    """The process that holds a node, in words."""
    holder = seen.holder
    who = f"process {holder.pid} on {holder.host_name}" if holder.pid else "a process"
    return f"{who} at {seen.host}:{seen.port} (lease until {utc(seen.lease_until_ms)})"


async def wait_until_free(catalog: Catalog, node_id: int, claimant: Claimant) -> NodeInfo | None:
    """Return the node as the catalog has it once nobody holds it; None if it was never registered.

    Raises NodeInUse as soon as its holder is seen to live.
    """
    seen = await catalog.get_node(node_id)
    if seen is None or is_free(seen, claimant):
        return seen
    loop = asyncio.get_running_loop()
    end = loop.time() + max(claimant.lease_ms, seen.lease_ms) / 1000
    tell_at = loop.time()
    while (left := end - loop.time()) > 0:
        if loop.time() >= tell_at:
            tell_at += LOG_PERIOD_S
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
                f"node id {node_id} is held by {describe_holder(found)}, which lives: give this node another "
                "node.node_id, or stop the other one first"
            )
    return seen


class LeaseKeeper:
    """Renews the lease of a registered node from `async with` on, until `stop` or its end."""

    def __init__(
        self,
        catalog: Catalog,
        node: NodeInfo,
        *,
        now_ms: Callable[[], int],
        on_lost: Callable[[NodeFenced | CatalogDamaged], None],
    ) -> None:
        """`on_lost` is called when another process has taken the node's place, or the catalog is damaged.

        Nothing is renewed then any more.
        """
        self.on_renewed: Callable[[], Awaitable[None]] | None = None
        """Follows what the catalog was told meanwhile. May raise StorageError."""
        self.on_failed: Callable[[StorageError], None] | None = None
        """Called when the catalog could not be told, or asked."""
        self._catalog = catalog
        self._node = node
        self._now_ms = now_ms
        self._on_lost = on_lost
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._renewed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(self._keep()), self._group.create_task(self._follow())]
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.stop()
        # The group's own exit is not told of the body's error: it would wrap it in a group of one.
        await self._group.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Renew no more."""
        await end_tasks(self._tasks)

    async def _keep(self) -> None:
        node = self._node
        while True:
            await asyncio.sleep(node.lease_ms / 3000)
            try:
                await self._catalog.renew_lease(node.node_id, node.epoch, now_ms=self._now_ms(), lease_ms=node.lease_ms)
                self._renewed.set()
            except (NodeFenced, CatalogDamaged) as error:
                self._on_lost(error)
                return
            except StorageError as error:
                self._tell("the lease could not be renewed", error)

    async def _follow(self) -> None:
        """Follow the catalog after renewals, beside them: what is waited for here must not let the lease end."""
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
                self._tell("what the catalog was told meanwhile could not be followed", error)

    def _tell(self, what: str, error: StorageError) -> None:
        if self.on_failed is not None:
            self.on_failed(error)
        _log.warning(what, reason=str(error))
