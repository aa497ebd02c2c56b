"""Replaces dead nodes: judges which nodes are dead, takes them over, and recovers their logs.

Any living node may do it; the catalog lets one win. Nothing depends on a judgement being right: a node that was only
slow is fenced in the catalog and in its log before anything of it is read.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog

from anabranch.broker.cluster.membership.log_recovery import DeadLog, LogRecovery
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.node.peers.liveness import DEAD_AFTER_S, SUSPECT_AFTER_S, Silence
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeBeat, NodeInfo, Takeover, WalInfo, WalState
from anabranch.s3stream.errors import NodeFenced, NodeInUse, StorageError
from anabranch.s3stream.model import NodeIdentity
from anabranch.wal.interface import WalCorrupt, WalError, WalInUse

RETRY_S: Final = 1.0
"""Pause after a takeover that was not possible."""

_log = structlog.get_logger("node")


NO_LOG: Final = (
    "node {0} has no log that may hold records outside of objects: nothing of it is to be given up. If it will not "
    "return: `anabranch node remove {0}`"
)


class TakeoverRefused(Exception):
    """A node is not declared dead, or its log is not given up, for the reason in the text."""


class Judgement(NamedTuple):
    """This node's opinion of another one that is silent."""

    node_id: int
    seconds: float
    """Duration of the silence."""
    is_dead: bool
    reason: str
    """Reason for which it is not taken over; empty if it is, or if there is nothing to be taken over."""


