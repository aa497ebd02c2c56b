"""Restoring a catalog from the result of a rebuild, and advancing an older copy, on both engines."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.manifest_state import BorrowedRange, StreamState, TopicState
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.restore import Advance, CatalogContents, RecoveredTopic, RestoredRange, RestoredStream
from anabranch.s3stream.catalog.schema import MIGRATIONS
from anabranch.s3stream.catalog.values import (
    KEPT_FOREVER,
    AclRow,
    DetachedTopic,
    Takeover,
    TokenRow,
    WalInfo,
    WalState,
)
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import NodeIdentity, ObjectInfo, ObjectKind, ObjectState, StreamOwner, StreamRange
from tests.support.catalog_node import WAL_ID

NOW = 1_700_000_000_000


def stream(stream_id: int, start: int, end: int, ranges: Mapping[tuple[int, int], tuple[int, int]]) -> RestoredStream:
    """With its ranges: object and source by start and end."""
    return RestoredStream(
        stream_id=stream_id,
        epoch=1_003,
        node_id=1,
        leader=1,
        leader_epoch=1_004,
        start_offset=start,
        end_offset=end,
        snapshot=b"state",
        preferred=2,
        replicas=(2, 1),
        ranges=[
            RestoredRange(object_id, StreamRange(stream_id, low, high, high - low, 100, 1_000 - low), source)
            for (low, high), (object_id, source) in ranges.items()
        ],
    )


def stored(object_id: int, state: ObjectState = ObjectState.COMMITTED) -> ObjectInfo:
    committed = state is ObjectState.COMMITTED
    kind = ObjectKind.SSO if object_id % 2 else ObjectKind.SO
    return ObjectInfo(
        object_id,
        kind,
        state,
        "main",
        1_000,
        1,
        f"w{object_id}",
        0 if committed else NOW,
        NOW if committed else 0,
        NOW - object_id,
        cleaned=kind is ObjectKind.SO,
    )


CONTENTS = CatalogContents(
    cluster="test",
    catalog_id=bytes(range(16)),
    counters={"stream": 9, "object": 500, "producer": 7_000, "table_file": 40},
    manifest=42,
    progress=CatalogProgress(70, {1: 30, 2: 7}),
    nodes={1: 1_007, 2: 1_001},
    wals=[
        WalInfo("00000000000000aa", 1, 7, "/wal", WalState.OPEN, NOW),
        WalInfo("00000000000000bb", 2, 3, "s:wal/c/2/", WalState.DRAINED, NOW, Takeover.SHARED, kind="object"),
    ],
    topics=[TopicState("flights", b"f" * 16, False, {"retention.ms": "-1"}, [1, 2])],
    new_topics=[RecoveredTopic("recovered-stream-8", b"r" * 16, 8)],
    detached=[DetachedTopic("aside", b"a" * 16, {}, [3], internal=False, detached_ms=NOW)],
    configs={("group", "readers"): {"a": "b"}},
    acls=(AclRow(2, "flights", 3, "User:a", "*", 3, 3),),
    tokens=(TokenRow("id", "User:a", "User:b", ("User:c", "User:d"), 1000, 2000, 3000),),
    streams=[
        stream(1, 5, 30, {(0, 10): (11, 0), (10, 30): (12, 0)}),
        stream(2, 0, 20, {(0, 20): (12, 1)}),
        stream(3, 0, 10, {(0, 10): (11, 0)}),
        stream(8, 0, 0, {}),
    ],
    objects=[stored(11), stored(12), stored(13, ObjectState.DESTROYED)],
)


async def test_all_of_it_is_there(catalog: Catalog) -> None:
    await catalog.restore(CONTENTS)
    number, state = await catalog.read_state()
    assert number == 42
    assert state.catalog_id == CONTENTS.catalog_id
    assert state.schema_version == MIGRATIONS[-1][0]
    assert state.counters == CONTENTS.counters
    assert state.nodes == CONTENTS.nodes
    assert state.wals == CONTENTS.wals
    assert state.topics == [*CONTENTS.topics, TopicState("recovered-stream-8", b"r" * 16, False, KEPT_FOREVER, [8])]
    assert state.detached == CONTENTS.detached
    assert state.configs == CONTENTS.configs
    assert state.acls == CONTENTS.acls
    assert state.tokens == CONTENTS.tokens
    assert state.streams == [
        StreamState(each.stream_id, 1_003, 1, 1, 1_004, each.start_offset, each.end_offset) for each in CONTENTS.streams
    ]
    assert state.borrowed == [BorrowedRange(2, 0, 20, 12, 1)]
    assert state.committed == {1: [11, 12]}
    assert (await catalog.get_streams([1]))[1].snapshot == b"state"
    located = await catalog.find_ranges(1, 5, 30, limit=10)
    assert [(each.range, each.object) for each in located] == [
        (each.range, stored(each.object_id)) for each in CONTENTS.streams[0].ranges
    ]
    # Timestamps fall from range to range here; the first one that reaches a time is found all the same.
    found = await catalog.find_time(1, 995)
    assert found is not None
    assert found.object.object_id == 11
    assert [info.object_id for info, _ in await catalog.list_reapable(now_ms=NOW, limit=10)] == [13]


async def test_ids_and_epochs_go_on_from_there(catalog: Catalog) -> None:
    await catalog.restore(CONTENTS)
    node = await catalog.register_node(1, "h", 1, now_ms=NOW, lease_ms=1)
    assert node.epoch == 1_008
    opened = await catalog.open_streams([1, 2, 8], StreamOwner(1, node.epoch, WAL_ID))
    assert [(each.info.epoch, each.leader_epoch) for each in opened] == [(1_004, 1_005)] * 3
    (topic,) = [each for each in await catalog.list_topics() if each.name == CONTENTS.topics[0].name]
    assert {each.preferred for each in topic.partitions} == {2}
    created = await catalog.create_topic("new", b"n" * 16, partitions=1, configs={}, leader=1, internal=False)
    assert created.partitions[0].stream_id == 9
    ids = await catalog.prepare_objects(
        1, node=NodeIdentity(1, node.epoch), writer_id="w", store="main", now_ms=NOW, deadline_ms=NOW + 1
    )
    assert ids == [500]
    assert await catalog.next_producer_ids(1) == 7_000
    assert await catalog.next_manifest(0) == 43


async def test_a_catalog_that_has_anything_is_not_filled(catalog: Catalog) -> None:
    await catalog.create_topic("mine", b"m" * 16, partitions=1, configs={}, leader=1, internal=False)
    _, before = await catalog.read_state()
    with pytest.raises(CatalogError, match="not empty"):
        await catalog.restore(CONTENTS)
    assert (await catalog.read_state())[1] == before


async def test_what_contradicts_itself_fills_nothing(catalog: Catalog) -> None:
    """A partition whose stream is missing: the whole transaction is rolled back."""
    topics = [TopicState("flights", b"f" * 16, False, {}, [1, 77])]
    with pytest.raises(CatalogError):
        await catalog.restore(replace(CONTENTS, topics=topics))
    _, state = await catalog.read_state()
    assert (state.streams, state.nodes, state.committed) == ([], {}, {})
    await catalog.restore(CONTENTS)


async def test_an_older_copy_goes_ahead_and_never_back(catalog: Catalog) -> None:
    await catalog.restore(CONTENTS)
    wanted = Advance(
        object_id=700,
        manifest=60,
        progress=CatalogProgress(80, {2: 9, 3: 4}),
        node_epochs={1: 2_000},
        epochs_skipped=10,
        producer_ids_skipped=5,
        table_file_ids_skipped=60,
    )
    await catalog.advance(wanted)
    number, state = await catalog.read_state()
    assert number == 60
    assert state.counters == {"stream": 9, "object": 700, "producer": 7_005, "table_file": 100}
    assert state.nodes == {1: 2_010, 2: 1_011}
    assert {(each.epoch, each.leader_epoch) for each in state.streams} == {(1_013, 1_014)}
    await catalog.advance(replace(wanted, object_id=1, manifest=1, progress=CatalogProgress(), node_epochs={}))
    number, state = await catalog.read_state()
    assert (number, state.counters["object"], state.nodes[1]) == (60, 700, 2_020)
    assert await catalog.progress() == CatalogProgress(80, {1: 30, 2: 9, 3: 4})
