"""Detach, attach and clone: their effect on topics in the catalog, and on objects that several streams refer to."""

from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import CompactionCommit, TopicInfo
from anabranch.s3stream.errors import AlreadyExists, CatalogError, EndMoved, NodeFenced, NotFound, StreamFenced
from anabranch.s3stream.model import NodeIdentity, ObjectKind, ObjectState, StreamOwner
from tests.support.catalog_node import (
    LATER,
    NODE_ID,
    NOW,
    WAL_ID,
    MetadataNode,
    bounds_of,
    delete_topic,
    hand_over,
    span,
)

TOPIC_ID = b"t" * 16
CLONE_ID = b"c" * 16


@pytest.fixture
async def scene(catalog: Catalog) -> MetadataNode:
    return await MetadataNode.started(catalog)


async def ends(scene: MetadataNode) -> dict[int, int]:
    return {key: info.end_offset for key, info in (await scene.catalog.get_streams(scene.streams)).items()}


async def clone(scene: MetadataNode, new_name: str = "u", topic_id: bytes = CLONE_ID) -> TopicInfo:
    return await scene.catalog.clone_topic(
        "t", new_name, topic_id, ends=await ends(scene), node=NodeIdentity(NODE_ID, scene.epoch)
    )


async def clone_streams(scene: MetadataNode) -> list[int]:
    return [partition.stream_id for partition in (await clone(scene)).partitions]


async def detach(scene: MetadataNode) -> None:
    await scene.catalog.detach_topic(
        "t", TOPIC_ID, ends=await ends(scene), node=NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW
    )


async def attach(scene: MetadataNode, name: str = "t") -> TopicInfo:
    return await scene.catalog.attach_topic(TOPIC_ID, name, node=NodeIdentity(NODE_ID, scene.epoch))


# detach and attach


