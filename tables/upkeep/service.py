"""The upkeep of all tables that a node commits: rounds of one table after the other.

A table whose round fails waits a little longer each time, and does not hold up the others. Other nodes commit the
tables of topics of which this one leads other partitions only; for these it uploads what has waited.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog

from anabranch.extras import MissingExtra
from anabranch.s3stream.errors import NodeFenced, StorageError
from anabranch.s3stream.tasks import side_by_side
from anabranch.tables.process import ColumnsError
from anabranch.tables.upkeep.abandoned import AbandonedTables
from anabranch.tables.upkeep.committer import Left, TableCommitter
from anabranch.tables.upkeep.context import OtherCatalogs, TableTopic, TableTopics, UpkeepContext
from anabranch.tables.upkeep.plan import SHARE_BYTES_MAX
from anabranch.tables.upkeep.publisher import TablePublisher
from anabranch.tables.upkeep.source import BlockSource
from anabranch.tables.upkeep.status import TableStatus, UpkeepStats

log = structlog.get_logger(__name__)

LOOK_S_MIN: Final = 0.1
LOOK_S_MAX: Final = 5.0
"""Longest time between two looks at a table: whether so much waits that it is written before its interval is over."""
LOOKS: Final = 4
"""Looks within an interval of commits."""
BACKOFF_S_MIN: Final = 1.0
BACKOFF_S_MAX: Final = 60.0


class NotLeader(StorageError):
    """The node no longer leads the topic's first partition: its successor goes on."""


@dataclass(slots=True)
class _Table:
    """A table that this node commits. Times are those of the event loop."""

    committer: TableCommitter
    due_s: float
    look_s: float
    has_files: bool = False
    """True if the last round has left files to work on."""
    backoff_s: float = 0.0
    hurried: bool = False
    """True if a commit was asked for since the last round began."""

    @property
    def interval_s(self) -> float:
        """Longest time between two commits."""
        return self.committer.topic.options.commit_interval_ms / 1000

    def change(self, topic: TableTopic, now_s: float) -> None:
        """Let the topic be as it is now: an interval that became shorter ends earlier."""
        self.committer.topic = topic
        if not self.backoff_s:
            self.due_s = min(self.due_s, now_s + self.interval_s)
            self.look_s = min(self.look_s, now_s + self.pause_s)

    @property
    def pause_s(self) -> float:
        """Time between two looks."""
        return min(LOOK_S_MAX, max(LOOK_S_MIN, self.interval_s / LOOKS))


