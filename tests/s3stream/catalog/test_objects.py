"""Contract of objects and ranges, on both databases."""

import asyncio
import threading
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from anabranch.s3stream.catalog import deadline as deadline_module
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import UploadCommit
from anabranch.s3stream.errors import CatalogError, NodeFenced, NotFound, StreamFenced, StreamNotFound
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectKind, ObjectState, StreamOwner
from tests.support.catalog_node import (
    DEADLINE,
    LATER,
    NODE_ID,
    NOW,
    WAL_ID,
    MetadataNode,
    bounds_of,
    delete_topic,
    span,
)
from tests.support.waiting import until


@pytest.fixture
async def scene(catalog: Catalog) -> MetadataNode:
    return await MetadataNode.started(catalog)


async def committed(scene: MetadataNode, stream_id: int) -> int:
    return (await scene.catalog.get_streams([stream_id]))[stream_id].end_offset


# uploads


async def test_an_upload_shows_objects_ends_and_snapshots_at_once(scene: MetadataNode) -> None:
    a, b, c = scene.streams
    objects = await scene.new_objects([span(a, 0, 5), span(b, 0, 8)], [span(c, 0, 100)], [span(a, 5, 7)])
    await scene.catalog.commit_upload(scene.upload_commit(objects, {a: b"state of a", c: b"state of c"}))
    found = await scene.catalog.get_streams([a, b, c])
    assert [(found[s].end_offset, found[s].snapshot) for s in (a, b, c)] == [
        (7, b"state of a"),
        (8, b""),
        (100, b"state of c"),
    ]
    infos = await scene.catalog.get_objects([o.object_id for o in objects])
    assert [infos[o.object_id].kind for o in objects] == [ObjectKind.SSO, ObjectKind.SO, ObjectKind.SO]
    assert {(i.state, i.deadline_ms, i.committed_ms) for i in infos.values()} == {(ObjectState.COMMITTED, 0, NOW)}
    assert [infos[o.object_id].size_bytes for o in objects] == [o.size_bytes for o in objects]


