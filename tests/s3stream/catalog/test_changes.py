"""Other nodes read what has changed, and hear of it soon; new partitions are placed over nodes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.placement import place_successors
from anabranch.s3stream.catalog.values import AclRow, CatalogChanges, MoveReason, NewTopic, TokenRow, TopicInfo
from anabranch.s3stream.errors import NodeFenced
from anabranch.s3stream.model import NodeIdentity, StreamOwner
from tests.support.catalog_node import LATER, NODE_ID, NOW, WAL_ID, MetadataNode, opened_catalog, span, topic_id_of

Change = Callable[[MetadataNode], Awaitable[object]]


async def create(scene: MetadataNode) -> None:
    await scene.create_topic("new", 2)


async def grow(scene: MetadataNode) -> None:
    await scene.catalog.add_partitions(scene.topic.topic_id, 5, leader=NODE_ID)


async def alter(scene: MetadataNode) -> None:
    await scene.catalog.alter_topic(scene.topic.topic_id, lambda own: own | {"a": "1"})


async def open_again(scene: MetadataNode) -> None:
    await scene.open_streams(scene.streams[:1])


async def stop(scene: MetadataNode) -> None:
    await scene.catalog.open_wal(WAL_ID, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    await scene.catalog.stop_node(NodeIdentity(NODE_ID, scene.epoch), drained_wal=WAL_ID, now_ms=NOW)


async def delete(scene: MetadataNode) -> None:
    await scene.catalog.delete_topics([scene.topic.topic_id], now_ms=NOW, delete_after_ms=LATER)


async def detach(scene: MetadataNode) -> None:
    await scene.catalog.detach_topic(
        "t",
        scene.topic.topic_id,
        ends=dict.fromkeys(scene.streams, 0),
        node=NodeIdentity(NODE_ID, scene.epoch),
        now_ms=NOW,
    )


async def attach(scene: MetadataNode) -> None:
    await detach(scene)
    await scene.catalog.attach_topic(scene.topic.topic_id, "back", node=NodeIdentity(NODE_ID, scene.epoch))


async def clone(scene: MetadataNode) -> None:
    await scene.catalog.clone_topic(
        "t",
        "copy",
        topic_id_of("copy"),
        ends=dict.fromkeys(scene.streams, 0),
        node=NodeIdentity(NODE_ID, scene.epoch),
    )


async def order(scene: MetadataNode) -> None:
    await register(scene)
    await scene.catalog.request_moves({scene.streams[0]: 2}, reason=MoveReason.OPERATOR, now_ms=NOW)


async def set_config(scene: MetadataNode) -> None:
    await scene.catalog.alter_config("group", "g", set_configs={"a": "1"}, unset=())


async def register(scene: MetadataNode) -> None:
    await scene.catalog.register_node(2, "b", 2, now_ms=NOW, lease_ms=1, rack="r", internal=("i", 3))


async def read_changes(scene: MetadataNode, seen: int) -> CatalogChanges:
    found = await scene.catalog.read_changes(seen)
    assert found is not None
    assert await scene.catalog.read_changes(found.version) is None
    return found


@pytest.mark.parametrize("change", [create, grow, alter, open_again, stop, attach, clone, order])
async def test_a_changed_topic_is_read_by_other_nodes(catalog: Catalog, change: Change) -> None:
    scene = await MetadataNode.started(catalog)
    await scene.create_topic("other", 1)
    seen = await catalog.last_change()
    before = {topic.name: topic for topic in await catalog.list_topics()}
    await change(scene)
    after = {topic.name: topic for topic in await catalog.list_topics()}
    changed = {name: topic for name, topic in after.items() if topic != before.get(name)}
    assert changed
    found = await read_changes(scene, seen)
    assert {topic.name: topic for topic in found.topics} == changed
    assert not found.configs_changed


@pytest.mark.parametrize("change", [delete, detach])
async def test_a_topic_that_is_gone_is_not_among_all_topics(catalog: Catalog, change: Change) -> None:
    scene = await MetadataNode.started(catalog)
    other = await scene.create_topic("other", 1)
    seen = await catalog.last_change()
    await change(scene)
    found = await read_changes(scene, seen)
    assert found.topics == ()
    assert found.topic_ids == {other.topic_id}
    assert list(found.detached_ids) == ([scene.topic.topic_id] if change is detach else [])


async def test_what_no_other_node_must_see_is_no_change(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    seen = await catalog.last_change()
    await scene.upload([span(scene.streams[0], 0, 5)])
    await scene.trim(scene.streams[0], 5)
    await catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=1)
    assert await catalog.read_changes(seen) is None


async def test_acls_are_read_again_when_they_change(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    found = await read_changes(scene, 0)
    assert not found.acls_changed
    await catalog.alter_acls([AclRow(2, "t", 3, "User:a", "*", 3, 3)], [])
    found = await read_changes(scene, found.version)
    assert (found.acls_changed, found.configs_changed, found.topics, found.topic_ids) == (True, False, (), None)
    await set_config(scene)
    assert not (await read_changes(scene, found.version)).acls_changed


async def test_the_secret_is_read_again_when_it_is_replaced(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    assert await catalog.current_secret() == b""
    await catalog.secret(b"a" * 32)
    found = await read_changes(scene, 0)
    assert not found.secret_changed
    await catalog.replace_secret(b"b" * 32)
    found = await read_changes(scene, found.version)
    assert (found.secret_changed, found.acls_changed, found.tokens_changed, found.topics) == (True, False, False, ())
    assert await catalog.current_secret() == await catalog.secret(b"c" * 32) == b"b" * 32
    await set_config(scene)
    assert not (await read_changes(scene, found.version)).secret_changed


async def test_tokens_are_read_again_when_they_change(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    found = await read_changes(scene, 0)
    assert not found.tokens_changed
    await catalog.create_token(TokenRow("id", "User:a", "User:a", (), 1000, 2000, 3000))
    found = await read_changes(scene, found.version)
    assert (found.tokens_changed, found.acls_changed, found.configs_changed, found.topics) == (True, False, False, ())
    await set_config(scene)
    assert not (await read_changes(scene, found.version)).tokens_changed


async def test_configs_and_nodes_are_read_again_when_they_change(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    seen = await catalog.last_change()
    await set_config(scene)
    found = await read_changes(scene, seen)
    assert (found.configs_changed, found.topics, found.topic_ids) == (True, (), None)
    await register(scene)
    found = await read_changes(scene, found.version)
    assert not found.configs_changed
    assert [(node.node_id, node.rack, node.internal_host, node.internal_port) for node in found.nodes] == [
        (NODE_ID, "", "", 0),
        (2, "r", "i", 3),
    ]


async def test_a_beat_returns_those_of_all_nodes(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    await register(scene)
    pulse = second = await catalog.beat(NodeIdentity(2, 1), now_ms=NOW, lease_ms=1)
    for number in (1, 2):
        pulse = await catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=1)
        assert pulse.beats[2].beat == 1
        assert pulse.beats[2].has_lease
        assert pulse.beats[NODE_ID].beat in {number - 1, number}, "of before or after"
    assert second.version == pulse.version == await catalog.last_change()
    await catalog.stop_node(NodeIdentity(2, 1), drained_wal=None, now_ms=NOW)
    pulse = await catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=1)
    assert not pulse.beats[2].has_lease
    await scene.register()
    with pytest.raises(NodeFenced):
        await catalog.beat(NodeIdentity(NODE_ID, scene.epoch - 1), now_ms=NOW, lease_ms=1)


async def test_a_node_hears_of_a_change_that_another_connection_makes(catalog: Catalog, url: str) -> None:
    scene = await MetadataNode.started(catalog)
    async with opened_catalog(url) as other:
        seen = await other.last_change()

        async def hear() -> CatalogChanges:
            while (found := await other.read_changes(seen)) is None:
                await other.wait_for_change(0.01)
            return found

        hearing = asyncio.create_task(hear())
        await create(scene)
        assert [topic.name for topic in (await hearing).topics] == ["new"]


async def test_a_notification_that_came_before_the_wait_ends_it(catalog: Catalog, url: str) -> None:
    """It was committed after the last read of the changes."""
    scene = await MetadataNode.started(catalog)
    async with opened_catalog(url) as other:
        await other.wait_for_change(0.01)  # the connection is there from now on
        async with asyncio.timeout(60):
            for name in ("a", "b"):
                await scene.create_topic(name, 1)
                await other.wait_for_change(0.01)


async def test_all_nodes_have_one_secret(catalog: Catalog) -> None:
    await MetadataNode.started(catalog)
    assert await catalog.secret(b"a" * 32) == await catalog.secret(b"b" * 32) == b"a" * 32


# placement


@pytest.mark.parametrize(
    ("count", "nodes", "led", "leaders"),
    [
        (3, [1], {}, [1, 1, 1]),
        (4, [3, 1, 2], {}, [1, 2, 3, 1]),
        (3, [1, 2], {1: 10, 2: 8}, [2, 2, 1]),
        (2, [1, 2], {9: 5}, [1, 2]),
        (0, [1], {}, []),
    ],
)
def test_new_partitions_go_to_those_who_lead_the_fewest(
    count: int, nodes: list[int], led: dict[int, int], leaders: list[int]
) -> None:
    assert place_successors([()] * count, nodes, led) == leaders


def leaders_of(topic: TopicInfo) -> list[int]:
    return [partition.leader for partition in topic.partitions]


async def test_topics_are_placed_over_the_nodes_unless_their_leaders_are_named(catalog: Catalog) -> None:
    await MetadataNode.started(catalog)  # node 1 leads three partitions
    for node_id in (2, 3):
        await catalog.register_node(node_id, "other", 9092, now_ms=NOW, lease_ms=10_000)
    wanted = [NewTopic("a", topic_id_of("a"), 4, {}), NewTopic("b", topic_id_of("b"), 2, {}, leaders=[2, 1])]
    created = await catalog.create_topics(wanted, leader=NODE_ID, others=[2, 3])
    a, b = (topic for topic in created if isinstance(topic, TopicInfo))
    assert leaders_of(a) == [2, 3, 1, 2], "over all nodes, though node 1 leads the most"
    assert leaders_of(b) == [2, 1]
    grown = await catalog.add_partitions(topic_id_of("b"), 4, leader=NODE_ID, others=[2, 3])
    assert leaders_of(grown) == [2, 1, 3, 3]
    grown = await catalog.add_partitions(topic_id_of("b"), 5, leader=NODE_ID, others=[2, 3], leaders=[2])
    assert leaders_of(grown) == [2, 1, 3, 3, 2]


async def test_only_its_leader_opens_a_stream(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    (created,) = await catalog.create_topics([NewTopic("a", topic_id_of("a"), 2, {}, leaders=[1, 2])], leader=1)
    assert isinstance(created, TopicInfo)
    first, second = (partition.stream_id for partition in created.partitions)
    await catalog.open_streams([first], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    (found,) = [topic for topic in await catalog.list_topics() if topic.name == "a"]
    assert [partition.owner for partition in found.partitions] == [NODE_ID, -1]
    assert second not in scene.stream_epochs
