"""Contract of the takeover of a dead node and of the recovery of its log, on both databases."""

from collections.abc import Sequence
from typing import Self

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeBeat, NodeHolder, NodeInfo, Takeover, WalState
from anabranch.s3stream.errors import CatalogError, NodeFenced, NodeInUse, NodeStopped, StreamHeld
from anabranch.s3stream.model import NodeIdentity, StreamOwner
from tests.support.catalog_node import NOW

DEAD, ONE, TWO = 1, 2, 3
LOG = "0" * 15 + "1"
TOPIC_ID = bytes(range(16))


class Cluster:
    """A catalog in which the node `DEAD` owns a topic's partitions, and the nodes `ONE` and `TWO` live."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.nodes: dict[int, NodeInfo] = {}
        self.streams: Sequence[int] = ()

    @classmethod
    async def started(cls, catalog: Catalog) -> Self:
        cluster = cls(catalog)
        for node_id in (DEAD, ONE, TWO):
            await cluster.register(node_id)
        topic = await catalog.create_topic("t", TOPIC_ID, partitions=4, configs={}, leader=DEAD, internal=False)
        cluster.streams = [partition.stream_id for partition in topic.partitions]
        await catalog.open_streams(cluster.streams, await cluster.open_log(DEAD, LOG))
        return cluster

    async def register(self, node_id: int) -> NodeInfo:
        holder = NodeHolder("here", node_id, f"boot:1:{node_id}")
        info = await self.catalog.register_node(node_id, "h", 9092, now_ms=NOW, lease_ms=10_000, holder=holder)
        self.nodes[node_id] = info
        return info

    async def open_log(self, node_id: int, wal_id: str, takeover: Takeover = Takeover.MACHINE) -> StreamOwner:
        info = self.nodes[node_id]
        await self.catalog.open_wal(
            wal_id, node=NodeIdentity(node_id, info.epoch), location="/wal", takeover=takeover, now_ms=NOW
        )
        return StreamOwner(node_id, info.epoch, wal_id)

    async def take_over(
        self, seen: NodeBeat, *, by: int = ONE, wal_id: str | None = LOG, leaders: Sequence[int] = ()
    ) -> int:
        return await self.catalog.take_over(
            DEAD,
            seen,
            wal_id=wal_id,
            recoverer=self.nodes[by].identity,
            leaders=leaders or (by,),
            now_ms=NOW,
        )

    async def beat(self, node_id: int) -> NodeBeat:
        """Let a node beat; returns the beat as another one sees it."""
        await self.catalog.beat(NodeIdentity(node_id, self.nodes[node_id].epoch), now_ms=NOW, lease_ms=10_000)
        pulse = await self.catalog.beat(NodeIdentity(TWO, self.nodes[TWO].epoch), now_ms=NOW, lease_ms=10_000)
        return pulse.beats[node_id]

    async def leaders(self) -> list[int]:
        (topic,) = await self.catalog.list_topics()
        return [partition.leader for partition in topic.partitions]

    async def owners(self) -> list[int]:
        (topic,) = await self.catalog.list_topics()
        return [partition.owner for partition in topic.partitions]

    async def log_state(self) -> WalState:
        (wal,) = await self.catalog.list_wals(DEAD)
        return wal.state


@pytest.fixture
async def cluster(catalog: Catalog) -> Cluster:
    return await Cluster.started(catalog)


async def test_a_dead_node_is_fenced_and_its_partitions_get_leaders_that_may_not_open_them_yet(
    cluster: Cluster,
) -> None:
    catalog, seen = cluster.catalog, await cluster.beat(DEAD)
    before = (await catalog.list_topics())[0].partitions
    version = await catalog.last_change()
    assert await cluster.take_over(seen, leaders=(ONE, TWO)) == seen.epoch + 1

    (topic,) = await catalog.list_topics()
    assert [each.leader for each in topic.partitions] == [ONE, TWO, ONE, TWO]
    assert [each.owner for each in topic.partitions] == [DEAD] * 4
    assert all(now.leader_epoch == old.leader_epoch + 1 for now, old in zip(topic.partitions, before, strict=True))
    (wal,) = await catalog.list_wals(DEAD)
    assert (wal.state, wal.recoverer, wal.recoverer_epoch) == (WalState.FENCED, ONE, cluster.nodes[ONE].epoch)
    changes = await catalog.read_changes(version)
    assert changes is not None
    assert [each.name for each in changes.topics] == ["t"]
    with pytest.raises(NodeFenced):
        await cluster.beat(DEAD)
    with pytest.raises(StreamHeld):
        await catalog.open_streams(cluster.streams[:1], await cluster.open_log(ONE, "0" * 15 + "2"))


async def test_a_node_that_has_beaten_since_is_not_taken_over(cluster: Cluster) -> None:
    seen = await cluster.beat(DEAD)
    await cluster.beat(DEAD)
    with pytest.raises(NodeInUse):
        await cluster.take_over(seen)
    assert await cluster.leaders() == [DEAD] * 4


async def test_of_two_that_take_over_one_wins_and_may_repeat_it(cluster: Cluster) -> None:
    seen = await cluster.beat(DEAD)
    epoch = await cluster.take_over(seen, by=ONE)
    with pytest.raises(NodeInUse):
        await cluster.take_over(seen, by=TWO)
    assert await cluster.take_over(seen, by=ONE) == epoch, "its first answer was lost"


async def test_a_fenced_node_takes_nobody_over(cluster: Cluster) -> None:
    seen, old = await cluster.beat(DEAD), cluster.nodes[ONE]
    await cluster.register(ONE)
    cluster.nodes[ONE] = old
    with pytest.raises(NodeFenced):
        await cluster.take_over(seen)


async def test_another_log_than_the_nodes_own_recovers_nothing(cluster: Cluster) -> None:
    seen = await cluster.beat(DEAD)
    for wal_id in ("0" * 15 + "7", None):
        with pytest.raises(CatalogError, match="another log"):
            await cluster.take_over(seen, wal_id=wal_id)


async def test_a_recoverer_that_dies_is_replaced_and_its_late_commands_are_refused(cluster: Cluster) -> None:
    catalog = cluster.catalog
    first = await cluster.take_over(await cluster.beat(DEAD), by=ONE)
    second = await cluster.take_over(NodeBeat(first, 0, has_lease=False), by=TWO)
    assert second == first + 1
    with pytest.raises(NodeFenced):
        await catalog.release_recovered(NodeIdentity(DEAD, first), LOG, kept=(), now_ms=NOW)
    await catalog.release_recovered(NodeIdentity(DEAD, second), LOG, kept=(), now_ms=NOW)
    assert (await cluster.owners(), await cluster.log_state()) == ([-1] * 4, WalState.DRAINED)


async def test_streams_are_released_as_their_tails_are_committed(cluster: Cluster) -> None:
    catalog = cluster.catalog
    epoch = await cluster.take_over(await cluster.beat(DEAD))
    await catalog.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=cluster.streams[1:3], now_ms=NOW)
    assert (await cluster.owners(), await cluster.log_state()) == ([-1, DEAD, DEAD, -1], WalState.FENCED)
    owner = await cluster.open_log(ONE, "0" * 15 + "2")
    await catalog.open_streams([cluster.streams[0]], owner)
    await catalog.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=(), now_ms=NOW)
    assert (await cluster.owners(), await cluster.log_state()) == ([ONE, -1, -1, -1], WalState.DRAINED)


async def test_what_cannot_be_recovered_waits_for_its_node(cluster: Cluster) -> None:
    catalog = cluster.catalog
    epoch = await cluster.take_over(await cluster.beat(DEAD))
    await catalog.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=cluster.streams[:1], now_ms=NOW)
    await catalog.return_streams(NodeIdentity(DEAD, epoch))
    assert (await cluster.leaders(), await cluster.owners()) == ([DEAD, ONE, ONE, ONE], [DEAD, -1, -1, -1])
    assert await cluster.log_state() is WalState.OPEN


async def test_a_node_that_returns_before_its_log_is_recovered_leads_what_it_owns(cluster: Cluster) -> None:
    catalog = cluster.catalog
    epoch = await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    await catalog.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=cluster.streams[1:], now_ms=NOW)
    returned = await cluster.register(DEAD)
    assert returned.epoch == epoch + 1
    assert (await cluster.leaders(), await cluster.log_state()) == ([ONE, DEAD, DEAD, DEAD], WalState.OPEN)
    with pytest.raises(NodeFenced):
        await catalog.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=(), now_ms=NOW)
    await catalog.open_streams(cluster.streams[1:], await cluster.open_log(DEAD, LOG))


async def test_a_node_that_returns_after_its_log_was_recovered_has_nothing(cluster: Cluster) -> None:
    catalog = cluster.catalog
    epoch = await cluster.take_over(await cluster.beat(DEAD))
    await catalog.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=(), now_ms=NOW)
    await cluster.register(DEAD)
    owner = await cluster.open_log(DEAD, LOG)
    assert (await cluster.leaders(), await cluster.owners()) == ([ONE] * 4, [-1] * 4)
    with pytest.raises(StreamHeld):
        await catalog.open_streams(cluster.streams, owner)


async def test_the_partitions_of_a_log_that_was_given_up_get_leaders_without_a_recovery(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await catalog.give_up_wal(LOG, seen=cluster.nodes[DEAD], now_ms=NOW)
    beat = NodeBeat(cluster.nodes[DEAD].epoch + 1, 0, has_lease=False)
    await cluster.take_over(beat, wal_id=None)
    assert (await cluster.leaders(), await cluster.owners()) == ([ONE] * 4, [-1] * 4)
    await catalog.open_streams(cluster.streams, await cluster.open_log(ONE, "0" * 15 + "2"))


async def test_a_node_that_stops_names_no_successor_that_has_stopped(cluster: Cluster) -> None:
    catalog, dead, two = cluster.catalog, cluster.nodes[DEAD], cluster.nodes[TWO]
    log = (await cluster.open_log(TWO, "0" * 15 + "2")).wal_id
    await catalog.stop_node(NodeIdentity(ONE, cluster.nodes[ONE].epoch), drained_wal=None, now_ms=NOW)
    await catalog.stop_node(NodeIdentity(DEAD, dead.epoch), drained_wal=LOG, successors=(ONE, TWO), now_ms=NOW)
    assert await cluster.leaders() == [TWO] * 4
    await catalog.stop_node(NodeIdentity(TWO, two.epoch), drained_wal=log, successors=(ONE, DEAD), now_ms=NOW)
    assert await cluster.leaders() == [TWO] * 4, "nobody runs who could lead them"


async def test_a_node_that_stops_cleanly_leaves_its_partitions_to_its_successors(cluster: Cluster) -> None:
    catalog, dead = cluster.catalog, cluster.nodes[DEAD]
    await catalog.stop_node(NodeIdentity(DEAD, dead.epoch), drained_wal=None, successors=(ONE, TWO), now_ms=NOW)
    assert await cluster.leaders() == [DEAD] * 4, "its log may hold records"
    await catalog.stop_node(NodeIdentity(DEAD, dead.epoch), drained_wal=LOG, successors=(ONE, TWO), now_ms=NOW)
    assert (await cluster.leaders(), await cluster.owners()) == ([ONE, TWO, ONE, TWO], [-1] * 4)


async def test_what_is_left_of_a_stopped_node_opens_nothing(cluster: Cluster) -> None:
    catalog, dead = cluster.catalog, cluster.nodes[DEAD]
    await catalog.stop_node(NodeIdentity(DEAD, dead.epoch), drained_wal=LOG, now_ms=NOW)
    with pytest.raises(NodeStopped):
        await catalog.open_streams(cluster.streams, StreamOwner(DEAD, dead.epoch, LOG))
    assert await cluster.owners() == [-1] * 4, "nobody recovers a drained log"


async def test_a_start_does_not_take_the_epoch_of_a_takeover_for_its_own(catalog: Catalog) -> None:
    cluster = await Cluster.started(catalog)
    dead = cluster.nodes[DEAD]
    epoch = await cluster.take_over(await cluster.beat(DEAD))
    assert epoch == dead.epoch + 1
    with pytest.raises(NodeFenced):  # by a process with the same id as the dead one, as in a container
        await catalog.register_node(
            DEAD, "h", 9092, now_ms=NOW, lease_ms=10_000, holder=dead.holder, after_epoch=dead.epoch
        )