class Failover:
    """Takes over what dead nodes leave behind, while `run` runs."""

    def __init__(
        self,
        catalog: Catalog,
        membership: Membership,
        recovery: LogRecovery,
        *,
        own: NodeIdentity,
        new_leaders: Callable[[], Sequence[int]],
        left_any: Callable[[int], bool],
        reaches: Callable[[NodeInfo], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Set up; `own` is this node's id and epoch.

        `left_any` tells whether a dead node leaves partitions, `new_leaders` returns the nodes that may get them,
        `reaches` whether a node that cannot be taken over answers this one.
        """
        self._reaches = reaches
        self._catalog = catalog
        self._membership = membership
        self._recovery = recovery
        self._own = own
        self._new_leaders = new_leaders
        self._left_any = left_any
        self._spawn = spawn
        self._under_way: set[int] = set()
        """Dead nodes that a task attends to."""
        self._failures: dict[int, StorageError | WalError] = {}
        """The last reason, by node, for which a takeover was not possible: each is logged once."""
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held by who opens, fences or recovers a node's log."""
        self._settled: dict[int, NodeBeat] = {}
        """Last beats of silent nodes that have no log to be recovered."""
        self._left: dict[int, str] = {}
        """Logs, by node, with a part that cannot be recovered: they wait for their nodes."""
        self._ended: set[int] = set()
        """Nodes whose processes are said to have ended: they are looked after before they are silent for long."""

    def note_ended(self, node_id: int) -> None:
        """Look after a node at the next observation: the end of its process was seen.

        It is not believed. As after a short silence, the node is taken over only if the lock of its log is free.
        """
        self._ended.add(node_id)

    async def run(self) -> None:
        """Look after dead nodes until cancelled."""
        while True:
            await self._membership.observed()
            silent = self._membership.silent()
            for node in self._membership.nodes:
                silence = silent.get(node.node_id)
                if silence is None or node.node_id in self._under_way:
                    continue
                if silence.seconds < SUSPECT_AFTER_S and node.node_id not in self._ended:
                    if silence.was_alive and silence.beat.has_lease:  # it lives: both are of an earlier life
                        self._failures.pop(node.node_id, None)
                        self._left.pop(node.node_id, None)
                    continue
                if self._settled.get(node.node_id) == silence.beat and not self._left_any(node.node_id):
                    continue
                self._under_way.add(node.node_id)
                self._ended.discard(node.node_id)
                self._spawn(self._attend(node, silence))

    async def _attend(self, node: NodeInfo, silence: Silence) -> None:
        try:
            async with self._turns[node.node_id]:
                await self._take_over(node, silence)
        except (NodeInUse, NodeFenced):
            pass  # it lives, or another node was faster
        except (StorageError, WalError) as error:
            before = self._failures.get(node.node_id)
            self._failures[node.node_id] = error
            if before is None or str(before) != str(error):
                _log.warning("a silent node is not taken over", dead_node_id=node.node_id, reason=str(error))
            await self._pause(node)
        finally:
            self._under_way.discard(node.node_id)

    async def _pause(self, node: NodeInfo) -> None:
        """Wait until the next attempt; until then ask whether the node, which cannot be taken over, answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                if await self._reaches(node):
                    self._membership.vouch(node)
                await asyncio.sleep(RETRY_S)

    async def _take_over(self, node: NodeInfo, silence: Silence) -> None:
        """Take over the node if it is dead and leaves anything behind. Raises StorageError or WalError."""
        logs = [wal for wal in await self._catalog.list_wals(node.node_id) if wal.is_live]
        is_dead = _is_dead(node, silence)
        if not logs:
            self._settled[node.node_id] = silence.beat
            self._failures.pop(node.node_id, None)  # another node could
            if is_dead and self._left_any(node.node_id):
                await self._fence(node, silence, None)
            return
        log = logs[-1]
        if self._left.get(node.node_id) == log.wal_id or self._is_being_recovered(log):
            return
        if not is_dead and (log.takeover is not Takeover.MACHINE or not silence.beat.has_lease):
            return
        try:
            dead_log = await self._recovery.open(log, node)
        except WalInUse:
            if is_dead:
                raise
            return  # it was only slow
        except WalError:
            await self._recovery.check_catalog()  # what an operator does about the log depends on it
            raise
        await self._recover(log, node, silence, dead_log)

    async def _recover(
        self, log: WalInfo, node: NodeInfo, silence: Silence, dead_log: DeadLog, *, even_if_alive: bool = False
    ) -> None:
        """Fence the node, whose log is open, and recover the log. Raises StorageError or WalError."""
        try:
            epoch = await self._fence(node, silence, log.wal_id, even_if_alive=even_if_alive)
        except BaseException:
            await dead_log.close()
            raise
        await self._recovery.run(log, NodeIdentity(node.node_id, epoch), dead_log)
        self._failures.pop(node.node_id, None)
        if any(wal.wal_id == log.wal_id and wal.is_live for wal in await self._catalog.list_wals(node.node_id)):
            self._left[node.node_id] = log.wal_id

    async def _fence(self, node: NodeInfo, silence: Silence, wal_id: str | None, *, even_if_alive: bool = False) -> int:
        await self._recovery.check_catalog()
        epoch = await self._catalog.take_over(
            node.node_id,
            silence.beat,
            wal_id=wal_id,
            recoverer=self._own,
            leaders=[each for each in self._new_leaders() if each != node.node_id],
            now_ms=self._recovery.now_ms(),
            even_if_alive=even_if_alive,
        )
        if silence.beat.has_lease:  # otherwise it was taken over before, and its remains are taken over again
            _log.warning(
                "a node is dead: it is taken over",
                dead_node_id=node.node_id,
                silent_seconds=round(silence.seconds, 1),
                has_log=wal_id is not None,
            )
        return epoch

    def _is_being_recovered(self, log: WalInfo) -> bool:
        """Return whether another living node recovers the log."""
        if log.state is not WalState.FENCED or log.recoverer == self._own.node_id:
            return False
        recoverer = self._membership.silent().get(log.recoverer)
        return (
            recoverer is not None
            and recoverer.beat.epoch == log.recoverer_epoch
            and recoverer.beat.has_lease
            and recoverer.seconds < DEAD_AFTER_S
        )

    # by order of a person

    def judge(self, node: NodeInfo) -> Judgement | None:
        """Return what this node thinks of another one that is silent; None if it beats, or has stopped cleanly."""
        silence = self._membership.silent().get(node.node_id)
        if silence is None or silence.seconds < SUSPECT_AFTER_S:
            return None
        failure = self._failures.get(node.node_id)
        if not silence.beat.has_lease and failure is None:
            return None
        return Judgement(
            node.node_id, silence.seconds, _is_dead(node, silence), "" if failure is None else str(failure)
        )

    async def declare_dead(self, node_id: int) -> WalInfo | None:
        """Take a node over at once, whether it lives or not; return its log if there was one to be recovered.

        Raises TakeoverRefused when its log cannot be opened; StorageError or WalError when the recovery of the log
        fails, which is tried again then as after any other death.
        """
        async with self._turns[node_id]:
            node, silence = self._known(node_id)
            log = await self._live_log(node_id)
            if log is None:
                if not silence.beat.has_lease and not self._left_any(node_id):
                    raise TakeoverRefused(
                        f"node {node_id} has stopped, or was taken over: it has left nothing. If it will not return: "
                        f"`anabranch node remove {node_id}`"
                    )
                await self._fence_now(node, silence)
                return None
            if self._left.get(node_id) == log.wal_id:
                raise TakeoverRefused(
                    f"node {node_id} was taken over, but a part of its log, {log.location}, cannot be recovered: start "
                    f"the node, or accept the loss with `anabranch node give-up {node_id}`"
                )
            try:
                dead_log = await self._recovery.open(log, node)
            except WalInUse as error:
                raise TakeoverRefused(f"the process of node {node_id} has its log: stop it first ({error})") from None
            except WalError as error:
                raise TakeoverRefused(
                    f"the log of node {node_id} cannot be opened here: {error}. Start the node, ask one that can open "
                    f"it, or accept the loss of the log with `anabranch node give-up {node_id}`"
                ) from None
            try:
                await self._recover(log, node, silence, dead_log, even_if_alive=True)
            except NodeInUse as error:
                raise TakeoverRefused(str(error)) from None
            return log

    async def _fence_now(self, node: NodeInfo, silence: Silence) -> None:
        try:
            await self._fence(node, silence, None, even_if_alive=True)
        except NodeInUse as error:
            raise TakeoverRefused(str(error)) from None

    async def find_lost_log(self, node_id: int) -> tuple[NodeInfo, WalInfo]:
        """Return a dead node's registration, and its log if no node can recover it.

        Raises TakeoverRefused, StorageError.
        """
        async with self._turns[node_id]:
            await self._recovery.check_catalog()
            node = await self.find_dead(node_id)
            log = await self._live_log(node_id)
            if log is None:
                raise TakeoverRefused(NO_LOG.format(node_id))
            is_left = self._left.get(node_id) == log.wal_id
            if not is_left and not isinstance(self._failures.get(node_id), WalCorrupt):
                await self._check_lost(node, log)
            return node, log

    async def find_dead(self, node_id: int) -> NodeInfo:
        """Return the registration of a node that is dead, or has stopped. Raises TakeoverRefused, StorageError.

        As long as it stays the same the node has not beaten: the catalog is asked whether it has since the observation.
        A node without a lease has stopped, or is fenced already.
        """
        known, silence = self._known(node_id)
        found = await self._catalog.observe_node(node_id)
        if found is None:
            raise TakeoverRefused(f"node {node_id} is not registered")
        seen, beat = found
        if beat.has_lease and (beat != silence.beat or not _is_dead(known, silence)):
            raise TakeoverRefused(
                f"node {node_id} is not known to be dead: its last sign of life was seen {silence.seconds:.1f} s ago. "
                "Stop its process, wait some seconds, and repeat"
            )
        return seen

    async def _check_lost(self, node: NodeInfo, log: WalInfo) -> None:
        """Raise TakeoverRefused if this node, or another one that lives, can open the log."""
        for other in self._membership.nodes:
            lives = (seen := self._membership.silent().get(other.node_id)) is not None and seen.seconds < DEAD_AFTER_S
            if (
                lives
                and log.takeover is Takeover.MACHINE
                and other.node_id != node.node_id
                and other.holder.host_name == node.holder.host_name != self._recovery.host_name
            ):
                raise TakeoverRefused(
                    f"node {other.node_id} is on the same machine, {other.holder.host_name}: ask it instead"
                )
        try:
            dead_log = await self._recovery.open(log, node)
        except WalInUse as error:
            raise TakeoverRefused(f"the process of node {node.node_id} still has its log ({error})") from None
        except WalError:
            return
        await dead_log.close()
        raise TakeoverRefused(f"the log of node {node.node_id}, {log.location}, can be opened: it is being recovered")

    def _known(self, node_id: int) -> tuple[NodeInfo, Silence]:
        """Return another node and how long it is silent. Raises TakeoverRefused."""
        if node_id == self._own.node_id:
            raise TakeoverRefused(f"this is node {node_id} itself: ask another node, or stop it")
        silence = self._membership.silent().get(node_id)
        found = [node for node in self._membership.nodes if node.node_id == node_id]
        if silence is None or not found:
            raise TakeoverRefused(
                f"there is no node {node_id}, or it was not observed yet: `anabranch node list` shows all"
            )
        return found[0], silence

    async def _live_log(self, node_id: int) -> WalInfo | None:
        """Return the log that may hold records outside of objects. Raises TakeoverRefused if another recovers it."""
        logs = [wal for wal in await self._catalog.list_wals(node_id) if wal.is_live]
        if logs and self._is_being_recovered(logs[-1]):
            raise TakeoverRefused(f"node {logs[-1].recoverer} recovers the log of node {node_id} already")
        return logs[-1] if logs else None


def _is_dead(node: NodeInfo, silence: Silence) -> bool:
    return silence.seconds >= silence.patience_s(node.lease_ms)
