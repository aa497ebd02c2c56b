"""Replaces dead nodes: judges which nodes are dead, takes them over, and recovers their logs.

Any living node may do it; the catalog lets one win. Nothing depends on a judgement being right: a node that was only
slow is fenced in the catalog and in its log before anything of it is read.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from broker.cluster.liveness import DEAD_AFTER_S, SUSPECT_AFTER_S, Silence
from broker.membership.follower import CatalogFollower
from broker.membership.log_recovery import LogRecovery
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import NodeBeat, NodeInfo, Takeover, WalInfo, WalState
from s3stream.errors import NodeFenced, NodeInUse, StorageError
from wal.interface import WalError, WalInUse

RETRY_S: Final = 1.0
"""Pause after a takeover that was not possible."""

_log = structlog.get_logger("node")


class Failover:
    """Takes over what dead nodes leave behind, while `run` runs."""

    def __init__(
        self,
        catalog: Catalog,
        follower: CatalogFollower,
        recovery: LogRecovery,
        *,
        own: tuple[int, int],
        new_leaders: Callable[[], Sequence[int]],
        left_any: Callable[[int], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Set up; `own` is this node's id and epoch.

        `left_any` tells whether a dead node leaves partitions, `new_leaders` returns the nodes that may get them.
        """
        self._catalog = catalog
        self._follower = follower
        self._recovery = recovery
        self._own = own
        self._new_leaders = new_leaders
        self._left_any = left_any
        self._spawn = spawn
        self._observed = asyncio.Event()
        self._under_way: set[int] = set()
        """Dead nodes that a task attends to."""
        self._reasons: dict[int, str] = {}
        """The last reason, by node, for which a takeover was not possible: each is logged once."""
        self._settled: dict[int, NodeBeat] = {}
        """Last beats of silent nodes that have no log to be recovered."""
        self._left: set[str] = set()
        """Logs with a part that cannot be recovered: they wait for their nodes."""

    async def run(self) -> None:
        """Look after dead nodes until cancelled."""
        self._follower.on_observed = self._observed.set
        while True:
            await self._observed.wait()
            self._observed.clear()
            silent = self._follower.silent()
            for node in self._follower.nodes:
                silence = silent.get(node.node_id)
                if silence is None or silence.seconds < SUSPECT_AFTER_S or node.node_id in self._under_way:
                    continue
                if self._settled.get(node.node_id) == silence.beat and not self._left_any(node.node_id):
                    continue
                self._under_way.add(node.node_id)
                self._spawn(self._attend(node, silence))

    async def _attend(self, node: NodeInfo, silence: Silence) -> None:
        try:
            await self._take_over(node, silence)
        except (NodeInUse, NodeFenced):
            pass  # it lives, or another node was faster
        except (StorageError, WalError) as error:
            if self._reasons.get(node.node_id) != str(error):
                self._reasons[node.node_id] = str(error)
                _log.warning("a silent node is not taken over", dead_node_id=node.node_id, reason=str(error))
            await asyncio.sleep(RETRY_S)
        finally:
            self._under_way.discard(node.node_id)

    async def _take_over(self, node: NodeInfo, silence: Silence) -> None:
        """Take over the node if it is dead and leaves anything behind. Raises StorageError or WalError."""
        logs = [wal for wal in await self._catalog.list_wals(node.node_id) if wal.is_live]
        is_dead = silence.seconds >= _patience_s(node, silence)
        if not logs:
            self._settled[node.node_id] = silence.beat
            if is_dead and self._left_any(node.node_id):
                await self._fence(node, silence, None)
            return
        log = logs[-1]
        if log.wal_id in self._left or self._is_being_recovered(log):
            return
        if not is_dead and (log.takeover is not Takeover.MACHINE or not silence.beat.has_lease):
            return
        try:
            dead_log = await self._recovery.open(log, node)
        except WalInUse:
            if is_dead:
                raise
            return  # it was only slow
        try:
            epoch = await self._fence(node, silence, log.wal_id)
        except BaseException:
            await dead_log.close()
            raise
        await self._recovery.run(log, node.node_id, epoch, dead_log)
        self._reasons.pop(node.node_id, None)
        if any(wal.wal_id == log.wal_id and wal.is_live for wal in await self._catalog.list_wals(node.node_id)):
            self._left.add(log.wal_id)

    async def _fence(self, node: NodeInfo, silence: Silence, wal_id: str | None) -> int:
        epoch = await self._catalog.take_over(
            node.node_id,
            silence.beat,
            wal_id=wal_id,
            recoverer=self._own,
            leaders=[each for each in self._new_leaders() if each != node.node_id],
            now_ms=self._recovery.now_ms(),
        )
        _log.warning(
            "a node is dead: it is taken over",
            dead_node_id=node.node_id,
            silent_seconds=round(silence.seconds, 1),
            has_log=wal_id is not None,
        )
        return epoch

    def _is_being_recovered(self, log: WalInfo) -> bool:
        """Return whether another living node recovers the log."""
        if log.state is not WalState.FENCED or log.recoverer == self._own[0]:
            return False
        recoverer = self._follower.silent().get(log.recoverer)
        return (
            recoverer is not None
            and recoverer.beat.epoch == log.recoverer_epoch
            and recoverer.beat.has_lease
            and recoverer.seconds < DEAD_AFTER_S
        )


def _patience_s(node: NodeInfo, silence: Silence) -> float:
    """Return after how long a silence proves that a node is dead."""
    if silence.was_alive or not silence.beat.has_lease:
        return DEAD_AFTER_S
    return max(DEAD_AFTER_S, node.lease_ms / 1000)
