"""Marks in the object store of who owns streams since the last manifest: what a catalog that is lost has known of it.

A stream gets another owner in the catalog, and its newest records are in the log of that owner only. A manifest says so
about a second later. If the catalog is lost before that, or goes back, a rebuild would take the records of the former
owner's log, and those that the new owner has acknowledged would be void. So the new owner puts a mark after the
catalog's answer and before it accepts appends: beside the marks of uploads (`object/marks.py`), under a key of its own.
Of several owners of a stream the one with the highest epoch is the last, in marks and manifests alike.

Invariants:

- A mark names owners that the catalog has reported as committed: one that may still be refused is in no mark.
- The former owner keeps the records of a stream in its log until the mark is in the store.
- A mark is deleted only when a manifest is in the store whose streams have at least the epochs that it names.

A store that refuses a mark, or does not answer for `PUT_S`, holds nothing up: only the loss of both at the same time
would be noticed.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.manifest_state import OwnedStreams
from anabranch.s3stream.catalog.values import Takeover, WalInfo, WalState
from anabranch.s3stream.errors import CorruptObject, ObjectExists, ObjectNotFound, StorageError
from anabranch.s3stream.model import StreamInfo
from anabranch.s3stream.object.marks import Mark, MarkPlace
from anabranch.s3stream.store.interface import ObjectStore

PUT_S: Final = 10.0
"""Longest wait for the store before streams are served without a mark: one slow answer is no outage."""
AWAY_S: Final = 1.0
"""The same after such a wait, until the store has taken a mark again."""
TAIL_BYTES: Final = 1 << 20

log = structlog.get_logger(__name__)


class OwnerMarks:
    """The marks of owners that one node puts and deletes."""

    def __init__(self, place: MarkPlace, catalog: Catalog, node_id: int, new_writer_id: Callable[[], str]) -> None:
        self._place = place
        self._catalog = catalog
        self._node_id = node_id
        self._new_writer_id = new_writer_id
        self._wals: dict[str, WalInfo] = {}
        """Logs that were looked up in the catalog, by id."""
        self._standing: dict[str, Mapping[int, int]] = {}
        """Keys of this node's marks that the store has or may have, with the streams' epochs."""
        self._limit_s = PUT_S

    async def put(self, infos: Iterable[StreamInfo]) -> None:
        """Put a mark of the owners of streams, as the catalog has answered them.

        It waits for the store for a limited time. A failure is logged only: the next manifest names the owners, too.
        """
        owned: dict[tuple[int, str], list[StreamInfo]] = defaultdict(list)
        for info in infos:
            if info.wal_id:
                owned[info.node_id, info.wal_id].append(info)
        limit_s = self._limit_s  # another call may change it meanwhile
        try:
            async with asyncio.timeout(limit_s):
                for (node_id, wal_id), some in owned.items():
                    await self._put(await self._find_wal(node_id, wal_id), some)
                    self._limit_s = PUT_S
        except (StorageError, TimeoutError) as error:
            log.warning(
                "the store has no mark of new owners: a catalog that is lost before the next manifest forgets them",
                streams=sum(map(len, owned.values())),
                reason=str(error) or f"the store has not answered within {limit_s:g} s",
            )
            self._limit_s = AWAY_S

    async def _find_wal(self, node_id: int, wal_id: str) -> WalInfo:
        if wal_id not in self._wals:
            self._wals.update({wal.wal_id: wal for wal in await self._catalog.list_wals(node_id)})
        if wal_id not in self._wals:
            raise StorageError(f"the catalog does not know the log {wal_id} of node {node_id}")
        return self._wals[wal_id]

    async def _put(self, wal: WalInfo, infos: Sequence[StreamInfo]) -> None:
        seen = self._catalog.seen
        # Each epoch of a stream is given once, so no other mark has this key.
        first = infos[0].stream_id, infos[0].epoch
        mark = Mark(self._node_id, seen.uploads.get(self._node_id, 0), seen.change, first)
        owned = OwnedStreams(wal, {info.stream_id: info.epoch for info in infos})
        key = self._place.key(mark)
        try:
            with suppress(ObjectExists):  # an earlier attempt has written it
                await self._place.store.put(key, [encode_owners(owned)], writer_id=self._new_writer_id())
        finally:  # not before: a manifest that is written meanwhile would delete what is not there yet
            self._standing[key] = owned.epochs

    async def find(self) -> None:
        """Take over the marks that earlier processes of the node have left. Raises StoreError."""
        for key in await _keys(self._place, self._node_id):
            try:
                owned = await _read(self._place.store, key)
            except CorruptObject as error:
                log.warning("a damaged mark of owners is left in the store", reason=str(error))
            else:
                if owned is not None:
                    self._standing[key] = owned.epochs

    @property
    def are_standing(self) -> bool:
        """True while marks of this node may be in the store."""
        return bool(self._standing)

    async def delete_known(self, epochs: Mapping[int, int]) -> None:
        """Delete the marks that say nothing new beside a manifest that is in the store, given its streams' epochs.

        Failed deletions are repeated the next time.
        """
        # A catalog that has gone back has lower epochs, until that is noticed. Streams without one were deleted.
        known = [
            key
            for key, marked in self._standing.items()
            if all(epochs.get(stream_id, epoch) >= epoch for stream_id, epoch in marked.items())
        ]
        try:
            failures = await self._place.store.delete(known) if known else {}
        except StorageError as error:
            log.warning("marks of owners are left in the store", reason=str(error))
            return
        for key in known:
            if key in failures:
                log.warning("a mark of owners is left in the store", key=key, reason=str(failures[key]))
            else:
                del self._standing[key]


async def read_owner_marks(place: MarkPlace) -> Sequence[OwnedStreams]:
    """Return what the marks of all nodes say, leaving out those that are deleted meanwhile.

    Raises StoreError, and CorruptObject for a damaged mark.
    """
    found = [await _read(place.store, key) for key in await _keys(place)]
    return [owned for owned in found if owned is not None]


async def _keys(place: MarkPlace, node_id: int | None = None) -> Sequence[str]:
    return [place.key(mark) for mark in await place.list(node_id) if mark.opened is not None]


async def _read(store: ObjectStore, key: str) -> OwnedStreams | None:
    """Return the content of a mark; None if there is none any more."""
    try:
        tail = await store.get_tail(key, TAIL_BYTES)
        data = tail.data if len(tail.data) == tail.size_bytes else await store.get(key, 0, tail.size_bytes)
    except ObjectNotFound:
        return None
    return decode_owners(bytes(data), where=f"{store.name}:{key}")


def encode_owners(owned: OwnedStreams) -> bytes:
    """Encode the content of a mark, as `maintain/MANIFEST.md` describes it."""
    wal = owned.wal
    place = [wal.wal_id, wal.node_id, wal.node_epoch, wal.location, wal.kind, wal.takeover.value, wal.seen_ms]
    return json.dumps({"log": place, "streams": list(owned.epochs.items())}, separators=(",", ":")).encode()


def decode_owners(data: bytes, *, where: str) -> OwnedStreams:
    """Decode the content of a mark. Raises CorruptObject."""
    try:
        content = json.loads(data)
        wal_id, node_id, node_epoch, location, kind, takeover, seen_ms = content["log"]
        wal = WalInfo(
            wal_id, node_id, node_epoch, location, WalState.OPEN, seen_ms, takeover=Takeover(takeover), kind=kind
        )
        return OwnedStreams(wal, dict(content["streams"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObject(f"mark {where}: damaged: {error!r}") from None
