"""Contract of nodes, topics and streams, on both databases."""

import asyncio
from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NewTopic, TopicInfo
from anabranch.s3stream.errors import (
    AlreadyExists,
    CatalogError,
    NodeFenced,
    NotFound,
    OffsetOutOfRange,
    StreamFenced,
    StreamHeld,
    StreamNotFound,
)
from anabranch.s3stream.model import NodeIdentity, ObjectState, StreamOwner
from tests.support.catalog_node import LATER, NODE_ID, NOW, WAL_ID, MetadataNode, delete_topic, hand_over, span


async def test_everything_survives_a_restart(url: str) -> None:
    first = Catalog(url)
    await first.open(cluster="c")
    scene = await MetadataNode.started(first)
    (item,) = await scene.upload([span(scene.streams[0], 0, 10)])
    await first.close()

    again = Catalog(url)
    await again.open(cluster="c")
    scene.catalog = again
    assert [topic.name for topic in await again.list_topics()] == ["t"]
    assert await scene.bounds(scene.streams[0]) == [(0, 10)]
    assert (await scene.state(item))[0] is ObjectState.COMMITTED
    assert (await again.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)).epoch == scene.epoch + 1
    await again.close()


async def test_a_catalog_belongs_to_one_cluster(url: str, catalog: Catalog) -> None:
    await catalog.list_nodes()
    other = Catalog(url)
    with pytest.raises(CatalogError, match="belongs to cluster 'test', not to 'other'"):
        await other.open(cluster="other")
    await other.close()


