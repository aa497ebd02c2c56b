"""This node's part in its cluster: it beats, sees who lives, and applies what other nodes change.

One beat in the catalog renews the lease, proves that this node owns what it serves, and returns the beats of all nodes
with the number of the last change. A larger number than the last one applied, or a notification, makes this node read
and apply what is new. A lost notification costs one beat.

Invariants:

- A beat waits for nothing but the catalog: changes are applied, and own changes completed, in tasks of their own.
- Changes run one at a time, whether they come from other nodes or are made here (`changing`). Before each, what others
  have changed is applied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog

from anabranch.broker.cluster.membership.copies import Copies
from anabranch.broker.cluster.membership.lease import Lease
from anabranch.broker.cluster.membership.ownership import Ownership
from anabranch.broker.node.peers.liveness import (
    BEAT_S,
    BEATS_MISSED,
    DEAD_AFTER_S,
    SUSPECT_AFTER_S,
    Liveness,
    Silence,
)
from anabranch.broker.node.peers.members import Members, member_of
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, Pulse
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import CatalogDamaged, NodeFenced, StorageError
from anabranch.s3stream.outages import CATALOG
from anabranch.wal.interface import NodeWal

POLL_S: Final = 0.1
"""Interval at which SQLite's file is looked at for commits of other nodes."""
POLL_ALONE_S: Final = 1.0
RETRY_S: Final = 1.0
VOUCHED_S: Final = 8.0
"""Time for which an answer counts as a sign of life. It is asked for more often, and may take five seconds."""
TAIL_BYTES_MAX: Final = 256 << 20
"""Bytes that a node keeps in its log only, while its object store keeps up, if there are other nodes: three blocks, of
which one is filled and two are uploaded."""

_log = structlog.get_logger("node")


