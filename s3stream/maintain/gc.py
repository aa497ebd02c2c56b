"""Deletes unused objects: prepared ones whose writer never committed, destroyed ones past their delay.

Invariants:

- Data is deleted after metadata (invariant 4): an object is deleted only while the catalog has it as destroyed. A
  prepared object past its deadline is expired first, so that a slow writer can no longer commit it.
- The bytes of an object that was never committed are deleted only if its own writer wrote them (invariant 5): the
  writer id in the store must equal the catalog's. Otherwise the bytes are kept, with a warning.
- An object that was ever committed is deleted only after `before_deleting` has returned: while the newest manifest in
  the store lists an object, a catalog that is rebuilt from it needs that object.
- An object's row is deleted only when its bytes are gone. Objects that could not be deleted stay for the next round.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogError, StoreError
from anabranch.s3stream.model import ObjectInfo, ObjectState, object_key
from anabranch.s3stream.settings import GcSettings
from anabranch.s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)

Reapable: TypeAlias = tuple[ObjectInfo, str]

KEYS_PER_DELETE: Final = 250
"""Objects of one delete call: several concurrent calls are faster than one with the maximum of S3 (1,000)."""


@dataclass(slots=True)
class GcStats:
    """Counters since the collector was created."""

    rounds: int = 0
    rounds_failed: int = 0
    """Rounds ended by an error of the catalog, or of the store when a manifest was due."""
    expired: int = 0
    """Prepared objects whose writer did not commit in time."""
    deleted: int = 0
    """Objects deleted from the store and forgotten."""
    deleted_bytes: int = 0
    """Sizes from the catalog; expired objects have none."""
    aborted_uploads: int = 0
    foreign: int = 0
    """Objects of another writer under an expired object's key, which are kept."""
    failures: int = 0
    """Deletions that failed; the objects stay for the next round."""


async def _nothing() -> None:
    """Do nothing, in place of a manifest keeper."""


class GarbageCollector:
    """Deletes the objects of `Catalog.list_reapable`. Several collectors may run on one catalog."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        cluster: str,
        now_ms: Callable[[], int],
        settings: GcSettings | None = None,
        check_catalog: Callable[[], Awaitable[None]] = _nothing,
        before_deleting: Callable[[], Awaitable[None]] = _nothing,
        pace: Pace | None = None,
    ) -> None:
        """Create a collector. If one of the two functions raises StorageError, the round ends without deleting.

        `check_catalog` is called before a round that has anything to do: a catalog that has gone back takes an upload
        that it has committed for one that was left. `before_deleting` is called before committed objects are deleted.
        Each call that deletes is a piece of `pace`; None: no limit.
        """
        self._catalog = catalog
        self._stores = stores
        self._cluster = cluster
        self._now_ms = now_ms
        self._settings = settings or GcSettings()
        self._check_catalog = check_catalog
        self._before_deleting = before_deleting
        self._pace = pace
        self.stats = GcStats()

    async def run(self) -> None:
        """Collect periodically until cancelled. An error of the catalog or a store ends the round only."""
        while True:
            await asyncio.sleep(self._settings.period_ms / 1000)
            try:
                await self.collect()
            except (CatalogError, StoreError) as error:
                self.stats.rounds_failed += 1
                log.warning("gc.round_failed", error=str(error))

    async def collect(self) -> int:
        """Run one round over all objects that are due now. Returns the number of deleted objects.

        Raises CatalogError, and the errors of `check_catalog` and `before_deleting`.
        """
        now_ms = self._now_ms()
        done = 0
        checked = False
        failed: set[int] = set()
        while len(failed) < self._settings.failures_max:
            # Objects that failed in this round are still listed, before the others: list as many more.
            limit = self._settings.batch_objects + len(failed)
            listed = await self._catalog.list_reapable(now_ms=now_ms, limit=limit)
            due = [item for item in listed if item[0].object_id not in failed]
            if not due:
                break
            if not checked:
                await self._check_catalog()
                checked = True
            expired = await self._expire(due, now_ms)
            if any(info.committed_ms for info, _ in expired):
                await self._before_deleting()
            gone = await self._delete(expired)
            await self._catalog.forget_objects([info.object_id for info in gone])
            failed |= {info.object_id for info, _ in due} - {info.object_id for info in gone}
            done += len(gone)
            self.stats.deleted_bytes += sum(info.size_bytes for info in gone)
        self.stats.rounds += 1
        self.stats.deleted += done
        self.stats.failures += len(failed)
        return done

    async def _expire(self, due: Sequence[Reapable], now_ms: int) -> Sequence[Reapable]:
        """Expire the prepared objects; returns the objects that may be deleted."""
        prepared = [info.object_id for info, _ in due if info.state is ObjectState.PREPARED]
        if not prepared:
            return due
        expired = set(await self._catalog.expire_objects(prepared, now_ms=now_ms))
        self.stats.expired += len(expired)
        return [item for item in due if item[0].state is ObjectState.DESTROYED or item[0].object_id in expired]

    async def _delete(self, due: Sequence[Reapable]) -> Sequence[ObjectInfo]:
        """Delete bytes and multipart uploads; returns the objects that are gone."""
        gone: list[ObjectInfo] = []
        slots = asyncio.Semaphore(self._settings.calls_in_flight)
        plain: dict[str, list[ObjectInfo]] = defaultdict(list)
        async with asyncio.TaskGroup() as group:
            for info, upload_id in due:
                if info.store not in self._stores:
                    log.warning("gc.unknown_store", object_id=info.object_id, store=info.store)
                elif info.committed_ms == 0:
                    group.create_task(self._delete_uncommitted(info, upload_id, gone, slots))
                else:
                    plain[info.store].append(info)
            for name, infos in plain.items():
                for start in range(0, len(infos), KEYS_PER_DELETE):
                    piece = infos[start : start + KEYS_PER_DELETE]
                    group.create_task(self._delete_batch(self._stores[name], piece, gone, slots))
        return gone

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """Return the turn of one call."""
        return nullcontext() if self._pace is None else self._pace.piece(0)

    async def _delete_uncommitted(
        self, info: ObjectInfo, upload_id: str, gone: list[ObjectInfo], slots: asyncio.Semaphore
    ) -> None:
        store = self._stores[info.store]
        key = object_key(self._cluster, info.object_id)
        async with slots, self._turn():
            try:
                if upload_id:
                    await store.abort_multipart(key, upload_id)
                    self.stats.aborted_uploads += 1
                writer_id = await store.writer_id(key)
                if writer_id == info.writer_id:
                    failures = await store.delete([key])
                    if failures:
                        raise failures[key]
                elif writer_id is not None:
                    self.stats.foreign += 1
                    log.warning("gc.foreign_object", key=key, expected=info.writer_id, found=writer_id)
            except StoreError as error:
                log.warning("gc.not_deleted", key=key, error=str(error))
                return
        gone.append(info)

    async def _delete_batch(
        self, store: ObjectStore, infos: Sequence[ObjectInfo], gone: list[ObjectInfo], slots: asyncio.Semaphore
    ) -> None:
        keys = {object_key(self._cluster, info.object_id): info for info in infos}
        async with slots, self._turn():
            try:
                failures = await store.delete(list(keys))
            except StoreError as error:
                failures = dict.fromkeys(keys, error)
        for key, failure in failures.items():
            log.warning("gc.not_deleted", key=key, error=str(failure))
        gone += [info for key, info in keys.items() if key not in failures]