async def test_two_processes_may_open_a_new_catalog_at_once(url: str) -> None:
    catalogs = [Catalog(url) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for catalog in catalogs:
            group.create_task(catalog.open(cluster="c"))
    for catalog in catalogs:
        assert list(await catalog.list_topics()) == []
        await catalog.close()


async def test_a_node_gets_a_higher_epoch_each_time(catalog: Catalog) -> None:
    first = await catalog.register_node(7, "a", 1, now_ms=100, lease_ms=50)
    second = await catalog.register_node(7, "b", 2, now_ms=200, lease_ms=50)
    assert (first.epoch, second.epoch) == (1, 2)
    (found,) = await catalog.list_nodes()
    assert (found.host, found.port, found.lease_until_ms) == ("b", 2, 250)

    await catalog.beat(NodeIdentity(7, 2), now_ms=300, lease_ms=50)
    assert (await catalog.list_nodes())[0].lease_until_ms == 350
    with pytest.raises(NodeFenced, match="node 7: epoch 1 is not the registered 2"):
        await catalog.beat(NodeIdentity(7, 1), now_ms=300, lease_ms=50)
    with pytest.raises(NodeFenced, match="node 8 is not registered"):
        await catalog.beat(NodeIdentity(8, 1), now_ms=300, lease_ms=50)


async def test_creating_a_topic_twice(catalog: Catalog) -> None:
    async def create(name: str, topic_id: bytes) -> None:
        await catalog.create_topic(name, topic_id, partitions=2, configs={"a": "1"}, leader=3, internal=True)

    await create("t", b"1" * 16)
    await create("t", b"1" * 16)
    (topic,) = await catalog.list_topics()
    assert (topic.name, topic.topic_id, topic.configs, topic.internal) == ("t", b"1" * 16, {"a": "1"}, True)
    assert [(p.index, p.leader, p.leader_epoch) for p in topic.partitions] == [(0, 3, 0), (1, 3, 0)]
    with pytest.raises(AlreadyExists, match="topic 't' exists"):
        await create("t", b"2" * 16)
    with pytest.raises(AlreadyExists, match="belongs to topic 't'"):
        await create("u", b"1" * 16)
    assert len(await catalog.list_topics()) == 1


async def test_topics_are_created_in_one_command(catalog: Catalog) -> None:
    await catalog.create_topic("old", b"o" * 16, partitions=1, configs={}, leader=3, internal=False)
    wanted = [
        NewTopic("b", b"b" * 16, 2, {"k": "v"}),
        NewTopic("old", b"x" * 16, 1, {}),
        NewTopic("a", b"a" * 16, 3, {}, internal=True),
        NewTopic("other", b"o" * 16, 1, {}),
        NewTopic("b", b"c" * 16, 1, {}),
    ]
    answers = await catalog.create_topics(wanted, leader=3)
    assert [str(each) if isinstance(each, AlreadyExists) else each.name for each in answers] == [
        "b",
        "topic 'old' exists",
        "a",
        f"topic id {(b'o' * 16).hex()} belongs to topic 'old'",
        "topic 'b' exists",
    ]
    listed = {topic.name: topic for topic in await catalog.list_topics()}
    assert listed.keys() == {"a", "b", "old"}
    assert [answers[2], answers[0]] == [listed["a"], listed["b"]]
    assert (listed["b"].topic_id, listed["b"].configs, listed["a"].internal) == (b"b" * 16, {"k": "v"}, True)
    assert [(p.index, p.leader, p.leader_epoch) for p in listed["a"].partitions] == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
    ids = [p.stream_id for topic in listed.values() for p in topic.partitions]
    assert len(set(ids)) == 6

    again = await catalog.create_topics(wanted, leader=4)
    assert [str(each) for each in again] == [str(each) for each in answers], "repeated, it changes nothing"
    assert {topic.name: topic for topic in await catalog.list_topics()} == listed
    assert list(await catalog.create_topics([], leader=3)) == []


async def test_of_topics_in_one_command_all_are_created_or_none(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="topic 'b' needs at least one partition, found 0"):
        await catalog.create_topics([NewTopic("a", b"a" * 16, 1, {}), NewTopic("b", b"b" * 16, 0, {})], leader=1)
    assert list(await catalog.list_topics()) == []


@pytest.mark.slow
async def test_thousands_of_topics_go_in_one_command(catalog: Catalog) -> None:
    wanted = [NewTopic(f"t{number}", number.to_bytes(16), 1, {}) for number in range(6_000)]
    created = await catalog.create_topics(wanted, leader=1)
    assert [topic.name for topic in created if isinstance(topic, TopicInfo)] == [topic.name for topic in wanted]
    await catalog.delete_topics([topic.topic_id for topic in wanted[1:]], now_ms=NOW, delete_after_ms=LATER)
    assert [topic.name for topic in await catalog.list_topics()] == ["t0"]
    assert len(await catalog.list_streams(after=0, limit=10)) == 1


async def test_topics_need_a_partition(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="at least one partition"):
        await catalog.create_topic("t", b"1" * 16, partitions=0, configs={}, leader=1, internal=False)


async def test_topics_are_listed_by_name_with_partitions_in_order(catalog: Catalog) -> None:
    for number, name in enumerate(("b", "a", "c")):
        await catalog.create_topic(name, bytes([number]) * 16, partitions=12, configs={}, leader=1, internal=False)
    listed = await catalog.list_topics()
    assert [topic.name for topic in listed] == ["a", "b", "c"]
    assert all([p.index for p in topic.partitions] == list(range(12)) for topic in listed)


async def test_adding_partitions(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog, partitions=2)
    grown = await catalog.add_partitions(b"t" * 16, 4, leader=5)
    assert grown == await catalog.add_partitions(b"t" * 16, 4, leader=6)
    assert [p.leader for p in grown.partitions] == [NODE_ID, NODE_ID, 5, 5]
    assert [p.stream_id for p in grown.partitions][:2] == scene.streams
    with pytest.raises(CatalogError, match="has 4 partitions already"):
        await catalog.add_partitions(b"t" * 16, 3, leader=1)
    with pytest.raises(NotFound, match=f"topic id {(b'x' * 16).hex()} does not exist"):
        await catalog.add_partitions(b"x" * 16, 3, leader=1)


async def test_altering_a_topic(catalog: Catalog) -> None:
    await MetadataNode.started(catalog)
    await catalog.alter_topic(b"t" * 16, lambda own: {"a": "1", "b": "2", **own})
    altered = await catalog.alter_topic(b"t" * 16, lambda own: {"b": own["b"] + "3"})
    assert altered.configs == {"b": "23"}
    assert (await catalog.list_topics())[0].configs == {"b": "23"}
    with pytest.raises(NotFound):
        await catalog.alter_topic(b"x" * 16, lambda own: own)


async def test_a_topic_made_anew_under_the_name_is_another(catalog: Catalog) -> None:
    """A repeated command, the answer to which was lost, leaves it alone."""
    scene = await MetadataNode.started(catalog)
    await catalog.delete_topics([scene.topic.topic_id], now_ms=NOW, delete_after_ms=LATER)
    await catalog.create_topic("t", b"n" * 16, partitions=1, configs={"a": "1"}, leader=NODE_ID, internal=False)
    with pytest.raises(NotFound):
        await catalog.alter_topic(scene.topic.topic_id, lambda own: own | {"a": "2"})
    with pytest.raises(NotFound):
        await catalog.add_partitions(scene.topic.topic_id, 9, leader=NODE_ID)
    (found,) = await catalog.list_topics()
    assert (found.topic_id, found.configs, len(found.partitions)) == (b"n" * 16, {"a": "1"}, 1)


async def test_configs_are_listed_where_there_are_any(catalog: Catalog) -> None:
    await MetadataNode.started(catalog)
    await catalog.create_topic("u", b"u" * 16, partitions=1, configs={"a": "1"}, leader=NODE_ID, internal=False)
    assert await catalog.list_topic_configs() == {b"u" * 16: {"a": "1"}}
    assert await catalog.list_topic_configs([b"t" * 16]) == {}
    assert await catalog.list_topic_configs([b"u" * 16]) == {b"u" * 16: {"a": "1"}}
    await catalog.alter_topic(b"t" * 16, lambda own: own | {"b": "2"})
    await catalog.alter_topic(b"u" * 16, lambda _: {})
    assert await catalog.list_topic_configs() == {b"t" * 16: {"b": "2"}}


async def test_opening_streams_moves_both_epochs_and_the_leader(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    a, b, _ = scene.streams
    other = await catalog.register_node(2, "h", 1, now_ms=NOW, lease_ms=1)
    await hand_over(catalog, [a, b], leader=2)
    opened = await catalog.open_streams([b, a], StreamOwner(2, other.epoch, WAL_ID))
    assert [(o.info.stream_id, o.info.epoch, o.leader_epoch, o.info.node_id) for o in opened] == [
        (b, 2, 2, 2),
        (a, 2, 2, 2),
    ]
    (topic,) = await catalog.list_topics()
    assert [(p.leader, p.leader_epoch) for p in topic.partitions] == [(2, 2), (2, 2), (NODE_ID, 1)]
    (again,) = await catalog.open_streams([a], StreamOwner(2, other.epoch, WAL_ID))
    assert again.info.epoch == 3


async def test_a_stream_whose_records_may_be_in_another_log_is_not_opened(catalog: Catalog) -> None:
    """They were acknowledged: whoever assigned their offsets again would lose them."""
    scene = await MetadataNode.started(catalog)
    (a, b, c), own = scene.streams, StreamOwner(NODE_ID, scene.epoch, WAL_ID)
    await scene.upload([span(a, 0, 5)])
    other = await catalog.register_node(2, "h", 1, now_ms=NOW, lease_ms=1)
    second = StreamOwner(2, other.epoch, "b2")
    with pytest.raises(StreamHeld, match=f"offset 5 on may be in log {WAL_ID} of node 1"):
        await catalog.open_streams([a], second)
    with pytest.raises(StreamHeld, match=f"in log {WAL_ID} of node 1"):
        await catalog.open_streams([a], replace(own, wal_id="a2"))
    await hand_over(catalog, [a], leader=2)
    with pytest.raises(StreamHeld, match=r"stream 2 \(1 of 2 refused\): records from offset 0"):
        await catalog.open_streams([a, b], second)
    await hand_over(catalog, [c], leader=NODE_ID)
    with pytest.raises(StreamHeld, match="another node leads it, not node 2"):
        await catalog.open_streams([c], second)
    infos = await catalog.get_streams([a, b, c])
    assert {(info.epoch, info.node_id) for info in infos.values()} == {(1, -1), (1, NODE_ID)}, "nothing has changed"
    assert [each.info.wal_id for each in await catalog.open_streams([a], second)] == ["b2"]
    assert [each.info.wal_id for each in await catalog.open_streams([b, c], own)] == [WAL_ID] * 2


async def test_opening_refuses_stale_nodes_and_unknown_streams(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)
    with pytest.raises(NodeFenced):
        await catalog.open_streams([scene.streams[0]], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    with pytest.raises(StreamNotFound, match="stream 99 does not exist"):
        await catalog.open_streams([scene.streams[0], 99], StreamOwner(NODE_ID, scene.epoch + 1, WAL_ID))
    assert (await catalog.get_streams(scene.streams))[scene.streams[0]].epoch == 1, "a refused command changes nothing"


async def test_deleted_streams_are_gone_and_their_ids_are_not_reused(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    await delete_topic(catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    assert await catalog.get_streams(scene.streams) == {}
    again = await catalog.create_topic("t", b"n" * 16, partitions=3, configs={}, leader=NODE_ID, internal=False)
    assert min(p.stream_id for p in again.partitions) > max(scene.streams)


async def test_topics_are_deleted_in_one_command(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    others = await catalog.create_topics(
        [NewTopic("u", b"u" * 16, 1, {}), NewTopic("v", b"v" * 16, 1, {})], leader=NODE_ID
    )
    u, v = (topic.partitions[0].stream_id for topic in others if isinstance(topic, TopicInfo))
    await catalog.open_streams([u, v], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    both, kept = await scene.upload(
        [span(scene.streams[0], 0, 5), span(u, 0, 5)], [span(scene.streams[1], 0, 5), span(v, 0, 5)]
    )
    for _ in range(2):  # repeated, it succeeds again
        await catalog.delete_topics([b"t" * 16, b"n" * 16, b"u" * 16], now_ms=NOW, delete_after_ms=LATER)
        assert [topic.name for topic in await catalog.list_topics()] == ["v"]
        assert (await catalog.get_streams([*scene.streams, u, v])).keys() == {v}
        assert await scene.state(both) == (ObjectState.DESTROYED, LATER)
        assert await scene.state(kept) == (ObjectState.COMMITTED, 0)
    await catalog.delete_topics([], now_ms=NOW, delete_after_ms=LATER)
    with pytest.raises(CatalogError, match="a deadline is a time at or after now"):
        await catalog.delete_topics([b"v" * 16], now_ms=1_700_000_000_000, delete_after_ms=60_000)


async def test_a_deletion_that_is_repeated_leaves_a_new_topic_of_the_name_alone(catalog: Catalog) -> None:
    """The answer was lost, and another node has recreated the topic before the command is repeated."""
    for topic_id in (b"1" * 16, b"2" * 16):
        await catalog.create_topic("t", topic_id, partitions=1, configs={}, leader=1, internal=False)
        await catalog.delete_topics([b"1" * 16], now_ms=NOW, delete_after_ms=LATER)
    assert [topic.topic_id for topic in await catalog.list_topics()] == [b"2" * 16]


async def test_deleting_a_topic_destroys_only_what_nobody_else_needs(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    other = await catalog.create_topic("u", b"u" * 16, partitions=1, configs={}, leader=NODE_ID, internal=False)
    (kept,) = await catalog.open_streams([other.partitions[0].stream_id], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    alone, shared = await scene.upload(
        [span(scene.streams[0], 0, 5)], [span(scene.streams[1], 0, 5), span(kept.info.stream_id, 0, 5)]
    )
    await delete_topic(catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    assert await scene.state(alone) == (ObjectState.DESTROYED, LATER)
    assert await scene.state(shared) == (ObjectState.COMMITTED, 0)
    (left,) = (await catalog.object_ranges([shared.object_id]))[shared.object_id]
    assert left.range.stream_id == kept.info.stream_id


async def test_trim_moves_forward_only_and_destroys_whole_objects(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    stream = scene.streams[0]
    first, second = await scene.upload([span(stream, 0, 10)], [span(stream, 10, 20)])

    async def trim(new_start: int, epoch: int = 1) -> int:
        info = await catalog.trim_stream(stream, epoch, new_start, now_ms=NOW, delete_after_ms=LATER)
        return info.start_offset

    assert await trim(9) == 9
    assert await scene.bounds(stream) == [(0, 10), (10, 20)], "a range is dead only when all of it is"
    assert await trim(15) == 15
    assert await trim(12) == 15
    assert await scene.bounds(stream) == [(10, 20)]
    assert await scene.state(first) == (ObjectState.DESTROYED, LATER)
    assert (await scene.state(second))[0] is ObjectState.COMMITTED
    with pytest.raises(OffsetOutOfRange, match="past the end 20"):
        await trim(21)
    with pytest.raises(StreamFenced, match="epoch 0 is not the stream's 1"):
        await trim(20, epoch=0)
    assert await trim(20) == 20
    assert (await scene.state(second))[0] is ObjectState.DESTROYED
    with pytest.raises(StreamNotFound):
        await catalog.trim_stream(99, 1, 0, now_ms=NOW, delete_after_ms=LATER)


async def test_a_trim_that_was_asked_for_is_noted_also_behind_the_start(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    stream = scene.streams[0]
    await scene.upload([span(stream, 0, 20)])
    found = []
    for start, asked in ((9, False), (5, True), (3, True), (12, True), (15, False)):
        info = await catalog.trim_stream(stream, 1, start, now_ms=NOW, delete_after_ms=LATER, asked=asked)
        found.append((info.start_offset, info.deleted_offset))
    assert found == [(9, 0), (9, 5), (9, 5), (12, 12), (15, 12)]


async def test_a_duration_in_place_of_a_deadline_is_refused(catalog: Catalog) -> None:
    await MetadataNode.started(catalog)
    with pytest.raises(CatalogError, match="a deadline is a time at or after now"):
        await delete_topic(catalog, "t", now_ms=1_700_000_000_000, delete_after_ms=60_000)


async def test_streams_are_listed_in_pages(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog, partitions=5)
    first = await catalog.list_streams(after=0, limit=3)
    rest = await catalog.list_streams(after=first[-1].stream_id, limit=3)
    assert [info.stream_id for info in (*first, *rest)] == scene.streams


@pytest.mark.slow
async def test_many_streams_go_in_one_command(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog, partitions=12_000)
    found = await catalog.get_streams(scene.streams)
    assert len(found) == 12_000
    assert {info.epoch for info in found.values()} == {1}


async def test_producer_ids_are_given_once(catalog: Catalog) -> None:
    assert await catalog.next_producer_ids(10) == 0
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(catalog.next_producer_ids(5)) for _ in range(6)]
    assert sorted(task.result() for task in tasks) == [10, 15, 20, 25, 30, 35]
