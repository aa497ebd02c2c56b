"""Keeps the manifest of a node in the object store up to date.

Invariants:

- Of two manifests of a catalog, the one with the higher number has the later state: the catalog allocates the numbers,
  and a state is written under a number only if that was still the newest when the state was read.
- The objects that the newest manifest lists as committed are in the store: the collector deletes only after
  `ensure_current`.
- A change of a topic or a config neither waits for the store nor fails with it. A failed write is repeated, and `stats`
  has the error until it succeeds.
- Nothing is written while nothing has changed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.manifest_state import CatalogState
from anabranch.s3stream.errors import StorageError, StoreError
from anabranch.s3stream.maintain.manifest import (
    Manifest,
    encode_manifest,
    manifest_key,
    manifest_prefix,
    parse_manifest_key,
)
from anabranch.s3stream.model import NodeIdentity
from anabranch.s3stream.object.owner_marks import OwnerMarks
from anabranch.s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)

RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class ManifestSettings:
    """Intervals and number of manifests."""

    delay_ms: int = 1_000
    """Delay from a change of topics or configs to its manifest; changes meanwhile go into the same one."""
    period_ms: int = 60_000
    """Interval of checks for other changes: new objects, trimmed streams."""
    stop_timeout_ms: int = 5_000
    """Time limit of a stopping node's last write."""
    kept: int = 3
    """Number of a node's manifests that are kept."""


@dataclass(slots=True)
class ManifestStats:
    """Counters since the keeper was created, and the last manifest."""

    writes: int = 0
    failures: int = 0
    sequence: int = 0
    """Number of the last manifest written; 0: none."""
    written_ms: int = 0
    """Time of its write."""
    size_bytes: int = 0
    """Its size, compressed."""
    error: str | None = None
    """Error that keeps the newest state out of the store; None while it is in the store."""


class ManifestKeeper:
    """Writes the manifests of one node: `run` while it serves, then `stop`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        store: ObjectStore,
        cluster: str,
        node: NodeIdentity,
        now_ms: Callable[[], int],
        new_writer_id: Callable[[], str],
        owner_marks: OwnerMarks,
        settings: ManifestSettings | None = None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._cluster = cluster
        self._node = node
        self._now_ms = now_ms
        self._new_writer_id = new_writer_id
        self._owner_marks = owner_marks
        self._settings = settings or ManifestSettings()
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written: CatalogState | None = None
        self._listed = False
        self._own: list[int] = []
        """Numbers of this node's manifests in the store, oldest first."""
        self.stats = ManifestStats()
        catalog.watch_metadata(self._changed.set)

    async def run(self) -> None:
        """Write a manifest now and after every change, until cancelled."""
        retry_s = RETRY_S_MIN
        while True:
            try:
                await self.ensure_current()
                retry_s = RETRY_S_MIN
            except StorageError as error:
                self._failed(error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
            else:
                await self._wait()

    async def stop(self) -> None:
        """Try to write the last state within the stop timeout; otherwise the next start writes it."""
        try:
            async with asyncio.timeout(self._settings.stop_timeout_ms / 1000):
                await self.ensure_current()
        except (StorageError, TimeoutError) as error:
            self._failed(error)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._settings.period_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._settings.delay_ms / 1000)

    async def ensure_current(self) -> None:
        """Make sure that a manifest with the catalog's present state is in the store. Raises StorageError."""
        async with self._writing:
            changed = self._changed.is_set()
            self._changed.clear()
            try:
                await self._list_own()
                newest, state = await self._catalog.read_state()
                # Write after a change made here even if it restored the state written last: another node may have
                # written the state in between.
                if state != self._written or (changed and newest != self.stats.sequence):
                    await self._write(*await self._numbered_state())
                await self._delete_marks()
            except BaseException:
                self._changed.set()
                raise
        self.stats.error = None

    async def _list_own(self) -> None:
        """List, once, the manifests and marks that earlier processes of the node have left."""
        if self._listed:
            return
        prefix = f"{manifest_prefix(self._cluster)}{self._node.node_id}/"
        keys = [parse_manifest_key(item.key) async for item in self._store.list(prefix)]
        self._own = [key.sequence for key in keys if key is not None]
        await self._owner_marks.find()
        self._listed = True

    async def _delete_marks(self) -> None:
        """Delete the marks of owners that the last manifest makes superfluous."""
        if self._owner_marks.are_standing and self._written is not None:
            await self._owner_marks.delete_known({each.stream_id: each.epoch for each in self._written.streams})

    async def _numbered_state(self) -> tuple[int, CatalogState]:
        """Return a number, and a state that was read before a higher number was allocated."""
        while True:
            number = await self._catalog.next_manifest(max(self._own, default=0))
            newest, state = await self._catalog.read_state()
            if newest == number:
                return number, state

    async def _write(self, number: int, state: CatalogState) -> None:
        manifest = Manifest(number, self._cluster, self._node, self._now_ms(), state)
        data = await asyncio.to_thread(encode_manifest, manifest)
        key = manifest_key(self._cluster, self._node.node_id, number)
        try:
            await self._store.put(key, [data], writer_id=self._new_writer_id())
        except StoreError:
            await self._drop_old(1)  # on a full disk this frees space for the next attempt
            raise
        self._written = state
        self._own.append(number)
        stats = self.stats
        stats.writes += 1
        stats.sequence, stats.written_ms, stats.size_bytes = number, manifest.written_ms, len(data)
        await self._drop_old(self._settings.kept)

    async def _drop_old(self, kept: int) -> None:
        old = self._own[:-kept]
        if not old:
            return
        keys = {number: manifest_key(self._cluster, self._node.node_id, number) for number in old}
        try:
            failed = await self._store.delete(list(keys.values()))
        except StorageError as error:
            log.warning("manifest.old_ones_stay", error=str(error))
            return
        self._own = [number for number in self._own if number not in keys or keys[number] in failed]

    def _failed(self, error: StorageError | TimeoutError) -> None:
        reason = str(error) or "the store does not answer"
        self.stats.failures += 1
        if self.stats.error is None:
            log.warning("manifest.not_written", error=reason)
        self.stats.error = reason
