"""Checks at the start of a node that the object stores are the ones that the catalog's objects are in."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import ObjectNotFound, StorageError
from anabranch.s3stream.maintain.claim import check_claim
from anabranch.s3stream.maintain.manifest_store import newest_manifest_key
from anabranch.s3stream.model import ObjectState, object_key, parse_object_key
from anabranch.s3stream.store.interface import ObjectStore

PROBED_ROWS: Final = 1_000
"""Objects listed from the catalog as candidates for a check."""
PROBED: Final = 3
"""Committed objects per store whose existence is checked."""
PROBE_OBJECTS_MAX: Final = 20_000
"""Objects of a store that are searched for one of the cluster: other clusters may share the store."""


def check_stores_known(committed: Mapping[str, int], configured: Collection[str]) -> None:
    """Raise StorageError when committed objects (counted by store) are in a store that is not configured."""
    missing = {name: count for name, count in sorted(committed.items()) if name not in configured}
    if missing:
        lost = ", ".join(f"{count:,} committed objects in the store {name!r}" for name, count in missing.items())
        raise StorageError(
            f"the catalog has {lost}, not configured here: add the table [stores.NAME] (configured: "
            f"{', '.join(sorted(configured))})"
        )


async def check_stores_hold_objects(catalog: Catalog, stores: Mapping[str, ObjectStore], cluster: str) -> None:
    """Raise StorageError when a store has none of the objects that the catalog lists for it.

    It is then a different store, or one that is not mounted. A node that started would upload its log into it.
    """
    page = await catalog.list_objects(after=0, limit=PROBED_ROWS)
    for name, store in stores.items():
        keys = [
            object_key(cluster, info.object_id)
            for info in page
            if info.store == name and info.state is ObjectState.COMMITTED
        ][:PROBED]
        if not keys or not await _are_missing(store, keys):
            continue
        only = {name: store}
        if await find_object(only, cluster) is None and await newest_manifest_key(store, cluster) is None:
            raise StorageError(
                f"the object store {name!r} holds nothing of cluster {cluster!r}, but the catalog has committed "
                f"objects there (such as {keys[0]}): check that it is mounted, and its path or bucket"
            )


async def check_stores_shared(
    catalog: Catalog, stores: Mapping[str, ObjectStore], *, default: ObjectStore, cluster: str, node_id: int
) -> None:
    """Raise StorageError when other nodes are registered, and no store of this one has anything of the cluster.

    Each node claims its stores before it registers. So this one has other stores, and the others could not read what it
    would upload. It may have more stores than they have: one that they have claimed is enough.
    """
    others = [node.node_id for node in await catalog.list_nodes() if node.node_id != node_id]
    if not others:
        return
    for store in stores.values():
        if await check_claim(store, cluster, catalog.identity()):
            return
    if await find_object(stores, cluster) is None and await newest_manifest_key(default, cluster) is None:
        raise StorageError(
            f"the object store {default.name!r} holds nothing of cluster {cluster!r}, to which node {others[0]} "
            "belongs: all nodes need the same store. Check its path, or its bucket and endpoint (objects.*)"
        )


async def _are_missing(store: ObjectStore, keys: Sequence[str]) -> bool:
    for key in keys:
        try:
            await store.get(key, 0, 1)
        except ObjectNotFound:
            continue
        return False
    return True


async def find_object(stores: Mapping[str, ObjectStore], cluster: str) -> str | None:
    """Return store and key of any object of the cluster; None if there is none among the first of each store.

    One LIST call for a store that only this cluster uses.
    """
    for name, store in stores.items():
        looked_at = 0
        async for stored in store.list():
            parsed = parse_object_key(stored.key)
            if parsed is not None and parsed[0] == cluster:
                return f"{name}:{stored.key}"
            looked_at += 1
            if looked_at == PROBE_OBJECTS_MAX:
                break
    return None
