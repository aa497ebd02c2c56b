"""Keeps this node's view of the cluster up to date: nodes, topics, leaders, configs, ACLs and delegation tokens.

Other nodes' changes are numbered in the catalog. A notification, or a beat that returns a larger number than the last
one seen, makes the follower read and apply what is new. A lost notification costs one beat.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.node.peers.liveness import BEAT_S, BEATS_MISSED, Liveness, Silence
from anabranch.broker.node.peers.members import Member, Members
from anabranch.broker.node.peers.secret import ClusterSecret
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, Pulse
from anabranch.s3stream.errors import CatalogDamaged, NodeFenced, StorageError

POLL_S: Final = 0.1
"""Interval at which SQLite's file is looked at for commits of other nodes."""
POLL_ALONE_S: Final = 1.0
RETRY_S: Final = 1.0
VOUCHED_S: Final = 8.0
"""Time for which an answer counts as a sign of life. It is asked for more often, and may take five seconds."""

_log = structlog.get_logger("node")


class Copies(NamedTuple):
    """This node's copies of the catalog's contents. None: not needed here."""

    configs: ClusterConfigs
    acls: ClusterAcls | None
    tokens: DelegationTokens | None
    secret: ClusterSecret


class CatalogFollower:
    """Follows the catalog from the change `seen` on, while `run` runs. `on_pulse` reports beats."""

    def __init__(
        self,
        catalog: Catalog,
        members: Members,
        topics: TopicManager,
        copies: Copies,
        *,
        seen: int,
        nodes: Sequence[NodeInfo],
        on_nodes_changed: Callable[[], None],
        on_lost: Callable[[NodeFenced | CatalogDamaged], None],
    ) -> None:
        self.on_observed: Callable[[], None] | None = None
        """Called after each observation of the nodes' beats."""
        self._catalog = catalog
        self._members = members
        self._topics = topics
        self._copies = copies
        self._seen = seen
        self._nodes = nodes
        self._on_nodes_changed = on_nodes_changed
        self._on_lost = on_lost
        self._liveness = Liveness(members.own.node_id)
        self._pulse_s = 0.0
        self._pulsed = asyncio.Event()
        self._vouched: dict[tuple[int, int], float] = {}
        """Ids and epochs of the nodes that have answered lately, with the time until which that counts."""
        self._woken = asyncio.Event()
        self._woken.set()  # for what has changed during the start

    @property
    def version(self) -> int:
        """Number of the last change that was applied."""
        return self._seen

    @property
    def pulse_age_s(self) -> float:
        """Time since the last beat that the catalog has answered."""
        return asyncio.get_running_loop().time() - self._pulse_s

    @property
    def beat_s(self) -> float | None:
        """Interval at which other nodes expect beats; None if there are no others."""
        return None if self._is_alone else BEAT_S

    @property
    def _is_alone(self) -> bool:
        """True if no other node is registered, except those that have stopped cleanly and left nothing."""
        others = (node for node in self._nodes if node.node_id != self._members.own.node_id)
        return not any(node.lease_until_ms > 0 or self._topics.names_node(node.node_id) for node in others)

    @property
    def nodes(self) -> Sequence[NodeInfo]:
        """All registered nodes."""
        return self._nodes

    async def learn_who_lives(self) -> None:
        """Wait until each other node was seen to live, for as long as three beats take.

        A client that asks a node which knows of no other one would lose all of them.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(BEATS_MISSED * BEAT_S):
                while not self._has_seen_all:
                    self._pulsed.clear()
                    await self._pulsed.wait()

    @property
    def _has_seen_all(self) -> bool:
        return {node.node_id for node in self._nodes if node.lease_until_ms > 0} <= self._liveness.living()

    def silent(self) -> Mapping[int, Silence]:
        """Return for how long each other node has been silent."""
        return self._liveness.silent()

    def on_pulse(self, pulse: Pulse) -> None:
        """Take in the beats of all nodes."""
        self._pulse_s = asyncio.get_running_loop().time()
        self._liveness.observe(pulse.beats, self._pulse_s)
        self._update_members()
        self._pulsed.set()
        if pulse.version != self._seen:
            self._woken.set()
        if self.on_observed is not None:
            self.on_observed()

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

    def vouch(self, node: NodeInfo) -> None:
        """Note that a node answers other nodes although it does not beat, and cannot be taken over."""
        self._vouched[node.node_id, node.epoch] = asyncio.get_running_loop().time() + VOUCHED_S
        self._update_members()

    async def run(self) -> None:
        """Follow until cancelled, or until this node is fenced."""
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen())
            while True:
                await self._woken.wait()
                self._woken.clear()
                try:
                    await self.follow()
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

    async def follow(self) -> None:
        """Apply what has changed. Raises StorageError."""
        async with self._topics.changing():
            pass  # it has caught up

    async def catch_up(self) -> None:
        """Read and apply what has changed, while no change by this node is under way. Raises StorageError."""
        changes = await self._catalog.read_changes(self._seen)
        if changes is None:
            return
        if changes.nodes != self._nodes:
            self._nodes = changes.nodes
            self._on_nodes_changed()
        self._update_members()
        await self._topics.apply_changes(changes)
        copies = self._copies
        if changes.configs_changed:
            await copies.configs.load()
        if changes.acls_changed and copies.acls is not None:
            await copies.acls.load()
        if changes.tokens_changed and copies.tokens is not None:
            await copies.tokens.load()
        if changes.secret_changed:
            await copies.secret.load()
        self._seen = changes.version


def member_of(node: NodeInfo) -> Member:
    """Return a registered node as a member."""
    return Member(node.node_id, node.epoch, node.listeners, node.rack, node.internal_host, node.internal_port)
