"""Lists the objects in the stores for the rebuild of a catalog, and reads their writers and indexes."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from anabranch.s3stream.errors import CorruptObject, StorageError
from anabranch.s3stream.maintain.manifest import Manifest
from anabranch.s3stream.maintain.rebuild_plan import (
    FoundObject,
    UnreadableObject,
    select_objects,
    select_outputs,
    select_uploads,
)
from anabranch.s3stream.model import ObjectKind, parse_object_key
from anabranch.s3stream.object.format import merge_ranges
from anabranch.s3stream.object.reader import expect_object, index_tail_bytes, read_index
from anabranch.s3stream.store.interface import ObjectStore, StoredObject
from anabranch.s3stream.tasks import side_by_side

T = TypeVar("T")

OBJECTS_IN_FLIGHT: Final = 32
"""Objects inspected at the same time."""


class StoreContents(NamedTuple):
    """Objects of a cluster in all stores."""

    objects: Mapping[int, FoundObject]
    unreadable: Sequence[UnreadableObject]
    id_max: int
    """Largest object id in the stores, 0 if there is none."""


async def scan_stores(
    stores: Mapping[str, ObjectStore],
    manifest: Manifest,
    *,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> StoreContents:
    """List all stores, and read writer and index of each object.

    `on_progress` gets the number of steps done and of all steps. Raises StorageError when a store
    cannot be read, or two of them have the same object.
    """
    listed: dict[int, tuple[ObjectStore, StoredObject]] = {}
    for store in stores.values():
        async for item in store.list():
            parsed = parse_object_key(item.key)
            if parsed is None or parsed[0] != manifest.cluster:
                continue
            if parsed[1] in listed:
                raise StorageError(
                    f"object {parsed[1]} is in the store {listed[parsed[1]][0].name!r} and in {store.name!r}"
                )
            listed[parsed[1]] = (store, item)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        on_progress(done, 2 * len(listed))

    async def writer_of(store: ObjectStore, item: StoredObject) -> str:
        writer_id = await store.writer_id(item.key) or ""
        step()
        return writer_id

    ids = sorted(listed)
    writers = dict(zip(ids, await _in_turn(writer_of(*listed[key]) for key in ids), strict=True))
    wanted = set[int]().union(
        *select_objects(manifest.state, writers), select_outputs(manifest.state, writers), select_uploads(writers)
    )

    async def look(object_id: int) -> FoundObject | UnreadableObject:
        store, item = listed[object_id]
        writer_id = writers[object_id]
        facts = (object_id, store.name, item.size_bytes, item.modified_ms, writer_id)
        try:
            if object_id not in wanted:
                return FoundObject(*facts, ObjectKind.SSO)
            index = await read_index(store, item.key, index_tail_bytes(item.size_bytes))
            expect_object(index, object_id)
            return FoundObject(*facts, index.kind, merge_ranges(list(index)))
        except CorruptObject as error:
            return UnreadableObject(*facts, str(error))
        finally:
            step()

    looked = await _in_turn(look(key) for key in ids)
    return StoreContents(
        {each.object_id: each for each in looked if isinstance(each, FoundObject)},
        [each for each in looked if isinstance(each, UnreadableObject)],
        max(ids, default=0),
    )


async def _in_turn(works: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run all with bounded concurrency; returns their results in order."""
    slots = asyncio.Semaphore(OBJECTS_IN_FLIGHT)

    async def one(work: Coroutine[object, object, T]) -> T:
        async with slots:
            return await work

    return await side_by_side(one(work) for work in works)
