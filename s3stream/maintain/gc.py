"""Deletes unused objects, and files of tables: prepared ones never committed, destroyed ones past their delay.

Both are collected by the same rules, in which *object* means either.

Invariants:

- Data is deleted after metadata (invariant 4): an object is deleted only while the catalog has it as destroyed. A
  prepared object past its deadline is expired first, so that a slow writer can no longer commit it.
- The bytes of an object that was never committed are deleted only if its own writer wrote them (invariant 5): the
  writer id in the store must equal the catalog's. Otherwise the bytes are kept, with a warning.
- An object that was ever committed is deleted only after `before_deleting` has returned: while the newest manifest in
  the store lists an object, a catalog that is rebuilt from it needs that object.
- A table's file is due only while no unexpired snapshot names it.
- An object's row is deleted only when its bytes are gone. Objects that could not be deleted stay for the next round.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogError, StoreError
from anabranch.s3stream.model import ObjectState, object_key
from anabranch.s3stream.settings import GcSettings
from anabranch.s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)

KEYS_PER_DELETE: Final = 250
"""Objects of one delete call: several concurrent calls are faster than one with the maximum of S3 (1,000)."""


class Unused(NamedTuple):
    """An object, or a file of a table, that is due."""

    id: int
    key: str
    store: str
    state: ObjectState
    writer_id: str
    upload_id: str
    committed_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """Calls of the catalog about objects, or about files of tables."""

    list_due: Callable[[int, int], Awaitable[Sequence[Unused]]]
    """Receives the time, and how many at most."""
    expire: Callable[[Sequence[int], int], Awaitable[Sequence[int]]]
    forget: Callable[[Sequence[int]], Awaitable[None]]


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
    """Deletes what the catalog lists as reapable. Several collectors may run on one catalog."""

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
        checked = False

        async def check() -> None:
            nonlocal checked
            if not checked:
                await self._check_catalog()
                checked = True

        tables = self._catalog.tables
        objects = _Kind(
            self._due_objects,
            lambda ids, now: self._catalog.expire_objects(ids, now_ms=now),
            self._catalog.forget_objects,
        )
        files = _Kind(self._due_files, lambda ids, now: tables.expire_files(ids, now_ms=now), tables.forget_files)
        done = failed = 0
        for kind in (objects, files):
            gone, kept = await self._collect(kind, now_ms, check)
            done += gone
            failed += kept
        self.stats.rounds += 1
        self.stats.deleted += done
        self.stats.failures += failed
        return done

    async def _due_objects(self, now_ms: int, limit: int) -> Sequence[Unused]:
        return [
            Unused(
                info.object_id,
                object_key(self._cluster, info.object_id),
                info.store,
                info.state,
                info.writer_id,
                upload_id,
                info.committed_ms,
                info.size_bytes,
            )
            for info, upload_id in await self._catalog.list_reapable(now_ms=now_ms, limit=limit)
        ]

    async def _due_files(self, now_ms: int, limit: int) -> Sequence[Unused]:
        return [
            Unused(
                file.file_id,
                file.file_key,
                file.store,
                file.state,
                file.writer_id,
                file.upload_id,
                file.committed_ms,
                file.size_bytes,
            )
            for file in await self._catalog.tables.list_reapable(now_ms=now_ms, limit=limit)
        ]

    async def _collect(self, kind: _Kind, now_ms: int, check: Callable[[], Awaitable[None]]) -> tuple[int, int]:
        """Collect one kind; returns the numbers of those that were deleted, and that were not."""
        done = 0
        failed: set[int] = set()
        while len(failed) < self._settings.failures_max:
            # What failed in this round is still listed, before the others: list as many more.
            listed = await kind.list_due(now_ms, self._settings.batch_objects + len(failed))
            due = [item for item in listed if item.id not in failed]
            if not due:
                break
            await check()
            expired = await self._expire(kind, due, now_ms)
            if any(item.committed_ms for item in expired):
                await self._before_deleting()
            gone = await self._delete(expired)
            await kind.forget([item.id for item in gone])
            failed |= {item.id for item in due} - {item.id for item in gone}
            done += len(gone)
            self.stats.deleted_bytes += sum(item.size_bytes for item in gone)
        return done, len(failed)

    async def _expire(self, kind: _Kind, due: Sequence[Unused], now_ms: int) -> Sequence[Unused]:
        """Expire the prepared ones; returns those that may be deleted."""
        prepared = [item.id for item in due if item.state is ObjectState.PREPARED]
        if not prepared:
            return due
        expired = set(await kind.expire(prepared, now_ms))
        self.stats.expired += len(expired)
        return [item for item in due if item.state is ObjectState.DESTROYED or item.id in expired]

    async def _delete(self, due: Sequence[Unused]) -> Sequence[Unused]:
        """Delete bytes and multipart uploads; returns the objects that are gone."""
        gone: list[Unused] = []
        slots = asyncio.Semaphore(self._settings.calls_in_flight)
        plain: dict[str, list[Unused]] = defaultdict(list)
        async with asyncio.TaskGroup() as group:
            for item in due:
                if item.store not in self._stores:
                    log.warning("gc.unknown_store", key=item.key, store=item.store)
                elif item.committed_ms == 0:
                    group.create_task(self._delete_uncommitted(item, gone, slots))
                else:
                    plain[item.store].append(item)
            for name, items in plain.items():
                for start in range(0, len(items), KEYS_PER_DELETE):
                    piece = items[start : start + KEYS_PER_DELETE]
                    group.create_task(self._delete_batch(self._stores[name], piece, gone, slots))
        return gone

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """Return the turn of one call."""
        return nullcontext() if self._pace is None else self._pace.piece(0)

    async def _delete_uncommitted(self, item: Unused, gone: list[Unused], slots: asyncio.Semaphore) -> None:
        store = self._stores[item.store]
        async with slots, self._turn():
            try:
                if item.upload_id:
                    await store.abort_multipart(item.key, item.upload_id)
                    self.stats.aborted_uploads += 1
                writer_id = await store.writer_id(item.key)
                if writer_id == item.writer_id:
                    failures = await store.delete([item.key])
                    if failures:
                        raise failures[item.key]
                elif writer_id is not None:
                    self.stats.foreign += 1
                    log.warning("gc.foreign_object", key=item.key, expected=item.writer_id, found=writer_id)
            except StoreError as error:
                log.warning("gc.not_deleted", key=item.key, error=str(error))
                return
        gone.append(item)

    async def _delete_batch(
        self, store: ObjectStore, items: Sequence[Unused], gone: list[Unused], slots: asyncio.Semaphore
    ) -> None:
        keys = {item.key: item for item in items}
        async with slots, self._turn():
            try:
                failures = await store.delete(list(keys))
            except StoreError as error:
                failures = dict.fromkeys(keys, error)
        for key, failure in failures.items():
            log.warning("gc.not_deleted", key=key, error=str(failure))
        gone += [item for key, item in keys.items() if key not in failures]