async def test_a_repeated_upload_succeeds_and_changes_nothing(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    commit = scene.upload_commit(await scene.new_objects([span(stream, 0, 5)]), {stream: b"1"})
    await scene.catalog.commit_upload(commit)
    later = scene.upload_commit(await scene.new_objects([span(stream, 5, 9)]), {stream: b"2"})
    await scene.catalog.commit_upload(later)
    await scene.catalog.commit_upload(commit)
    await scene.catalog.commit_upload(commit)
    info = (await scene.catalog.get_streams([stream]))[stream]
    assert (info.end_offset, info.snapshot) == (9, b"2")
    assert await scene.bounds(stream) == [(0, 5), (5, 9)]


async def test_a_repeated_upload_succeeds_after_its_objects_were_trimmed(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    commit = scene.upload_commit(await scene.new_objects([span(stream, 0, 5)]))
    await scene.catalog.commit_upload(commit)
    await scene.catalog.trim_stream(stream, 1, 5, now_ms=NOW, delete_after_ms=LATER)
    await scene.catalog.commit_upload(commit)
    assert await scene.state(commit.objects[0]) == (ObjectState.DESTROYED, LATER)


async def test_other_ranges_under_a_committed_object_are_refused(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    (item,) = await scene.upload([span(stream, 0, 5)])
    changed = replace(item, ranges=[span(stream, 0, 6)])
    with pytest.raises(CatalogError, match="was committed before with other ranges"):
        await scene.catalog.commit_upload(scene.upload_commit([changed]))


@pytest.mark.parametrize("start", [4, 6, 0])
async def test_a_range_must_begin_at_the_streams_end(scene: MetadataNode, start: int) -> None:
    stream, other = scene.streams[:2]
    await scene.upload([span(stream, 0, 5)])
    objects = await scene.new_objects([span(other, 0, 3)], [span(stream, start, 9)])
    with pytest.raises(CatalogError, match=rf"stream {stream}: .* begin at the stream's end 5, found \[{start}, 9\)"):
        await scene.catalog.commit_upload(scene.upload_commit(objects, {other: b"x"}))
    assert await committed(scene, other) == 0, "nothing of a refused commit is visible"
    assert {(await scene.state(o))[0] for o in objects} == {ObjectState.PREPARED}


async def test_a_gap_inside_one_commit_is_refused(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    objects = await scene.new_objects([span(stream, 0, 5)], [span(stream, 6, 9)])
    with pytest.raises(CatalogError, match="stream's end 5, found"):
        await scene.catalog.commit_upload(scene.upload_commit(objects))


async def test_stale_epochs_get_nothing_through(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    objects = await scene.new_objects([span(stream, 0, 5)])
    commit = scene.upload_commit(objects)
    with pytest.raises(StreamFenced, match="commit's epoch 0 is not the stream's 1"):
        await scene.catalog.commit_upload(scene.upload_commit(objects, stream_epoch=0))
    with pytest.raises(CatalogError, match="names no epoch"):
        await scene.catalog.commit_upload(replace(commit, stream_epochs={}))
    await scene.catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)
    with pytest.raises(NodeFenced):
        await scene.catalog.commit_upload(commit)
    with pytest.raises(NodeFenced):
        await scene.prepare()
    assert await committed(scene, stream) == 0


async def test_a_snapshot_needs_the_streams_epoch_too(scene: MetadataNode) -> None:
    stream, other = scene.streams[:2]
    objects = await scene.new_objects([span(stream, 0, 5)])
    commit = UploadCommit(NodeIdentity(NODE_ID, scene.epoch), objects, {stream: 1, other: 0}, {other: b"x"}, NOW)
    with pytest.raises(StreamFenced, match=f"stream {other}"):
        await scene.catalog.commit_upload(commit)


async def test_ranges_of_deleted_streams_are_dropped_from_an_upload(scene: MetadataNode) -> None:
    other = await scene.catalog.create_topic("u", b"u" * 16, partitions=1, configs={}, leader=NODE_ID, internal=False)
    kept = other.partitions[0].stream_id
    await scene.catalog.open_streams([kept], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    gone = scene.streams[0]
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    mixed, dead = await scene.new_objects([span(gone, 0, 5), span(kept, 0, 3)], [span(gone, 5, 9)])
    await scene.catalog.commit_upload(scene.upload_commit([mixed, dead], {gone: b"x", kept: b"y"}))
    assert await committed(scene, kept) == 3
    assert await scene.state(mixed) == (ObjectState.COMMITTED, 0)
    assert await scene.state(dead) == (ObjectState.DESTROYED, NOW + scene.prepare_ttl_ms)
    await scene.catalog.commit_upload(scene.upload_commit([mixed, dead], {gone: b"x", kept: b"y"}))


async def test_a_stream_that_never_was_is_refused(scene: MetadataNode) -> None:
    objects = await scene.new_objects([span(999, 0, 5)])
    with pytest.raises(StreamNotFound, match="stream 999 never existed"):
        await scene.catalog.commit_upload(scene.upload_commit(objects))


async def test_malformed_objects_are_refused(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    (item,) = await scene.new_objects([span(a, 0, 5)])
    for broken, message in (
        (replace(item, ranges=[]), "is empty"),
        (replace(item, size_bytes=0), "is empty"),
        (replace(item, ranges=[span(a, 0, 5), span(b, 0, 5)]), "stream object, but holds several streams"),
        (replace(item, ranges=[span(a, 0, 0)]), "empty range"),
    ):
        with pytest.raises(CatalogError, match=message):
            await scene.catalog.commit_upload(scene.upload_commit([broken]))


async def test_another_nodes_object_cannot_be_committed(scene: MetadataNode) -> None:
    other = await scene.catalog.register_node(2, "h", 1, now_ms=NOW, lease_ms=1)
    (item,) = await scene.new_objects([span(scene.streams[0], 0, 5)])
    commit = replace(scene.upload_commit([item]), node=NodeIdentity(2, other.epoch))
    with pytest.raises(CatalogError, match="prepared by node 1, not by node 2"):
        await scene.catalog.commit_upload(commit)


# the life of an object


async def test_object_ids_are_never_given_twice(scene: MetadataNode) -> None:
    first = await scene.prepare(3)
    await scene.catalog.forget_objects(first)
    again = await scene.prepare(3)
    assert len({*first, *again}) == 6
    assert min(again) > max(first)
    assert await scene.prepare(0) == []


async def test_prepared_objects_become_reapable_at_their_deadline(scene: MetadataNode) -> None:
    first, second = await scene.prepare(2)
    await scene.catalog.note_multipart(second, "upload-2")
    assert await scene.catalog.list_reapable(now_ms=DEADLINE - 1, limit=10) == []
    due = await scene.catalog.list_reapable(now_ms=DEADLINE, limit=10)
    assert [(info.object_id, info.writer_id, upload) for info, upload in due] == [
        (first, "writer", ""),
        (second, "writer", "upload-2"),
    ]
    assert len(await scene.catalog.list_reapable(now_ms=DEADLINE, limit=1)) == 1


async def test_an_object_says_how_old_its_data_is_and_whether_it_was_cleaned(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    (fresh,) = await scene.prepare()
    aged = await scene.prepare(2, oldest_data_ms=NOW - 5)
    (cleaned,) = await scene.prepare(cleaned=True)

    async def facts() -> list[tuple[int, bool]]:
        found = await scene.catalog.get_objects([fresh, *aged, cleaned])
        return [(info.oldest_data_ms, info.cleaned) for _, info in sorted(found.items())]

    assert await facts() == [(0, False), (NOW - 5, False), (NOW - 5, False), (0, True)]
    objects = [
        NewObject(object_id, ObjectKind.SO, 58, [span(stream, at, at + 1)])
        for at, object_id in enumerate([fresh, *aged, cleaned])
    ]
    await scene.catalog.commit_upload(scene.upload_commit(objects))
    assert await facts() == [(NOW, False), (NOW - 5, False), (NOW - 5, False), (NOW, True)]


async def test_a_condemned_object_can_no_longer_be_committed(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    late, reaped = await scene.new_objects([span(stream, 0, 5)], [span(stream, 5, 9)])
    assert await scene.catalog.expire_objects([late.object_id], now_ms=DEADLINE - 1) == []
    assert await scene.catalog.expire_objects([late.object_id, reaped.object_id], now_ms=DEADLINE) == [
        late.object_id,
        reaped.object_id,
    ]
    with pytest.raises(CatalogError, match="must be PREPARED to be committed, found DESTROYED"):
        await scene.catalog.commit_upload(scene.upload_commit([late]))
    await scene.catalog.forget_objects([reaped.object_id])
    with pytest.raises(NotFound, match="never prepared, or reaped after its deadline"):
        await scene.catalog.commit_upload(scene.upload_commit([reaped]))


async def test_a_committed_object_is_neither_condemned_nor_forgotten(scene: MetadataNode) -> None:
    (item,) = await scene.upload([span(scene.streams[0], 0, 5)])
    spare = await scene.prepare(1)
    assert await scene.catalog.expire_objects([item.object_id], now_ms=LATER) == []
    with pytest.raises(CatalogError, match="is committed and cannot be forgotten"):
        await scene.catalog.forget_objects([*spare, item.object_id])
    assert len(await scene.catalog.get_objects([*spare, item.object_id])) == 2
    with pytest.raises(NotFound, match="is not prepared"):
        await scene.catalog.note_multipart(item.object_id, "u")
    assert await scene.catalog.list_reapable(now_ms=LATER, limit=10) == [
        (info, "") for info in (await scene.catalog.get_objects(spare)).values()
    ]


async def test_forgetting_is_repeatable(scene: MetadataNode) -> None:
    ids = await scene.prepare(2)
    await scene.catalog.forget_objects(ids)
    await scene.catalog.forget_objects(ids)
    assert await scene.catalog.get_objects(ids) == {}


async def test_counts_and_pages_of_objects(scene: MetadataNode) -> None:
    a, b, c = scene.streams
    await scene.upload([span(a, 0, 5), span(b, 0, 5)], [span(c, 0, 5)])
    await scene.prepare(2)
    assert await scene.catalog.count_objects() == {
        "SSO committed": (1, 148),
        "SO committed": (1, 98),
        "SSO prepared": (2, 0),
    }
    first = await scene.catalog.list_objects(after=0, limit=3)
    rest = await scene.catalog.list_objects(after=first[-1].object_id, limit=3)
    assert [info.object_id for info in (*first, *rest)] == [1, 2, 3, 4]


# look-ups


async def test_ranges_are_found_by_overlap(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    await scene.upload([span(a, 0, 10), span(b, 0, 3)], [span(a, 10, 20)], [span(a, 20, 30)])

    async def found(start: int, end: int, limit: int = 10) -> list[tuple[int, int]]:
        return bounds_of(await scene.catalog.find_ranges(a, start, end, limit=limit))

    assert await found(0, 30) == [(0, 10), (10, 20), (20, 30)]
    assert await found(0, 10) == [(0, 10)]
    assert await found(9, 11) == [(0, 10), (10, 20)]
    assert await found(10, 20) == [(10, 20)]
    assert await found(29, 2**63 - 1) == [(20, 30)]
    assert await found(30, 40) == []
    assert await found(0, 30, limit=2) == [(0, 10), (10, 20)]
    (location,) = await scene.catalog.find_ranges(b, 0, 1, limit=1)
    assert location.range == span(b, 0, 3)
    assert (location.object.store, location.object.writer_id) == ("main", "writer")


async def test_offsets_are_64_bit(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    far = 2**62
    await scene.upload([span(stream, 0, far, records=2)], [span(stream, far, far + 2**33, records=1)])
    assert await scene.bounds(stream) == [(0, far)]
    found = await scene.catalog.find_ranges(stream, far, 2**63 - 1, limit=5)
    assert bounds_of(found) == [(far, far + 2**33)]


async def test_time_finds_the_first_range_that_reaches_it(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    times = [50, 10, 70, 60, 90]
    await scene.upload(*([span(stream, 10 * i, 10 * i + 10, timestamp=t)] for i, t in enumerate(times)))

    async def start(timestamp: int) -> int | None:
        location = await scene.catalog.find_time(stream, timestamp)
        return None if location is None else location.range.start_offset

    assert [await start(t) for t in (0, 50, 51, 70, 71, 90, 91)] == [0, 0, 20, 20, 40, 40, None]
    await scene.catalog.trim_stream(stream, 1, 30, now_ms=NOW, delete_after_ms=LATER)
    assert [await start(t) for t in (0, 60, 65, 70, 90, 91)] == [30, 30, 40, 40, 40, None]


async def test_time_after_a_compaction(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    times = [50, 10, 70, 60, 90]
    objects = await scene.upload(*([span(stream, 10 * i, 10 * i + 10, timestamp=t)] for i, t in enumerate(times)))
    await scene.compact(objects[:2], [span(stream, 0, 20, timestamp=50)])
    location = await scene.catalog.find_time(stream, 20)
    assert location is not None
    assert location.range == span(stream, 0, 20, timestamp=50)
    await scene.upload([span(stream, 50, 60, timestamp=80)])
    location = await scene.catalog.find_time(stream, 80)
    assert location is not None
    assert location.range.start_offset == 40


# compaction


async def test_compaction_swaps_inputs_for_outputs(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    inputs = await scene.upload(
        [span(a, 0, 5), span(b, 0, 5)], [span(a, 5, 10), span(b, 5, 10)], kinds=[ObjectKind.SSO] * 2
    )
    outputs = await scene.new_objects([span(a, 0, 10)], [span(b, 0, 5), span(b, 5, 10)])
    commit = scene.compaction(inputs, outputs)
    await scene.catalog.commit_compaction(commit)
    assert await scene.bounds(a) == [(0, 10)]
    assert await scene.bounds(b) == [(0, 5), (5, 10)]
    assert {await scene.state(o) for o in inputs} == {(ObjectState.DESTROYED, LATER)}
    assert {(await scene.state(o))[0] for o in outputs} == {ObjectState.COMMITTED}
    await scene.catalog.commit_compaction(commit)
    assert await scene.bounds(a) == [(0, 10)]
    assert bounds_of(await scene.catalog.list_stream_objects(b)) == [(0, 5), (5, 10)]
    assert await committed(scene, a) == 10


async def test_compaction_refuses_what_would_lose_double_or_invent_data(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    inputs = await scene.upload([span(a, 0, 10), span(b, 0, 10)], [span(a, 10, 20)], [span(a, 20, 30)])
    first, _, last = inputs
    groups: list[tuple[list[NewObject], list[list[tuple[int, int, int]]], str]] = [
        (inputs[:2], [[(a, 0, 20)]], rf"stream {b}: live in the inputs \[\(0, 10\)\], in the outputs \[\]"),
        (inputs[:2], [[(a, 0, 19), (b, 0, 10)]], r"in the inputs \[\(0, 20\)\], in the outputs \[\(0, 19\)\]"),
        (inputs[:2], [[(a, 0, 21), (b, 0, 10)]], r"in the outputs \[\(0, 21\)\]"),
        (inputs[:2], [[(a, 0, 12), (b, 0, 10)], [(a, 10, 20)]], r"offsets \[10, 12\) are in two outputs"),
        ([first, last], [[(a, 0, 30), (b, 0, 10)]], r"inputs \[\(0, 10\), \(20, 30\)\], in the outputs \[\(0, 30\)\]"),
    ]
    for chosen, ranges, message in groups:
        outputs = await scene.new_objects(*([span(*bounds) for bounds in group] for group in ranges))
        with pytest.raises(CatalogError, match=message):
            await scene.catalog.commit_compaction(scene.compaction(chosen, outputs))
    assert await scene.bounds(a) == [(0, 10), (10, 20), (20, 30)]
    assert {(await scene.state(o))[0] for o in inputs} == {ObjectState.COMMITTED}


async def test_an_object_that_was_never_committed_is_no_input(scene: MetadataNode) -> None:
    objects = await scene.new_objects([span(scene.streams[0], 0, 5)], [span(scene.streams[0], 0, 5)])
    with pytest.raises(CatalogError, match="input object 1 was never committed"):
        await scene.catalog.commit_compaction(scene.compaction(objects[:1], objects[1:]))


async def test_two_compactions_of_one_input_cannot_both_win(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    inputs = await scene.upload([span(stream, 0, 5)], [span(stream, 5, 9)])
    slow = await scene.new_objects([span(stream, 0, 9)])
    await scene.compact(inputs, [span(stream, 0, 9)])
    with pytest.raises(
        CatalogError, match=r"in the outputs \[\(0, 9\)\]; input objects \[1, 2\] were destroyed meanwhile"
    ):
        await scene.catalog.commit_compaction(scene.compaction(inputs, slow))
    assert await scene.bounds(stream) == [(0, 9)]


async def test_compaction_goes_on_when_streams_were_trimmed_meanwhile(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    inputs = await scene.upload([span(a, 0, 5), span(b, 0, 5)], [span(a, 5, 10)], [span(a, 10, 15)])
    outputs = await scene.new_objects([span(a, 0, 10)], [span(a, 10, 15)], [span(b, 0, 5)])
    await scene.catalog.trim_stream(a, 1, 7, now_ms=NOW, delete_after_ms=LATER)
    await scene.catalog.trim_stream(b, 1, 5, now_ms=NOW, delete_after_ms=LATER)
    inputs = [o for o in inputs if (await scene.state(o))[0] is ObjectState.COMMITTED]
    await scene.catalog.commit_compaction(scene.compaction(inputs, outputs))
    assert await scene.bounds(a) == [(0, 10), (10, 15)]
    assert await scene.bounds(b) == []
    assert await scene.state(outputs[2]) == (ObjectState.DESTROYED, NOW + scene.prepare_ttl_ms)


async def test_an_input_destroyed_meanwhile_by_a_trim_is_no_obstacle(scene: MetadataNode) -> None:
    a, b, _ = scene.streams
    inputs = await scene.upload([span(a, 0, 5)], [span(a, 5, 10), span(b, 0, 5)])
    outputs = await scene.new_objects([span(a, 0, 10)], [span(b, 0, 5)])
    await scene.catalog.trim_stream(a, 1, 5, now_ms=NOW, delete_after_ms=LATER)
    await scene.catalog.commit_compaction(scene.compaction(inputs, outputs))
    assert await scene.bounds(a) == [(0, 10)]
    assert await scene.state(inputs[0]) == (ObjectState.DESTROYED, LATER)


async def test_compaction_goes_on_when_a_topic_was_deleted_meanwhile(scene: MetadataNode) -> None:
    other = await scene.catalog.create_topic("u", b"u" * 16, partitions=1, configs={}, leader=NODE_ID, internal=False)
    kept = other.partitions[0].stream_id
    await scene.catalog.open_streams([kept], StreamOwner(NODE_ID, scene.epoch, WAL_ID))
    gone = scene.streams[0]
    inputs = await scene.upload([span(gone, 0, 5), span(kept, 0, 5)], [span(gone, 5, 9), span(kept, 5, 9)])
    outputs = await scene.new_objects([span(gone, 0, 9)], [span(kept, 0, 9)])
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    await scene.catalog.commit_compaction(scene.compaction(inputs, outputs))
    assert await scene.bounds(kept) == [(0, 9)]
    assert await scene.state(outputs[0]) == (ObjectState.DESTROYED, NOW + scene.prepare_ttl_ms)


async def test_compaction_without_outputs_drops_dead_inputs_only(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    (item,) = await scene.upload([span(stream, 0, 5)])
    with pytest.raises(CatalogError, match=r"in the outputs \[\]"):
        await scene.catalog.commit_compaction(scene.compaction([item], []))
    await scene.catalog.trim_stream(stream, 1, 5, now_ms=NOW, delete_after_ms=LATER)
    await scene.catalog.commit_compaction(scene.compaction([item], []))
    assert await scene.state(item) == (ObjectState.DESTROYED, LATER)


async def test_compaction_holds_the_node_fence(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    inputs = await scene.upload([span(stream, 0, 5)])
    outputs = await scene.new_objects([span(stream, 0, 5)])
    with pytest.raises(CatalogError, match="are input and output"):
        await scene.catalog.commit_compaction(scene.compaction(inputs, inputs))
    await scene.catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)
    with pytest.raises(NodeFenced):
        await scene.catalog.commit_compaction(scene.compaction(inputs, outputs))


async def test_a_range_may_be_split_by_compaction_and_time_still_finds_it(scene: MetadataNode) -> None:
    stream = scene.streams[0]
    inputs = await scene.upload([span(stream, 0, 10, timestamp=90)], [span(stream, 10, 20, timestamp=40)])
    await scene.compact(
        inputs, [span(stream, 0, 4, timestamp=20)], [span(stream, 4, 12, timestamp=90)], [span(stream, 12, 20)]
    )
    assert await scene.bounds(stream) == [(0, 4), (4, 12), (12, 20)]
    starts = [await scene.catalog.find_time(stream, t) for t in (5, 21, 90, 91)]
    assert [s and s.range.start_offset for s in starts] == [0, 4, 4, None]


async def test_what_compaction_asks(scene: MetadataNode) -> None:
    a, b, c = scene.streams
    groups = [[span(a, 10 * i, 10 * i + 10)] for i in range(3)] + [[span(b, 10 * i, 10 * i + 10)] for i in range(2)]
    sos = await scene.upload(*groups)
    ssos = await scene.upload([span(a, 30, 40), span(c, 0, 10)], [span(b, 20, 30), span(c, 10, 20)])
    assert await scene.catalog.list_compactable_streams(NODE_ID, objects_min=2, limit=10) == [a, b]
    assert await scene.catalog.list_compactable_streams(NODE_ID, objects_min=3, limit=10) == [a]
    assert await scene.catalog.list_compactable_streams(NODE_ID, objects_min=1, limit=1) == [a]
    assert await scene.catalog.list_compactable_streams(2, objects_min=1, limit=10) == []
    newest = await scene.catalog.list_node_ssos(NODE_ID, limit=10)
    assert [info.object_id for info in newest] == [o.object_id for o in ssos]
    assert [i.object_id for i in await scene.catalog.list_node_ssos(NODE_ID, limit=1)] == [ssos[-1].object_id]
    assert bounds_of(await scene.catalog.list_stream_objects(a)) == [(0, 10), (10, 20), (20, 30)]
    held = await scene.catalog.object_ranges([ssos[0].object_id, sos[0].object_id, 999])
    assert {key: [item.range for item in found] for key, found in held.items()} == {
        ssos[0].object_id: [span(a, 30, 40), span(c, 0, 10)],
        sos[0].object_id: [span(a, 0, 10)],
    }


async def test_the_delay_of_a_deletion_counts_from_when_its_command_runs(
    scene: MetadataNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a command that waits for the writers' lock has run, readers find the object and begin to read it."""
    monkeypatch.setattr(deadline_module, "WAIT_COUNTED_S", 0.0)
    stream = scene.streams[0]
    (item,) = await scene.upload([span(stream, 0, 5)])
    running, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold_the_lock(_: Connection) -> None:
        loop.call_soon_threadsafe(running.set)
        ended.wait()

    holding = asyncio.create_task(scene.catalog._database.write(hold_the_lock))  # noqa: SLF001
    await running.wait()
    trimming = asyncio.create_task(scene.trim(stream, 5))
    await asyncio.sleep(0)
    waits_until = loop.time() + 0.02
    await until(lambda: loop.time() >= waits_until)
    ended.set()
    await asyncio.gather(holding, trimming)
    state, deadline_ms = await scene.state(item)
    assert state is ObjectState.DESTROYED
    assert deadline_ms >= NOW + 20
