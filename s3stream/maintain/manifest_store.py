"""Finds and reads the manifests in an object store, and checks a catalog against the newest one."""

from collections.abc import Sequence

import structlog

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogError, CorruptObject, ObjectNotFound, ObjectTooShort
from anabranch.s3stream.maintain.manifest import Manifest, decode_manifest, manifest_prefix, parse_manifest_key
from anabranch.s3stream.object.marks import MarkPlace
from anabranch.s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)


async def manifest_keys(store: ObjectStore, cluster: str) -> Sequence[str]:
    """Return the keys of the manifests, that with the highest number first. Raises StoreError."""
    found = []
    async for item in store.list(manifest_prefix(cluster)):
        key = parse_manifest_key(item.key)
        if key is not None and key.cluster == cluster:
            found.append((key.sequence, item.key))
    return [key for _, key in sorted(found, reverse=True)]


async def newest_manifest_key(store: ObjectStore, cluster: str) -> str | None:
    """Return the key of the manifest with the highest number, or None. Raises StoreError."""
    return next(iter(await manifest_keys(store, cluster)), None)


async def read_manifest(store: ObjectStore, key: str) -> Manifest:
    """Read and check one manifest. Raises StoreError, CorruptObject."""
    where = f"{store.name}:{key}"
    tail = await store.get_tail(key, 1 << 20)
    data = tail.data if len(tail.data) == tail.size_bytes else await store.get(key, 0, tail.size_bytes)
    manifest = decode_manifest(bytes(data), where=where)
    found = parse_manifest_key(key)
    if found is None or (manifest.cluster, manifest.node.node_id, manifest.sequence) != found:
        raise CorruptObject(
            f"manifest {where}: its content is number {manifest.sequence} of node {manifest.node.node_id}, cluster "
            f"{manifest.cluster!r}"
        )
    return manifest


async def check_marks(catalog: Catalog, store: ObjectStore, cluster: str) -> None:
    """Raise CatalogWentBack when the catalog lacks what the marks in the store say; nothing is written to it then."""
    marks = await MarkPlace(store, cluster, catalog.identity()).read()  # first: others commit and put marks meanwhile
    await catalog.check_has(marks)


async def check_catalog_is_newest(catalog: Catalog, store: ObjectStore, cluster: str) -> None:
    """Raise CatalogError when the store knows of a later state of this catalog, or belongs to another one.

    The catalog is then an older copy, such as a restored backup, or a standby that was behind. A node that used it
    would reuse ids and offsets that are in the store already. The newest manifest shows it, or a mark of an upload.
    """
    await check_marks(catalog, store, cluster)
    key = await newest_manifest_key(store, cluster)
    if key is None:
        return
    where = f"{store.name}:{key}"
    found = parse_manifest_key(key)
    assert found is not None, "only keys of manifests are compared"
    known = await catalog.last_manifest()
    try:
        manifest = await read_manifest(store, key)
        catalog_id = manifest.state.catalog_id
    except (CorruptObject, ObjectTooShort) as error:
        log.warning("manifest.damaged", error=str(error))
        catalog_id = catalog.identity()
    except ObjectNotFound:
        catalog_id = catalog.identity()  # its node has written newer ones since
    if catalog_id not in {catalog.identity(), bytes(16)} and any(catalog.identity()):
        raise CatalogError(
            f"the object store {store.name!r} belongs to catalog {catalog_id.hex()} (manifest {where}), and this is "
            f"catalog {catalog.identity().hex()}: check catalog.url and the store"
        )
    if found.sequence > known:
        raise CatalogError(
            f"the catalog is older than the object store: its last manifest is number {known}, the store has number "
            f"{found.sequence} ({where}). If a backup of the catalog was restored: `anabranch catalog rebuild` "
            "creates one from all that the store holds; `anabranch catalog advance` continues with the older one"
        )
