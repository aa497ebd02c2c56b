"""The registration of a node that starts, and the address that it registers for others."""

import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.broker.cluster.membership.join import NO_ADDRESS, internal_address, join, why_unreachable
from anabranch.broker.cluster.membership.start_log import FoundLog, StartLog
from anabranch.broker.node.settings.sources import load
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeHolder, NodeInfo, NodeListener, WalState
from anabranch.s3stream.errors import NodeFenced
from anabranch.s3stream.model import NodeIdentity, StreamOwner
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.owner import Owner
from tests.support.catalog_node import NOW

BOUND = cast("socket.socket", SimpleNamespace(getsockname=lambda: ("192.0.2.9", 7000)))


@pytest.mark.parametrize(
    ("values", "host"),
    [
        ({}, "127.0.0.1"),
        ({"listener.host": "192.0.2.1", "catalog.url": ""}, "127.0.0.1"),
        ({"listener.host": "192.0.2.1", "cluster.internal_port": 7000, "catalog.url": ""}, "192.0.2.1"),
        ({"listener.host": "192.0.2.1"}, "192.0.2.1"),
        ({"listener.advertised_host": "for.clients"}, "for.clients"),
        ({"listener.advertised_host": "for.clients", "cluster.internal_host": "192.0.2.2"}, "192.0.2.2"),
        ({"cluster.internal_host": "0.0.0.0", "cluster.internal_advertised_host": "for.nodes"}, "for.nodes"),
        ({"listener.host": "0.0.0.0"}, socket.gethostname()),
        ({"cluster.internal_host": "::"}, socket.gethostname()),
    ],
)
def test_other_nodes_get_the_nearest_address_that_is_set(values: dict[str, Any], host: str) -> None:
    on_postgresql = {"catalog.url": "postgresql://h/d"}
    assert internal_address(load(on_postgresql | values, {}), BOUND) == (host, 7000)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (("127.0.0.1", "127.0.0.1"), ("b", "b"), "node 1 runs on another machine, h1, and would look for this node"),
        (("a", "::1"), ("b", "b"), "there, at ::1: set --host"),
        (("localhost", "a"), ("b", "b"), "there, at localhost: set --host"),
        (("a", "a"), ("127.0.0.1", "127.0.0.1"), "node 1 on h1 tells all to look for it at 127.0.0.1"),
        (("a", "a"), ("b", "127.0.0.1"), "start it anew with --host and --advertised-host"),
        (("a", "a"), ("b", "b"), ""),
    ],
)
def test_an_address_that_means_another_machine_everywhere_is_refused(
    own: tuple[str, str], other: tuple[str, str], expected: str
) -> None:
    """The hosts of either node are those for clients and for nodes."""
    listeners = [NodeListener("PLAINTEXT", own[0], 9092)]
    known = NodeInfo(
        1, 1, other[0], 9092, 1 << 40, holder=NodeHolder("h1", 1, ""), internal_host=other[1], internal_port=1
    )
    found = why_unreachable([known], "h2", listeners, (own[1], 7000))
    assert expected in found
    assert bool(found) == bool(expected)
    assert not why_unreachable([known], "h1", listeners, (own[1], 7000)), "on one machine"


DEAD, OTHER = 1, 2
LOG = "0" * 15 + "1"
LISTENERS = (NodeListener("PLAINTEXT", "h", 9092),)


class StartingLog:
    """A log in the place of the starting node's, which notes how often it is looked for, and for which epochs."""

    location, problem = "/wal", ""
    found = FoundLog(LOG, 1 << 40, may_hold_records=False)

    def __init__(self) -> None:
        self.looks = 1
        self.epochs: list[int] = []

    async def attach(self, stores: Mapping[str, ObjectStore]) -> None:
        self.looks += 1

    async def check_claim(self, owner: Owner, catalog: Catalog) -> None:
        self.epochs.append(owner.node_epoch)


class OvertakenCatalog(Catalog):
    """A catalog in which something happens just before a registration, once."""

    async def register_node(self, *args: Any, **options: Any) -> NodeInfo:
        happens, self.happens = self.happens, None
        if happens is not None:
            await happens()
        return await super().register_node(*args, **options)

    happens: Any = None


@pytest.fixture
async def overtaken(tmp_path: Path) -> AsyncIterator[OvertakenCatalog]:
    catalog = OvertakenCatalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    await catalog.open(cluster="c")
    yield catalog
    await catalog.close()


async def join_as(catalog: Catalog, log: StartingLog) -> NodeInfo:
    settings = load({"node.node_id": DEAD}, {})
    return await join(
        catalog,
        {},
        cast("StartLog", log),
        settings,
        "boot:1:1",
        listeners=LISTENERS,
        internal=NO_ADDRESS,
        now_ms=lambda: NOW,
    )


async def register(catalog: Catalog, node_id: int) -> NodeInfo:
    holder = NodeHolder("here", node_id, f"boot:1:{node_id}")
    return await catalog.register_node(node_id, "h", 9092, now_ms=NOW, lease_ms=10_000, holder=holder)


async def test_a_node_that_is_taken_over_while_it_starts_waits_for_the_recovery_and_joins(
    overtaken: OvertakenCatalog,
) -> None:
    dead, other = await register(overtaken, DEAD), await register(overtaken, OTHER)
    owner = StreamOwner(DEAD, dead.epoch, LOG)
    await overtaken.open_wal(LOG, node=NodeIdentity(DEAD, dead.epoch), location="/wal", now_ms=NOW)
    topic = await overtaken.create_topic("t", bytes(16), partitions=1, configs={}, leader=DEAD, internal=False)
    await overtaken.open_streams([topic.partitions[0].stream_id], owner)
    pulse = await overtaken.beat(NodeIdentity(OTHER, other.epoch), now_ms=NOW, lease_ms=10_000)

    async def taken_over() -> None:
        recoverer = other.identity
        epoch = await overtaken.take_over(
            DEAD, pulse.beats[DEAD], wal_id=LOG, recoverer=recoverer, leaders=[OTHER], now_ms=NOW
        )
        await overtaken.release_recovered(NodeIdentity(DEAD, epoch), LOG, kept=(), now_ms=NOW)

    log = StartingLog()
    overtaken.happens = taken_over
    info = await join_as(overtaken, log)
    assert (info.epoch, log.looks, log.epochs) == (dead.epoch + 2, 2, [dead.epoch + 1, dead.epoch + 2])
    (wal,) = await overtaken.list_wals(DEAD)
    assert wal.state is WalState.DRAINED


async def test_a_node_whose_id_another_process_takes_while_it_starts_does_not_join(overtaken: OvertakenCatalog) -> None:
    async def registered() -> None:
        await register(overtaken, DEAD)

    overtaken.happens = registered
    with pytest.raises(NodeFenced, match="registered by another process"):
        await join_as(overtaken, StartingLog())