class Membership:
    """The membership of this node. It beats from `start` until `stop`, and applies changes while `run` runs."""

    def __init__(
        self,
        catalog: Catalog,
        lease: Lease,
        *,
        wal: NodeWal,
        is_exclusive: bool,
        storage: S3Stream,
        members: Members,
        copies: Copies,
        seen: int,
        nodes: Sequence[NodeInfo],
        on_lost: Callable[[NodeFenced | CatalogDamaged], None],
    ) -> None:
        """Set up, with the number `seen` of the last change before anything was read, and all registered nodes.

        `is_exclusive`: no other process can open the log while this one runs. `on_lost` is called when another process
        has this node's id, or the catalog is damaged.
        """
        self._catalog = catalog
        self._lease = lease
        self._storage = storage
        self._members = members
        self._topics = copies.topics
        self._copies = copies
        self._seen = seen
        self._nodes = nodes
        self._on_lost = on_lost
        self._liveness = Liveness(members.own.node_id)
        self._pulse_s = 0.0
        self._observed = asyncio.Event()
        self._renewed = asyncio.Event()
        self._vouched: dict[tuple[int, int], float] = {}
        """Ids and epochs of the nodes that have answered lately, with the time until which that counts."""
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._woken.set()  # for what has changed during the start
        self.ownership = Ownership(
            wal, is_exclusive=is_exclusive, lease_s=self._proof_s, on_proved=copies.topics.parking.wake
        )
        """Proof that reads may be answered."""

    # beating

    async def start(self) -> None:
        """Beat at once, and from now on as often as other nodes expect it."""
        self._limit_tail()
        await self._lease.tasks.end()
        if self._lease.is_lost:  # during the start, which has been told
            return
        self._lease.beat_soon()
        self._lease.tasks.spawn(self._beat())
        self._lease.tasks.spawn(self._complete())

    async def stop(self) -> None:
        """Stop beating."""
        await self._lease.tasks.end()

    async def _beat(self) -> None:
        try:
            while True:
                beat = await self._lease.beat(lambda: self.beat_s)
                if isinstance(beat, StorageError):
                    self._storage.outages.note(CATALOG, beat)
                    continue
                self.ownership.prove(beat.sent_s)
                self._observe(beat.pulse)
                self._renewed.set()
        except (NodeFenced, CatalogDamaged) as error:
            self._on_lost(error)

    def _observe(self, pulse: Pulse) -> None:
        """Take in the beats of all nodes."""
        self._pulse_s = asyncio.get_running_loop().time()
        self._liveness.observe(pulse.beats, self._pulse_s)
        self._update_members()
        if pulse.version != self._seen:
            self._woken.set()
        self._observed.set()
        self._observed = asyncio.Event()

    async def _complete(self) -> None:
        """Complete changes after beats, in a task of its own: waiting for it must not delay the next beat."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            try:
                await self.complete_changes()
            except (NodeFenced, CatalogDamaged) as error:
                self._on_lost(error)
                return
            except StorageError as error:
                self._storage.outages.note(CATALOG, error)
                _log.warning("changes in the catalog cannot be applied; trying again", reason=str(error))

    async def complete_changes(self) -> None:
        """Complete own changes whose outcome was unknown: the catalog answers again. Raises StorageError."""
        self._limit_tail()
        async with self._turn:
            await self._copies.resolve_topics()
        await self._copies.resolve_others()
        await self._storage.damaged.forget_removed(self._catalog)
        self._storage.outages.over(CATALOG)

    def _limit_tail(self) -> None:
        """Bound what another node has to recover when this one dies. A node that is alone uploads less often."""
        self._storage.limit_upload(None if self._is_alone else TAIL_BYTES_MAX // 3)

    # who lives

    @property
    def nodes(self) -> Sequence[NodeInfo]:
        """All registered nodes."""
        return self._nodes

    @property
    def _is_alone(self) -> bool:
        """True if no other node is registered, except those that have stopped cleanly and left nothing."""
        others = (node for node in self._nodes if node.node_id != self._members.own.node_id)
        return not any(node.lease_until_ms > 0 or self._topics.names_node(node.node_id) for node in others)

    @property
    def beat_s(self) -> float | None:
        """Interval at which other nodes expect beats; None if there are no others."""
        return None if self._is_alone else BEAT_S

    @property
    def beat_age_s(self) -> float:
        """Time since the last beat that the catalog has answered."""
        return asyncio.get_running_loop().time() - self._pulse_s

    def _proof_s(self) -> float:
        """Return for how long a beat proves the ownership: as long as others wait before they take over."""
        return self._lease.length_s if self._is_alone else DEAD_AFTER_S

    async def observed(self) -> None:
        """Wait for the next observation of the nodes' beats."""
        await self._observed.wait()

    async def learn_who_lives(self) -> None:
        """Wait until each other node was seen to live, for as long as three beats take.

        A client that asks a node which knows of no other one would lose all of them.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(BEATS_MISSED * BEAT_S):
                while not self._has_seen_all:
                    await self.observed()

    @property
    def _has_seen_all(self) -> bool:
        return {node.node_id for node in self._nodes if node.lease_until_ms > 0} <= self._liveness.living()

    def silent(self) -> Mapping[int, Silence]:
        """Return for how long each other node has been silent."""
        return self._liveness.silent()

    def suspects(self) -> Collection[int]:
        """Return the nodes that have been silent for longer than a pause between two beats explains."""
        return [node_id for node_id, each in self.silent().items() if each.seconds >= SUSPECT_AFTER_S]

    def vouch(self, node: NodeInfo) -> None:
        """Note that a node answers other nodes although it does not beat, and cannot be taken over."""
        self._vouched[node.node_id, node.epoch] = asyncio.get_running_loop().time() + VOUCHED_S
        self._update_members()

    def _update_members(self) -> None:
        living, listed = self._liveness.living(), self._liveness.listed()
        now_s = asyncio.get_running_loop().time()
        self._vouched = {key: until_s for key, until_s in self._vouched.items() if until_s > now_s}
        self._members.update(
            (member_of(node) for node in self._nodes if node.node_id in living),
            draining=(node.node_id for node in self._nodes if node.draining),
            died_lately=(member_of(node) for node in self._nodes if node.node_id in listed - living),
            vouched=(member_of(node) for node in self._nodes if (node.node_id, node.epoch) in self._vouched),
        )

    # changes

    @property
    def version(self) -> int:
        """Number of the last change that was applied."""
        return self._seen

    async def run(self) -> None:
        """Apply what other nodes change until cancelled, or until this node is fenced."""
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen())
            while True:
                await self._woken.wait()
                self._woken.clear()
                try:
                    await self.catch_up()
                except (NodeFenced, CatalogDamaged) as error:
                    self._on_lost(error)
                    listening.cancel()
                    return
                except StorageError as error:
                    _log.warning("changes by other nodes cannot be applied; trying again", reason=str(error))
                    await asyncio.sleep(RETRY_S)
                    self._woken.set()

    async def _listen(self) -> None:
        while True:
            try:
                await self._catalog.wait_for_change(POLL_ALONE_S if self._is_alone else POLL_S)
            except StorageError:
                await asyncio.sleep(RETRY_S)  # beats and commands report the outage
            else:
                self._woken.set()

    async def catch_up(self) -> None:
        """Apply all that any node has changed before. Raises StorageError."""
        async with self._turn:
            await self._catch_up()

    @asynccontextmanager
    async def changing(self, *, see_outcome: bool = False) -> AsyncIterator[None]:
        """Take a turn to change what the cluster shares: see `ChangeTurns.changing`. Raises StorageError."""
        async with self._turn:
            await self._catch_up()
            yield
            if see_outcome:
                await self._apply_changes()

    async def _catch_up(self) -> None:
        await self._copies.resolve_topics()
        await self._apply_changes()

    async def _apply_changes(self) -> None:
        changes = await self._catalog.read_changes(self._seen)
        if changes is None:
            return
        if changes.nodes != self._nodes:
            self._nodes = changes.nodes
            self._lease.beat_soon()  # others may wait for a sign of life
        self._update_members()
        await self._copies.apply_changes(changes)
        self._seen = changes.version