async def test_a_detached_topic_is_gone_and_its_data_stays(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    (item,) = await scene.upload([span(a, 0, 5), span(b, 0, 5)])
    await scene.catalog.alter_topic(scene.topic.topic_id, lambda own: own | {"retention.ms": "5"})
    await detach(scene)
    assert list(await scene.catalog.list_topics()) == []
    (found,) = await scene.catalog.list_detached()
    assert (found.name, found.topic_id, found.configs) == ("t", TOPIC_ID, {"retention.ms": "5"})
    assert (found.stream_ids, found.internal, found.detached_ms) == (scene.streams, False, NOW)
    assert await scene.state(item) == (ObjectState.COMMITTED, 0)
    assert await scene.bounds(a) == [(0, 5)]
    await detach(scene)
    assert len(await scene.catalog.list_detached()) == 1


async def test_an_attached_topic_is_as_it_was(scene: MetadataNode) -> None:
    a = scene.streams[0]
    await scene.upload([span(a, 0, 5)])
    before = await scene.catalog.alter_topic(scene.topic.topic_id, lambda own: own | {"retention.ms": "5"})
    await detach(scene)
    attached = await attach(scene)
    assert {partition.owner for partition in attached.partitions} == {-1}
    kept = [replace(partition, owner=NODE_ID) for partition in attached.partitions]
    assert replace(attached, partitions=kept) == before
    assert await attach(scene) == attached, "repeated"
    assert list(await scene.catalog.list_detached()) == []
    (opened,) = await scene.catalog.open_streams([a], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    assert (opened.info.end_offset, opened.info.epoch, opened.leader_epoch) == (5, 3, 2)


async def test_the_name_of_a_detached_topic_is_free(scene: MetadataNode) -> None:
    await detach(scene)
    await scene.catalog.create_topic("t", b"n" * 16, partitions=1, configs={}, leader=NODE_ID, internal=False)
    with pytest.raises(AlreadyExists, match="topic 't' exists"):
        await attach(scene)
    assert (await attach(scene, "old")).topic_id == TOPIC_ID
    with pytest.raises(AlreadyExists, match="is attached already, as 'old'"):
        await attach(scene, "older")


async def test_what_is_not_there_is_neither_detached_nor_attached(scene: MetadataNode) -> None:
    with pytest.raises(NotFound, match="no topic with id"):
        await scene.catalog.attach_topic(b"x" * 16, "old", node=NodeIdentity(NODE_ID, scene.epoch))
    with pytest.raises(NotFound, match="topic 'x' with id"):
        await scene.catalog.detach_topic("x", b"x" * 16, ends={}, node=NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW)
    with pytest.raises(NotFound, match="topic 't' with id"):
        await scene.catalog.detach_topic("t", b"x" * 16, ends={}, node=NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW)


async def test_a_writer_of_a_detached_stream_is_fenced(scene: MetadataNode) -> None:
    a = scene.streams[0]
    late = await scene.new_objects([span(a, 0, 5)])
    await detach(scene)
    with pytest.raises(StreamFenced):
        await scene.catalog.commit_upload(scene.upload_commit(late))
    with pytest.raises(StreamFenced):
        await scene.catalog.trim_stream(a, 1, 0, now_ms=NOW, delete_after_ms=LATER)


async def test_a_topic_that_goes_on_elsewhere_is_not_detached(scene: MetadataNode) -> None:
    stale = await ends(scene)
    await scene.upload([span(scene.streams[0], 0, 5)])
    with pytest.raises(EndMoved, match="ends at 5, expected 0"):
        await scene.catalog.detach_topic("t", TOPIC_ID, ends=stale, node=NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW)
    other = await scene.catalog.register_node(2, "h", 1, now_ms=NOW, lease_ms=1)
    await hand_over(scene.catalog, scene.streams[:1], leader=2)
    await scene.catalog.open_streams(scene.streams[:1], StreamOwner(2, other.epoch, WAL_ID))
    with pytest.raises(StreamFenced, match="is open on node 2, not on node 1"):
        await detach(scene)
    await scene.catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)
    with pytest.raises(NodeFenced):
        await detach(scene)
    assert len(await scene.catalog.list_topics()) == 1


# clone


async def test_a_clone_has_its_originals_records_without_new_objects(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    (item,) = await scene.upload([span(a, 0, 5), span(b, 0, 5)])
    commit = scene.upload_commit(await scene.new_objects([span(a, 5, 9)]), {a: b"state"})
    await scene.catalog.commit_upload(commit)
    await scene.catalog.trim_stream(a, 1, 3, now_ms=NOW, delete_after_ms=LATER)
    made = await clone(scene)
    assert (made.name, made.topic_id, [part.leader for part in made.partitions]) == ("u", CLONE_ID, [NODE_ID] * 3)
    copy = made.partitions[0].stream_id
    locations = await scene.catalog.find_ranges(copy, 0, 100, limit=10)
    assert bounds_of(locations) == [(0, 5), (5, 9)]
    assert [(each.stored_stream_id, each.source_stream_id) for each in locations] == [(a, a)] * 2
    assert locations[0].object.object_id == item.object_id
    (opened,) = await scene.catalog.open_streams([copy], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    assert (opened.info.start_offset, opened.info.end_offset, opened.info.snapshot) == (3, 9, b"state")
    assert (opened.info.epoch, opened.leader_epoch) == (1, 2), "leader epochs continue from the original's"
    own = await scene.catalog.find_ranges(a, 0, 100, limit=10)
    assert {each.stored_stream_id for each in own} == {a}
    await scene.upload([span(copy, 9, 12)])
    assert await scene.bounds(copy) == [(0, 5), (5, 9), (9, 12)]
    assert await scene.bounds(a) == [(0, 5), (5, 9)]


async def test_cloning_is_repeatable_and_takes_no_name_twice(scene: MetadataNode) -> None:
    made = await clone(scene)
    assert await clone(scene) == made
    with pytest.raises(AlreadyExists, match="topic 'u' exists"):
        await clone(scene, "u", b"d" * 16)
    with pytest.raises(AlreadyExists, match="belongs to topic 'u'"):
        await clone(scene, "v")
    assert len(await scene.catalog.list_streams(after=0, limit=100)) == 6


async def test_a_clone_is_made_of_the_ends_that_were_seen(scene: MetadataNode) -> None:
    stale = await ends(scene)
    await scene.upload([span(scene.streams[0], 0, 5)])
    with pytest.raises(EndMoved):
        await scene.catalog.clone_topic("t", "u", CLONE_ID, ends=stale, node=NodeIdentity(NODE_ID, scene.epoch))
    with pytest.raises(NotFound):
        await scene.catalog.clone_topic("x", "u", CLONE_ID, ends=stale, node=NodeIdentity(NODE_ID, scene.epoch))
    with pytest.raises(NodeFenced):
        await scene.catalog.clone_topic("t", "u", CLONE_ID, ends=stale, node=NodeIdentity(NODE_ID, scene.epoch - 1))


async def test_an_upload_whose_answer_was_lost_is_repeated_beside_a_clone(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    commit = scene.upload_commit(await scene.new_objects([span(a, 0, 5), span(b, 0, 5)]))
    await scene.catalog.commit_upload(commit)
    copy, *_ = await clone_streams(scene)
    await scene.catalog.commit_upload(commit)
    assert await scene.bounds(a) == await scene.bounds(copy) == [(0, 5)]


async def test_an_object_lives_until_no_stream_refers_to_it(scene: MetadataNode) -> None:
    a = scene.streams[0]
    first, second = await scene.upload([span(a, 0, 5)], [span(a, 5, 9)])
    copy = (await clone_streams(scene))[0]
    await scene.catalog.open_streams([copy], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    await scene.catalog.trim_stream(copy, 1, 6, now_ms=NOW, delete_after_ms=LATER)
    assert await scene.state(first) == (ObjectState.COMMITTED, 0)
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    assert await scene.state(first) == (ObjectState.DESTROYED, LATER)
    assert await scene.state(second) == (ObjectState.COMMITTED, 0)
    assert await scene.bounds(copy) == [(5, 9)]
    await delete_topic(scene.catalog, "u", now_ms=NOW, delete_after_ms=LATER)
    assert await scene.state(second) == (ObjectState.DESTROYED, LATER)


async def test_a_clone_of_a_clone_refers_to_what_was_written(scene: MetadataNode) -> None:
    a = scene.streams[0]
    await scene.upload([span(a, 0, 5)])
    first = (await clone_streams(scene))[0]
    await scene.catalog.open_streams([first], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    await scene.upload([span(first, 5, 9)])
    streams = [part.stream_id for part in (await scene.catalog.list_topics())[1].partitions]
    found = {key: info.end_offset for key, info in (await scene.catalog.get_streams(streams)).items()}
    made = await scene.catalog.clone_topic("u", "v", b"v" * 16, ends=found, node=NodeIdentity(NODE_ID, scene.epoch))
    locations = await scene.catalog.find_ranges(made.partitions[0].stream_id, 0, 100, limit=10)
    assert [each.stored_stream_id for each in locations] == [a, first]


async def test_shared_objects_are_listed_while_they_are_shared(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    await scene.upload([span(a, 0, 5), span(b, 0, 5)])
    (alone,) = await scene.upload([span(a, 5, 9)])
    assert await scene.catalog.shared_objects() == frozenset()
    await clone(scene)
    assert await scene.catalog.shared_objects() == {alone.object_id}
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    assert await scene.catalog.shared_objects() == frozenset()


# compaction of objects that several streams refer to


async def test_a_compaction_that_forgets_a_clone_is_refused(scene: MetadataNode) -> None:
    a = scene.streams[0]
    inputs = await scene.upload([span(a, 0, 5)], [span(a, 5, 9)])
    copy = (await clone_streams(scene))[0]
    outputs = await scene.new_objects([span(a, 0, 9)])
    with pytest.raises(CatalogError, match=rf"stream {copy}: live in the inputs \[\(0, 9\)\], in the outputs \[\]"):
        await scene.catalog.commit_compaction(scene.compaction(inputs, outputs))
    both = await scene.new_objects([span(a, 0, 9)], [span(copy, 0, 9)])
    await scene.catalog.commit_compaction(scene.compaction(inputs, both))
    assert {(await scene.state(each))[0] for each in inputs} == {ObjectState.DESTROYED}
    (location,) = await scene.catalog.find_ranges(copy, 0, 100, limit=10)
    assert (location.object.object_id, location.stored_stream_id) == (both[1].object_id, copy)


async def test_one_stream_can_be_compacted_by_itself(scene: MetadataNode) -> None:
    a = scene.streams[0]
    inputs = await scene.upload([span(a, 0, 5)], [span(a, 5, 9)])
    copy = (await clone_streams(scene))[0]
    ids = [item.object_id for item in inputs]
    (own,) = await scene.new_objects([span(copy, 0, 9)])
    commit = CompactionCommit(NodeIdentity(NODE_ID, scene.epoch), ids, [own], NOW, LATER, streams={copy})
    await scene.catalog.commit_compaction(commit)
    await scene.catalog.commit_compaction(commit)
    assert await scene.bounds(copy) == [(0, 9)]
    assert await scene.bounds(a) == [(0, 5), (5, 9)]
    assert {await scene.state(each) for each in inputs} == {(ObjectState.COMMITTED, 0)}
    (own,) = await scene.new_objects([span(a, 0, 9)])
    await scene.catalog.commit_compaction(
        CompactionCommit(NodeIdentity(NODE_ID, scene.epoch), ids, [own], NOW, LATER, streams={a})
    )
    assert {await scene.state(each) for each in inputs} == {(ObjectState.DESTROYED, LATER)}


async def test_a_compaction_of_some_streams_writes_no_others(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    inputs = await scene.upload([span(a, 0, 5), span(b, 0, 5)])
    outputs = await scene.new_objects([span(a, 0, 5), span(b, 0, 5)])
    ids = [item.object_id for item in inputs]
    with pytest.raises(CatalogError, match=f"stream {b} is in an output, but not to be swapped"):
        await scene.catalog.commit_compaction(
            CompactionCommit(NodeIdentity(NODE_ID, scene.epoch), ids, outputs, NOW, LATER, {a})
        )
    short = await scene.new_objects([span(a, 0, 4)])
    with pytest.raises(CatalogError, match=r"in the outputs \[\(0, 4\)\]"):
        await scene.catalog.commit_compaction(
            CompactionCommit(NodeIdentity(NODE_ID, scene.epoch), ids, short, NOW, LATER, {a})
        )


async def test_bytes_of_streams(scene: MetadataNode) -> None:
    a, b, c = scene.streams
    await scene.upload([span(a, 0, 5), span(b, 0, 2)], [span(a, 5, 9)], kinds=[ObjectKind.SSO, ObjectKind.SO])
    assert await scene.catalog.stream_bytes([a, b, c]) == {a: 90, b: 20, c: 0}


async def test_committed_objects_are_counted_by_store(scene: MetadataNode) -> None:
    await scene.upload([span(scene.streams[0], 0, 5)], [span(scene.streams[1], 0, 5)])
    await scene.prepare()
    assert await scene.catalog.count_committed() == {"main": 2}
