"""The claim of a catalog on an object store: one object that names the catalog whose cluster owns the store.

Two clusters of one name in one store would use the same keys. So a node makes sure of its catalog's claim before it
writes anything else, at each start and for each of its stores. The claim is made by a conditional PUT, which only one
catalog wins. A rebuilt or restored catalog has the id of the lost one, and so keeps the claim. The object's content
decides, so a copy of the store keeps it, too.
"""

import json
from typing import Final

from anabranch.s3stream.errors import CatalogError, CorruptObject, ObjectExists, ObjectNotFound
from anabranch.s3stream.store.interface import ObjectStore

CLAIMS: Final = "claim/"
"""Beginning of the keys of claims."""
_CONTENT_BYTES_MAX: Final = 1024


def claim_key(cluster: str) -> str:
    """Return the key of a cluster's claim."""
    return f"{CLAIMS}{cluster}"


async def check_claim(store: ObjectStore, cluster: str, catalog_id: bytes) -> bool:
    """Return whether the catalog has claimed the store for its cluster; False: no catalog has.

    Raises CatalogError when another catalog has; StoreError, CorruptObject.
    """
    key = claim_key(cluster)
    try:
        content = bytes((await store.get_tail(key, _CONTENT_BYTES_MAX)).data)
    except ObjectNotFound:
        return False
    if content == _content(cluster, catalog_id):
        return True
    try:
        owner = str(json.loads(content)["catalog_id"])
    except (ValueError, TypeError, KeyError):
        raise CorruptObject(f"{store.name}:{key}: not a claim: {content[:100]!r}") from None
    raise CatalogError(
        f"the object store {store.name!r} belongs to another cluster of the name {cluster!r}: catalog {owner} has "
        f"claimed it ({key}), and this is catalog {catalog_id.hex()}. Check catalog.url and the store, or set "
        "node.cluster to another name. If that catalog is lost, `anabranch catalog rebuild` makes it again; if it "
        f"has never held anything, remove {key} from the store"
    )


async def claim_store(store: ObjectStore, cluster: str, catalog_id: bytes) -> None:
    """Claim the store for the catalog's cluster, unless that was done. Raises as `check_claim`."""
    if await check_claim(store, cluster, catalog_id):
        return
    try:
        await store.put(claim_key(cluster), [_content(cluster, catalog_id)], writer_id=catalog_id.hex())
    except ObjectExists:
        if not await check_claim(store, cluster, catalog_id):
            raise  # it was there, and is gone


def _content(cluster: str, catalog_id: bytes) -> bytes:
    return json.dumps({"cluster": cluster, "catalog_id": catalog_id.hex()}).encode()
