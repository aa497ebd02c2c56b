"""Publishes tables in other catalogs of Iceberg: each version that this node's tables have reached, after its commit.

A table's entry there may be behind the table, and is never ahead of it: it is what this cluster's catalog has
committed. An attempt depends on nothing but these two catalogs, so a successor goes on where another node has stopped.
The options of a table in our catalog name the other one that has an entry of it. That entry is removed when
`table.publish` no longer names this catalog, and when the table is dropped.

The other catalog knows nothing of this cluster's fences. A node that was away for long may put back what its successor
has removed. So each attempt reads our catalog again when it has published, and takes away what has no reason any more:
the config changes, or the table goes, before its entry does.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from anabranch.extras import MissingExtra
from anabranch.s3stream.catalog.table_values import TableInfo
from anabranch.s3stream.errors import NodeFenced, NotFound, StorageError
from anabranch.tables.process import ColumnProcess, ColumnsError
from anabranch.tables.publication import ExternalCatalog, Place, Publish, Withdraw
from anabranch.tables.upkeep.context import OtherCatalogs, TableTopic, TableTopics, UpkeepContext
from anabranch.tables.upkeep.options import ENABLE, PUBLISH
from anabranch.tables.upkeep.status import PublicationStatus, UpkeepStats
from anabranch.tables.upkeep.transfers import TableFiles

log = structlog.get_logger(__name__)

PUBLISHED: Final = "published"
"""Option of a table in the catalog: name of the other catalog that has, or may have, an entry of it."""
BACKOFF_S_MIN: Final = 1.0
BACKOFF_S_MAX: Final = 300.0
LEFT_S_MAX: Final = 60.0
"""Longest time between two looks at a table that this node no longer commits, and that may be dropped."""
LOOK_S_MAX: Final = 60.0


class UnknownCatalog(Exception):
    """The settings of this node have no catalog of this name."""


@dataclass(slots=True)
class _Pause:
    """Growing time between attempts, and why the last one failed."""

    until_s: float = 0.0
    """By the clock of the event loop."""
    length_s: float = 0.0
    reason: str = ""

    def grow(self, now_s: float, reason: str = "", *, max_s: float = BACKOFF_S_MAX) -> None:
        self.length_s = min(max_s, max(BACKOFF_S_MIN, 2 * self.length_s))
        self.until_s, self.reason = now_s + self.length_s, reason


@dataclass(slots=True)
class _Entry:
    """A table whose topic this node commits, or has committed."""

    topic: TableTopic
    status: PublicationStatus
    due: bool = True
    """True if something may have to be done."""
    info: TableInfo | None = None
    """The table as it was looked at last."""
    metadata_file: int = 0
    """File id of the metadata that the other catalog shows, as far as this node knows."""
    pause: _Pause = field(default_factory=_Pause)


class TablePublisher:
    """Keeps the entries of a node's tables in other catalogs, while `run` runs."""

    def __init__(self, context: UpkeepContext, others: OtherCatalogs, topics: TableTopics, stats: UpkeepStats) -> None:
        self._context: Final = context
        self._others: Final = others
        self._topics: Final = topics
        self._stats: Final = stats
        self._tables: Final = context.catalog.tables
        self._files: Final = TableFiles(context.catalog.tables, context.stores, context.pace)
        self._folder: Final = context.folder / "publish"
        self._entries: dict[bytes, _Entry] = {}
        """By topic id."""
        self._left: dict[bytes, _Entry] = {}
        """Those that this node no longer commits, and whose table it had published, by topic id."""
        self._away: dict[str, _Pause] = {}
        """Catalogs that could not be used, by name."""
        self._changed: Final = asyncio.Event()

    def note_change(self) -> None:
        """Look again soon: topics, or what this node leads of them, have changed."""
        self._changed.set()

    def note_version(self, topic_id: bytes, version: int) -> None:
        """Note which version a table has now."""
        entry = self._entries.get(topic_id)
        if entry is None or not entry.topic.options.publish or version == entry.status.version:
            return
        if not entry.status.lacking_since_ms:
            entry.status.lacking_since_ms = self._context.now_ms()
        entry.due = True
        self._changed.set()

    def status_of(self, topic_id: bytes) -> PublicationStatus | None:
        """Return what another catalog shows of a topic's table; None if it is in none."""
        entry = self._entries.get(topic_id)
        if entry is None or not entry.status.catalog:
            return None
        away = self._away.get(entry.status.catalog)
        entry.status.error = entry.pause.reason or ("" if away is None else away.reason)
        return entry.status

    async def run(self) -> None:
        """Publish tables until cancelled. Raises NodeFenced."""
        while True:
            self._changed.clear()
            pause_s = await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def look(self) -> float:
        """Do what is due; returns the time until the next look, in seconds. Raises NodeFenced."""
        self._note_topics()
        clock = asyncio.get_running_loop().time
        for entry in list(self._entries.values()):
            if entry.due and clock() >= self._ready_s(entry):
                entry.due = False  # a commit meanwhile sets it again
                if not await self._attempt(entry, self._bring(entry)):
                    entry.due = True
        for entry in list(self._left.values()):
            if clock() >= self._ready_s(entry):
                await self._attempt(entry, self._look_after(entry))
        waiting = [*(each for each in self._entries.values() if each.due), *self._left.values()]
        return max(0.0, min([LOOK_S_MAX, *(self._ready_s(each) - clock() for each in waiting)]))

    def _ready_s(self, entry: _Entry) -> float:
        """Return the time of the next attempt."""
        away = self._away.get(entry.status.catalog)
        return max(entry.pause.until_s, 0.0 if away is None else away.until_s)

    def _note_topics(self) -> None:
        """Take over what this node commits now, and look after what it does not commit any more."""
        topics = {topic.topic_id: topic for topic in self._topics.committed()}
        for topic_id in self._entries.keys() - topics.keys():
            entry = self._entries.pop(topic_id)
            if entry.info is not None and PUBLISHED in entry.info.options:
                entry.pause = _Pause()
                self._left[topic_id] = entry
        for topic_id, topic in topics.items():
            known = self._entries.get(topic_id) or self._left.pop(topic_id, None)
            if known is None or known.status.catalog != topic.options.publish:
                fresh = _Entry(topic, PublicationStatus(topic.options.publish))
                fresh.info = None if known is None else known.info
                known = fresh
            known.topic = topic
            self._entries[topic_id] = known

    async def _attempt(self, entry: _Entry, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work for a table; returns False if it failed, and is to be repeated."""
        now_s = asyncio.get_running_loop().time
        try:
            await work
        except NodeFenced:
            raise
        except _CatalogAway as error:
            if error.name != entry.status.catalog:  # the one that has its entry, and is to have it no more
                entry.pause.until_s = self._away[error.name].until_s
            self._stats.failed_publications += 1
            return False
        except (StorageError, ColumnsError, OSError, MissingExtra, UnknownCatalog) as error:
            reason = " ".join(str(error).split())
        except Exception as error:  # a table that fails does not stop the others
            log.exception("the publication of a table failed unexpectedly", table=entry.topic.name)
            reason = f"{type(error).__name__}: {error}"
        else:
            if entry.pause.reason:
                entry.pause = _Pause()
            return True
        self._stats.failed_publications += 1
        if reason != entry.pause.reason:
            log.warning("a table is not published: it is tried again", table=entry.topic.name, reason=reason)
        entry.pause.grow(now_s(), reason)
        return False

    async def _bring(self, entry: _Entry) -> None:
        """Let the other catalog have what the table is now."""
        before = entry.info
        info = await self._tables.of_topic(entry.topic.topic_id)
        if before is not None and (info is None or info.table_id != before.table_id):
            await self._withdraw(before)  # it was dropped
            entry.info, entry.metadata_file = None, 0
        entry.info = info
        wanted = entry.topic.options.publish
        if info is None:
            return
        if info.options.get(PUBLISHED, wanted) != wanted:
            await self._withdraw(info)
            info = entry.info = await self._note(info, {})
        if not wanted:
            return
        catalog = self._catalog(wanted)
        if not info.metadata_file:
            return
        if info.metadata_file != entry.metadata_file:
            if not entry.status.lacking_since_ms:
                entry.status.lacking_since_ms = self._context.now_ms()
            if PUBLISHED not in info.options:
                info = entry.info = await self._note(info, {PUBLISHED: wanted})
            await self._publish(catalog, info)
            self._stats.published += 1
        entry.metadata_file, entry.status.version, entry.status.lacking_since_ms = info.metadata_file, info.version, 0

    async def _look_after(self, entry: _Entry) -> None:
        """Remove the entry of a table that was dropped, or is not wanted there; forget one that another node commits.

        A table that nobody commits any more gets its last version, which it may have lacked.
        """
        info, topic_id = entry.info, entry.topic.topic_id
        assert info is not None, "it was published"
        try:
            found = (await self._tables.read(info.table_id)).info
        except NotFound:
            await self._withdraw(info)
        else:
            name, is_abandoned = found.options.get(PUBLISHED), await self._is_abandoned(topic_id)
            is_wanted = name is None or not is_abandoned or await self._is_wanted(found, name)
            if not is_wanted:
                await self._withdraw(found)
                await self._note(found, {})
            elif name is not None and is_abandoned and found.metadata_file != entry.metadata_file:
                await self._publish(self._catalog(name), found)
                entry.metadata_file = found.metadata_file
            if is_wanted and (is_abandoned or found.snapshot_id == info.snapshot_id):  # no committer has added any
                entry.pause.grow(asyncio.get_running_loop().time(), max_s=LEFT_S_MAX)
                return
        self._left.pop(topic_id, None)

    async def _is_abandoned(self, topic_id: bytes) -> bool:
        configs = await self._context.catalog.list_topic_configs([topic_id])
        return configs.get(topic_id, {}).get(ENABLE) != "true"

    async def _publish(self, catalog: ExternalCatalog, info: TableInfo) -> None:
        file = (await self._tables.get_files([info.metadata_file])).get(info.metadata_file)
        if file is None:
            raise NotFound(f"version {info.version} of table {info.name} has passed: the next one is published")
        path = self._folder / f"{file.file_id:016x}"
        if catalog.type == "rest":
            self._folder.mkdir(parents=True, exist_ok=True)
            await self._files.fetch(file, path)
        request = Publish(catalog, self._place(info), self._files.uri(file), str(path))
        await self._context.step("publishing")
        try:
            await self._ask(catalog.name, lambda process: process.publish(request))
        finally:
            path.unlink(missing_ok=True)
        await self._context.step("published")
        if not await self._is_wanted(info, catalog.name):
            await self._withdraw(info)
            raise NotFound(f"table {info.name} is published in {catalog.name} no more: it was removed again")

    async def _is_wanted(self, info: TableInfo, name: str) -> bool:
        """Return whether a table exists whose topic wants it in a catalog, or is gone."""
        found = await self._tables.of_topic(info.topic_id)
        if found is None or found.table_id != info.table_id:
            return False
        configs = (await self._context.catalog.list_topic_configs([info.topic_id])).get(info.topic_id)
        return configs is None or configs.get(PUBLISH) == name

    async def _withdraw(self, info: TableInfo) -> None:
        """Remove the entry that the options of a table tell of."""
        name = info.options.get(PUBLISHED)
        if name is None:
            return
        if name not in self._others.by_name:
            log.warning(
                "the entry of a table stays in a catalog that is not configured any more", table=info.name, catalog=name
            )
            return
        request = Withdraw(self._catalog(name), self._place(info))
        await self._ask(name, lambda process: process.withdraw(request))
        log.info("a table was removed from another catalog", table=info.name, catalog=name)

    async def _ask(self, name: str, request: Callable[[ColumnProcess], None]) -> None:
        """Make a request to another catalog. Raises _CatalogAway if no table could be published there."""
        try:
            await self._others.process.ask(request)
        except ColumnsError as error:
            if error.kind != "catalog":
                raise
            away, reason = self._away.setdefault(name, _Pause()), str(error)
            if reason != away.reason:
                log.warning("a catalog cannot be used: its tables stay as they are there", catalog=name, reason=reason)
            away.grow(asyncio.get_running_loop().time(), reason)
            raise _CatalogAway(name) from None
        if self._away.pop(name, None) is not None:
            log.info("a catalog can be used again", catalog=name)

    async def _note(self, info: TableInfo, noted: Mapping[str, str]) -> TableInfo:
        """Note in the table's options which catalog has an entry of it."""
        others = {name: value for name, value in info.options.items() if name != PUBLISHED}
        await self._tables.set_options(info.table_id, {**others, **noted})
        return replace(info, options={**others, **noted})

    def _catalog(self, name: str) -> ExternalCatalog:
        catalog = self._others.by_name.get(name)
        if catalog is None:
            raise UnknownCatalog(f"{PUBLISH}={name}: this node has no such catalog: add [table_catalogs.{name}]")
        return catalog

    def _place(self, info: TableInfo) -> Place:
        return Place(info.name, info.table_id.hex(), self._files.store(info.store).uri(info.location))


class _CatalogAway(Exception):
    """A catalog cannot be used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