class TableUpkeep:
    """Commits the tables of a node, while `run` runs."""

    def __init__(self, context: UpkeepContext, others: OtherCatalogs, topics: TableTopics) -> None:
        self.stats: Final = UpkeepStats()
        self.context: Final = context
        self.others: Final = others
        self.topics: Final = topics
        self._source: Final = BlockSource(context.catalog, context.stores, context.cluster)
        self._tables: dict[bytes, _Table] = {}
        """By topic id."""
        self._abandoned: Final = AbandonedTables(context)
        self._publisher: Final = TablePublisher(context, others, topics, self.stats)
        self._changed: Final = asyncio.Event()

    @property
    def cpu_s(self) -> float:
        """CPU time of the process that makes columns."""
        return self.context.columns.cpu_s

    @property
    def process_id(self) -> int | None:
        """Id of that process; None if none runs."""
        return self.context.columns.process_id

    def statuses(self) -> Sequence[TableStatus]:
        """Return the states of the tables that this node commits, by topic."""
        for topic_id, table in self._tables.items():
            table.committer.status.publication = self._publisher.status_of(topic_id)
        return sorted((each.committer.status for each in self._tables.values()), key=lambda each: each.topic)

    async def run(self) -> None:
        """Commit tables until cancelled. Raises NodeFenced: another process owns the node's id."""
        await asyncio.to_thread(shutil.rmtree, self.context.folder, ignore_errors=True)
        await side_by_side([self._commit(), self._publisher.run()])

    async def _commit(self) -> None:
        while True:
            self._changed.clear()
            pause_s = await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def note_change(self) -> None:
        """Look again soon: topics, or what this node leads of them, have changed."""
        self._changed.set()
        self._publisher.note_change()

    def hurry(self, topic: str) -> None:
        """Upload what this node has of a topic, and commit the topic's table soon, if this node commits it."""
        for each in self.topics.followed():
            if each.name == topic:
                self.topics.request_upload(each, waited_ms=0)
        for table in self._tables.values():
            if table.committer.topic.name == topic:
                table.hurried = True
                table.due_s = table.look_s = 0.0
        self._changed.set()

    async def close(self) -> None:
        """End the processes that make columns and publish, and the requests under way with them."""
        await self.others.process.close()
        await self.context.columns.close()

    async def look(self) -> float:
        """Make what is due; returns the time until the next look, in seconds. Raises NodeFenced."""
        self._note_topics()
        loop = asyncio.get_running_loop()
        for topic in self.topics.followed():
            self.topics.request_upload(topic, waited_ms=topic.options.commit_interval_ms // 2)
        for topic_id, table in list(self._tables.items()):
            if topic_id in self._tables and loop.time() >= table.look_s:
                await self._look_at(table)
        if await self._abandoned.look() and not self._tables:
            await self.context.columns.ask(lambda process: process.rest())
        looks = [each.look_s for each in self._tables.values()]
        followed = [each.options.commit_interval_ms / 1000 / LOOKS for each in self.topics.followed()]
        waits = [each - loop.time() for each in looks] + followed
        return max(LOOK_S_MIN, min([LOOK_S_MAX, *waits]))

    def _note_topics(self) -> None:
        """Take over what this node leads now, and let go of what it does not."""
        topics = {topic.topic_id: topic for topic in self.topics.committed()}
        now_s = asyncio.get_running_loop().time()
        for topic_id in self._tables.keys() - topics.keys():
            self._tables.pop(topic_id).committer.forget()
        for topic_id, topic in topics.items():
            if topic_id in self._tables:
                self._tables[topic_id].change(topic, now_s)
            else:
                context = replace(self.context, step=self.step_of(topic_id))
                committer = TableCommitter(context, self._source, self.stats, topic)
                self._tables[topic_id] = _Table(committer, now_s, now_s)

    def step_of(self, topic_id: bytes) -> Callable[[str], Awaitable[None]]:
        """Return the steps of a table: they raise NotLeader once the table is another node's."""

        async def step(name: str) -> None:
            if not any(topic.topic_id == topic_id for topic in self.topics.committed()):
                raise NotLeader(f"this node no longer commits the table: stopped at the step {name!r}")
            await self.context.step(name)

        return step

    async def _look_at(self, table: _Table) -> None:
        """Look at a table, and run a round if it is due. No error of a table stops the others."""
        loop = asyncio.get_running_loop()
        committer = table.committer
        began_s = loop.time()
        table.hurried = False
        try:
            is_due = began_s >= table.due_s
            if is_due:
                await self.topics.upload(committer.topic)
            elif await committer.waiting_bytes() >= SHARE_BYTES_MAX:
                is_due = True
            left = await committer.run(append=is_due) if is_due or table.has_files else Left()
        except NodeFenced:
            raise
        except NotLeader:
            log.info("a table is left to another node", table=committer.topic.name)
            table.look_s = loop.time() + table.pause_s
        except (StorageError, ColumnsError, OSError, MissingExtra) as error:
            self._fail(table, str(error))
        except Exception as error:  # a table that fails does not stop the others
            log.exception("a round of a table failed unexpectedly", table=committer.topic.name)
            self._fail(table, f"{type(error).__name__}: {error}")
        else:
            table.backoff_s = 0.0
            self._publisher.note_version(committer.topic.topic_id, committer.status.version)
            if is_due:
                table.due_s = loop.time() if left.rows or table.hurried else began_s + table.interval_s
            table.has_files = left.files
            table.look_s = loop.time() if left.files else min(table.due_s, loop.time() + table.pause_s)
            if left.is_overtaken and not table.hurried:
                # A job on Spark may have much to commit: rounds beside it would mostly be in vain.
                table.due_s = table.look_s = loop.time() + min(table.interval_s, BACKOFF_S_MAX)

    def _fail(self, table: _Table, reason: str) -> None:
        """Note that a round failed, and let the table wait."""
        topic: TableTopic = table.committer.topic
        line = " ".join(reason.split())
        if line != table.committer.status.last_error:
            log.warning("a table waits: its round failed, and is repeated", table=topic.name, reason=line)
        self.stats.failed_rounds += 1
        table.committer.status.last_error = line
        table.backoff_s = min(BACKOFF_S_MAX, max(BACKOFF_S_MIN, 2 * table.backoff_s))
        table.look_s = table.due_s = asyncio.get_running_loop().time() + table.backoff_s
