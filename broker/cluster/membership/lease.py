"""Leases on node ids: a start waits until no process holds the node's id, and a running node renews its lease.

A process that registers a node writes its identity and address into the catalog, and renews its lease three times per
lease length, or more often if other nodes watch its beats. A start must not take the id from a live process. Clocks of
two machines are never compared: a lease has ended when it has not changed for its whole length, measured by the clock
of the process that waits.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from anabranch.addresses import host_port
from anabranch.broker.cluster.membership.log_identity import utc
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.node.peers.liveness import BEAT_S
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, Pulse
from anabranch.s3stream.errors import CatalogDamaged, NodeFenced, NodeInUse, StorageError

LEASE_POLL_S: Final = 0.5
"""Interval between reads of a lease that may have ended."""
BEATS: Final = 3
"""Renewals in the length of a lease, if nobody expects more."""
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


class Beat(NamedTuple):
    """A beat that went through."""

    sent_s: float
    """Time of the loop's clock at which it was sent."""
    pulse: Pulse


class Lease:
    """The lease of a registered node. Each beat renews it, and promises when the next one comes."""

    def __init__(self, catalog: Catalog, node: NodeInfo, tasks: NodeTasks, *, now_ms: Callable[[], int]) -> None:
        self.tasks = tasks
        """Tasks that renew the lease."""
        self._catalog = catalog
        self._node = node
        self._now_ms = now_ms
        self._promised_s = self.length_s / BEATS
        """Longest interval to the next beat that others have been told."""
        self.is_lost = False
        """True once the catalog has said that no further beat can renew it."""
        self._is_failing = False
        self._hurry = asyncio.Event()

    @property
    def length_s(self) -> float:
        """Time after which the lease ends unless it is renewed."""
        return self._node.lease_ms / 1000

    def beat_soon(self) -> None:
        """Let the next beat be due now."""
        self._hurry.set()

    async def beat(self, watched_s: Callable[[], float | None]) -> Beat | StorageError:
        """Renew the lease when that is due. Returns the error, which is logged, if the catalog gives no answer.

        `watched_s` returns the interval at which other nodes expect beats; None: as often as the lease needs.
        Raises NodeFenced when another process has registered the node, CatalogDamaged.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._promised_s, self._interval_s(watched_s))):
                await self._hurry.wait()
        self._hurry.clear()
        sent_s, next_s = asyncio.get_running_loop().time(), self._interval_s(watched_s)
        # Others may have seen this beat although it seems to fail, or may not.
        self._promised_s = min(self._promised_s, next_s)
        try:
            pulse = await self._catalog.beat(
                self._node.identity,
                now_ms=self._now_ms(),
                lease_ms=self._node.lease_ms,
                due_ms=int(next_s * 1000),
            )
        except (NodeFenced, CatalogDamaged):
            self.is_lost = True
            raise
        except StorageError as error:
            if not self._is_failing:
                _log.warning("the lease cannot be renewed; trying again", reason=str(error))
            self._is_failing, self._promised_s = True, min(self._promised_s, RETRY_S)
            return error
        self._is_failing, self._promised_s = False, next_s
        return Beat(sent_s, pulse)

    def _interval_s(self, watched_s: Callable[[], float | None]) -> float:
        return min(self.length_s / BEATS, watched_s() or math.inf)


async def beat_during_start(lease: Lease, on_lost: Callable[[NodeFenced | CatalogDamaged], None]) -> None:
    """Renew the lease until cancelled, as often as if others watched: they must not take a long start for a death."""
    try:
        while True:
            await lease.beat(lambda: BEAT_S)
    except (NodeFenced, CatalogDamaged) as error:
        on_lost(error)
