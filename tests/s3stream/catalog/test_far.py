"""Round trips of the catalog's commands on PostgreSQL: a catalog may be 100 ms away, and each trip takes that long."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import (
    MoveReason,
    NewTopic,
    OpenStream,
    StreamTransfer,
    Takeover,
    UploadCommit,
)
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectKind, StreamOwner
from tests.support.catalog_node import DEADLINE, HOUR_MS, NOW, span, topic_id_of
from tests.support.far_postgres import FarServer, far_server
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.server

MANY = 40
FROM, TO = 1, 2


@dataclass
class Scene:
    """Two nodes; the first has the streams of a topic open."""

    catalog: Catalog
    far: FarServer
    owners: dict[int, StreamOwner] = field(default_factory=dict)
    opened: Sequence[OpenStream] = ()

    async def start(self) -> None:
        for node_id in (FROM, TO):
            info = await self.catalog.register_node(node_id, "h", 9092, now_ms=NOW, lease_ms=HOUR_MS)
            owner = StreamOwner(node_id, info.epoch, f"{node_id:016x}")
            await self.catalog.open_wal(
                owner.wal_id, node=owner.identity, location="/wal", takeover=Takeover.SHARED, now_ms=NOW
            )
            self.owners[node_id] = owner
        await self.catalog.create_topics([self.topic("t", MANY)], leader=FROM)
        self.opened = await self.catalog.open_streams(await self.ids(), self.owners[FROM])
        await self.catalog.beat(self.owners[FROM].identity, now_ms=NOW, lease_ms=HOUR_MS)  # has a connection now
        await self.catalog.list_topics()
        await self.catalog.observe_node(FROM)

    def topic(self, name: str, partitions: int = 3) -> NewTopic:
        return NewTopic(name, topic_id_of(name), partitions, {}, internal=False)

    async def ids(self) -> list[int]:
        (topic,) = [each for each in await self.catalog.list_topics() if each.name == "t"]
        return [each.stream_id for each in topic.partitions]

    async def order(self, count: int) -> None:
        wanted = {each.info.stream_id: TO for each in self.opened[:count]}
        await self.catalog.request_moves(wanted, reason=MoveReason.DRAIN, now_ms=NOW)

    async def count(self, command: Awaitable[object]) -> int:
        before = self.far.round_trips
        await command
        return self.far.round_trips - before


@pytest.fixture
async def scene(postgres: PostgresServer, schema: str) -> AsyncIterator[Scene]:
    async with far_server(postgres.new_database(template=schema)) as far:
        catalog = Catalog(far.url)
        await catalog.open(cluster="test")
        scene = Scene(catalog, far)
        await scene.start()
        yield scene
        await catalog.close()


Command = Callable[[Scene, int], Awaitable[Awaitable[object]]]


async def create(scene: Scene, count: int) -> Awaitable[object]:
    wanted = [scene.topic(f"new{index}") for index in range(count)]
    return scene.catalog.create_topics(wanted, leader=FROM, others=[TO])


async def open_again(scene: Scene, count: int) -> Awaitable[object]:
    return scene.catalog.open_streams([each.info.stream_id for each in scene.opened[:count]], scene.owners[FROM])


async def order(scene: Scene, count: int) -> Awaitable[object]:
    await scene.catalog.drain_node(FROM, draining=True)
    return scene.order(count)


async def transfer(scene: Scene, count: int) -> Awaitable[object]:
    await scene.catalog.drain_node(FROM, draining=True)
    await scene.order(count)
    return scene.catalog.transfer_streams(
        [
            StreamTransfer(
                each.info.stream_id, each.info.epoch, each.leader_epoch, 0, scene.owners[FROM], scene.owners[TO]
            )
            for each in scene.opened[:count]
        ]
    )


async def follow(scene: Scene, count: int) -> Awaitable[object]:
    seen = await scene.catalog.last_change()
    await (await transfer(scene, count))
    return scene.catalog.read_changes(seen)


async def commit_upload(scene: Scene, count: int) -> Awaitable[object]:
    node = scene.owners[FROM].identity
    (object_id,) = await scene.catalog.prepare_objects(
        1, node=node, writer_id="w", store="main", now_ms=NOW, deadline_ms=DEADLINE
    )
    ids = [each.info.stream_id for each in scene.opened[:count]]
    written = NewObject(
        object_id=object_id, kind=ObjectKind.SSO, size_bytes=99, ranges=[span(each, 0, 5) for each in ids]
    )
    return scene.catalog.commit_upload(UploadCommit(node, [written], dict.fromkeys(ids, 1), {}, NOW))


async def prepare(scene: Scene, count: int) -> Awaitable[object]:
    node = scene.owners[FROM].identity
    return scene.catalog.prepare_objects(
        count, node=node, writer_id="w", store="main", now_ms=NOW, deadline_ms=DEADLINE
    )


async def take_over(scene: Scene, _: int) -> Awaitable[object]:
    found = await scene.catalog.observe_node(FROM)
    assert found is not None
    return scene.catalog.take_over(
        FROM,
        found[1],
        wal_id=scene.owners[FROM].wal_id,
        recoverer=scene.owners[TO].identity,
        leaders=[TO],
        now_ms=NOW,
    )


async def release(scene: Scene, _: int) -> Awaitable[object]:
    await (await take_over(scene, 0))
    dead = NodeIdentity(FROM, scene.owners[FROM].node_epoch + 1)
    return scene.catalog.release_recovered(dead, scene.owners[FROM].wal_id, kept=(), now_ms=NOW)


async def beat(scene: Scene, _: int) -> Awaitable[object]:
    return scene.catalog.beat(scene.owners[FROM].identity, now_ms=NOW, lease_ms=HOUR_MS)


async def find_ranges(scene: Scene, _: int) -> Awaitable[object]:
    return scene.catalog.find_ranges(scene.opened[0].info.stream_id, 0, 5, limit=1)


async def find_time(scene: Scene, _: int) -> Awaitable[object]:
    return scene.catalog.find_time(scene.opened[0].info.stream_id, 0)


@pytest.mark.parametrize(
    ("command", "trips"),
    [
        (create, 10),
        (open_again, 5),
        (order, 8),
        (transfer, 6),
        (follow, 5),
        (prepare, 5),
        (commit_upload, 11),
        (take_over, 16),
        (release, 7),
        (beat, 1),
        (find_ranges, 1),
        (find_time, 1),
    ],
)
async def test_a_command_on_many_rows_takes_few_round_trips(scene: Scene, command: Command, trips: int) -> None:
    assert await scene.count(await command(scene, MANY)) == trips
