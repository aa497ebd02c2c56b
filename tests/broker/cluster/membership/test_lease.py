"""The lease on a node's id: its holder is known at once, or found out by watching. Virtual time, one-row catalog."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from anabranch import platform
from anabranch.broker.cluster.membership.lease import Claimant, Lease, beat_during_start, is_free, wait_until_free
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.node.peers.members import Members, member_of
from anabranch.broker.node.settings.data_dir import DataDirLock
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeHolder, NodeInfo, Pulse
from anabranch.s3stream.errors import CatalogDamaged, CatalogError, CatalogUnavailable, NodeFenced, NodeInUse
from anabranch.s3stream.model import NodeIdentity
from tests.support.virtual_time import VirtualTimeLoop

NOW = 1_000_000
LEASE = 30_000
OWN, OTHER_PLACE, OTHER_BOOT = "boot:1:1", "boot:1:2", "other:1:1"
HELD = NodeInfo(1, 4, "h", 9092, NOW + LEASE, LEASE, NodeHolder("there", 77, OTHER_PLACE))


def claimant(lock_id: str = OWN, host_name: str = "there", *, one_machine: bool = False) -> Claimant:
    return Claimant(lock_id, host_name, one_machine, LEASE)


@pytest.mark.parametrize("one_machine", [True, False])
def test_a_living_lease_is_free_only_for_whoever_proves_that_its_holder_is_gone(*, one_machine: bool) -> None:
    def free(holder_lock: str, own_lock: str = OWN) -> bool:
        seen = replace(HELD, holder=NodeHolder("there", 77, holder_lock))
        return is_free(seen, claimant(own_lock, one_machine=one_machine))

    assert free(OWN), "its lock is ours"
    assert not free(OTHER_PLACE), "another place on this machine"
    assert free(OTHER_BOOT) is one_machine, "only where all are on one machine, a boot of it ends them all"
    assert not free(""), "registered by a version that did not say"
    assert not free("", ""), "the holder is unknown"
    assert not free(OTHER_BOOT, "")


def test_another_boot_proves_nothing_under_another_host_name() -> None:
    seen = replace(HELD, holder=NodeHolder("there", 77, OTHER_BOOT))
    assert is_free(seen, claimant(one_machine=True))
    assert not is_free(seen, claimant(host_name="a-container", one_machine=True))


@pytest.mark.parametrize(
    ("until_ms", "expected"),
    [
        (0, True),  # stopped cleanly
        (-1, True),  # removed
        (NOW + 1, False),
        (1, False),  # long past, by a clock that may be wrong: it is watched
    ],
)
def test_a_lease_is_over_without_being_watched_only_when_it_was_ended(until_ms: int, *, expected: bool) -> None:
    assert is_free(replace(HELD, lease_until_ms=until_ms), claimant()) is expected


# watching


@dataclass
class Row:
    """The part of the catalog that a lease needs."""

    seen: NodeInfo | None
    renewals: list[int] = field(default_factory=list)
    due_ms: list[int] = field(default_factory=list)
    """Until when after each renewal the next one was promised."""
    errors: list[Exception] = field(default_factory=list)

    async def get_node(self, node_id: int) -> NodeInfo | None:
        assert node_id == 1
        return self.seen

    async def beat(self, node: NodeIdentity, *, now_ms: int, lease_ms: int, due_ms: int) -> Pulse:
        if self.errors:
            raise self.errors.pop()
        self.renewals.append(now_ms)
        self.due_ms.append(due_ms)
        return Pulse({}, 0, 0)


@pytest.fixture
def virtual() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    yield loop
    loop.close()


def watch(
    loop: VirtualTimeLoop, row: Row, change: NodeInfo | None = HELD, *, after_s: float = 10
) -> tuple[NodeInfo | None, float]:
    """The answer to a start that finds `row`, which changes in the middle, and how long it took."""

    async def run() -> tuple[NodeInfo | None, float]:
        loop.call_later(after_s, setattr, row, "seen", change)
        before = loop.time()
        found = await wait_until_free(cast("Catalog", row), 1, claimant())
        return found, loop.time() - before

    return loop.run_until_complete(run())


def test_a_node_that_is_free_is_not_waited_for(virtual: VirtualTimeLoop) -> None:
    assert watch(virtual, Row(None)) == (None, 0)
    stopped = replace(HELD, lease_until_ms=0)
    assert watch(virtual, Row(stopped)) == (stopped, 0)


def test_a_lease_that_nobody_renews_is_over_after_its_length(virtual: VirtualTimeLoop) -> None:
    found, waited_s = watch(virtual, Row(HELD))
    assert found == HELD
    assert LEASE / 1000 <= waited_s < LEASE / 1000 + 1
    slow = replace(HELD, lease_ms=5 * LEASE)
    assert watch(virtual, Row(slow), slow)[1] >= 5 * LEASE / 1000, "whose holder renews it less often"


@pytest.mark.parametrize(
    "change",
    [
        replace(HELD, lease_until_ms=HELD.lease_until_ms + 10_000),
        replace(HELD, lease_until_ms=HELD.lease_until_ms - 1),  # its holder's clock was put back
        replace(HELD, epoch=5, holder=NodeHolder("elsewhere", 78, "x:1:1")),  # another start was quicker
    ],
)
def test_a_lease_that_changes_is_somebodys(virtual: VirtualTimeLoop, change: NodeInfo) -> None:
    with pytest.raises(NodeInUse) as raised:
        watch(virtual, Row(HELD), change)
    holder = change.holder
    assert f"node id 1 is held by process {holder.pid} on {holder.host_name} at h:9092" in str(raised.value)


def test_a_node_that_stops_while_it_is_watched_is_free_at_once(virtual: VirtualTimeLoop) -> None:
    stopped = replace(HELD, lease_until_ms=0)
    found, waited_s = watch(virtual, Row(HELD), stopped)
    assert found == stopped
    assert waited_s < 11


# keeping


def membership_of(
    row: Row,
    tasks: NodeTasks,
    on_lost: Callable[[CatalogError], None],
    failures: list[str],
    complete: Callable[[], Awaitable[None]],
) -> Membership:
    """A membership of which nothing but the lease counts. `complete` stands for what follows a beat."""
    catalog = cast("Catalog", row)
    topics = SimpleNamespace(names_node=lambda _: False, parking=SimpleNamespace(wake=None))
    outages = SimpleNamespace(note=lambda _, error: failures.append(str(error)), over=lambda _: None)
    return Membership(
        catalog,
        Lease(catalog, HELD, tasks, now_ms=lambda: int(asyncio.get_running_loop().time() * 1000)),
        wal=cast("Any", None),
        is_exclusive=True,
        storage=cast("Any", SimpleNamespace(limit_upload=lambda _: None, outages=outages, damaged=AsyncMock())),
        members=Members(member_of(HELD)),
        copies=cast("Any", SimpleNamespace(topics=topics, resolve_topics=complete, resolve_others=AsyncMock())),
        seen=0,
        nodes=[HELD],
        on_lost=on_lost,
    )


def keep(
    loop: VirtualTimeLoop,
    row: Row,
    seconds: float,
    on_lost: Callable[[CatalogError], None],
    complete: Callable[[], Awaitable[None]] | None = None,
) -> list[str]:
    """Beat for some time, then stop; return the failures."""
    failures: list[str] = []

    async def run() -> None:
        async with NodeTasks() as tasks:
            membership = membership_of(row, tasks, on_lost, failures, complete or AsyncMock())
            await membership.start()
            await asyncio.sleep(seconds)
            await membership.stop()
            renewed = len(row.renewals)
            await asyncio.sleep(seconds)
            assert len(row.renewals) == renewed, "it has been stopped"

    loop.run_until_complete(run())
    return failures


def test_a_lease_is_renewed_three_times_in_its_length_whatever_fails_meanwhile(virtual: VirtualTimeLoop) -> None:
    lost: list[CatalogError] = []
    row = Row(HELD, errors=[CatalogUnavailable("away")])
    assert keep(virtual, row, 2 * LEASE / 1000 + 1, lost.append) == ["away"]
    gaps = [later - earlier for earlier, later in pairwise(row.renewals)]
    assert gaps == [LEASE // 3] * 5
    assert row.renewals[0] == 1_000, "it is repeated soon"
    assert not lost


@pytest.mark.parametrize("error", [NodeFenced("taken"), CatalogDamaged("malformed")])
def test_a_lease_that_is_lost_is_renewed_no_more(virtual: VirtualTimeLoop, error: CatalogError) -> None:
    lost: list[CatalogError] = []
    row = Row(HELD, errors=[error])
    assert keep(virtual, row, LEASE / 1000, lost.append) == []
    assert lost == [error]
    assert not row.renewals


@pytest.mark.parametrize("error", [NodeFenced("taken"), CatalogDamaged("malformed")])
def test_a_start_beats_as_if_others_watched_until_its_lease_is_lost(
    virtual: VirtualTimeLoop, error: CatalogError
) -> None:
    lost: list[CatalogError] = []
    row = Row(HELD, errors=[CatalogUnavailable("away")])

    async def run() -> None:
        async with NodeTasks() as tasks:
            lease = Lease(cast("Catalog", row), HELD, tasks, now_ms=lambda: int(1000 * virtual.time()))
            tasks.spawn(beat_during_start(lease, lost.append))
            await asyncio.sleep(3.25)
            assert row.renewals == [1_000, 1_500, 2_000, 2_500, 3_000]
            assert not lease.is_lost
            row.errors.append(error)
            await asyncio.sleep(3)
            assert lease.is_lost

    virtual.run_until_complete(run())
    assert (len(row.renewals), lost) == (5, [error])


def test_each_beat_comes_when_the_one_before_has_promised_it(virtual: VirtualTimeLoop) -> None:
    """Others join and leave, and the catalog is away when the node is alone again: nobody may wait for it in vain."""
    row = Row(HELD)
    watched_from_s, watched_to_s = 12.0, 20.25

    async def run() -> None:
        async with NodeTasks() as tasks:
            lease = Lease(cast("Catalog", row), HELD, tasks, now_ms=lambda: int(1000 * virtual.time()))
            virtual.call_at(watched_from_s, lease.beat_soon)
            virtual.call_at(watched_to_s, row.errors.append, CatalogUnavailable("away"))

            async def beat() -> None:
                while True:
                    await lease.beat(lambda: 0.5 if watched_from_s <= virtual.time() < watched_to_s else None)

            tasks.spawn(beat())
            await asyncio.sleep(60)

    virtual.run_until_complete(run())
    gaps = [later - earlier for earlier, later in pairwise(row.renewals)]
    late = [(gap, due) for gap, due in zip(gaps, row.due_ms, strict=False) if gap > due + 1]
    assert late == [(1_000, 500)], "only the one that failed is missing"
    assert row.due_ms.count(500) > 10
    assert row.due_ms[0] == row.due_ms[-1] == LEASE // 3


def test_what_follows_a_beat_may_take_longer_than_the_lease(virtual: VirtualTimeLoop) -> None:
    row = Row(HELD)
    begun: list[int] = []

    async def complete() -> None:
        begun.append(len(row.renewals))
        await asyncio.sleep(2 * LEASE / 1000)

    assert keep(virtual, row, 2 * LEASE / 1000, lambda _: None, complete) == []
    assert len(row.renewals) >= 5
    assert begun == [1], "the first one has not ended"


# the proof


def test_a_lock_is_the_same_for_whoever_holds_it_next_and_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for place in ("a", "a", "b"):
        lock = DataDirLock(tmp_path / place)
        names.append(lock.lock_id)
        lock.release()
    assert names[0] == names[1]
    assert len(set(names)) == 2
    assert names[0].startswith(platform.BOOT_ID.read_text().strip())
    monkeypatch.setattr(platform, "BOOT_ID", tmp_path / "absent")
    lock = DataDirLock(tmp_path / "a")
    assert not lock.lock_id, "of a machine that does not tell its boots apart nothing is known"
    lock.release()
