"""The groups of one partition of `__consumer_offsets`: a coordinator shard, with the log that its groups share.

An id names one group, of one kind at a time. `membership` handles the requests of members, `offsets` those about
committed offsets.

Invariant: memory shows durable state only. Offsets, and the stored state of a group, change when the log has them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from anabranch.broker.kafka.configs.group_times import GroupTimesGetter
from anabranch.broker.kafka.configs.streams import StreamsConfigsGetter
from anabranch.broker.kafka.coordination.log import JointWrites, KeyValue, LogWriter, WriteDone
from anabranch.broker.kafka.groups.group_table import GroupTable
from anabranch.broker.kafka.groups.interface import Group
from anabranch.broker.kafka.groups.kinds import GroupKinds, create_no_states, default_streams_configs
from anabranch.broker.kafka.groups.member_requests import MembershipManager
from anabranch.broker.kafka.groups.modern.topic_image import NO_TOPICS, TopicImageGetter
from anabranch.broker.kafka.groups.offset_manager import OffsetManager, deleted_at_once
from anabranch.broker.kafka.groups.offsets import GroupOffsets
from anabranch.broker.kafka.groups.records import offset_record
from anabranch.broker.kafka.groups.replay import Replay
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.kafka.groups.shard_group import ShardGroup
from anabranch.broker.kafka.groups.share.requests import CreateStates
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

TopicNamesReader: TypeAlias = Callable[[], Awaitable[Collection[str]]]
"""Reads the names of all topics of the cluster. Raises StorageError."""


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _call_all(waiting: Iterable[WriteDone], error: ErrorCode) -> None:
    for done in waiting:
        done(error)


class GroupShard:
    """Groups whose ids hash to one partition. Methods raise KafkaError with the code for the whole request."""

    def __init__(  # noqa: PLR0913 - the parts of a shard
        self,
        writer: LogWriter,
        settings: GroupSettings,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        topics: TopicImageGetter = lambda: NO_TOPICS,
        consumer_times: GroupTimesGetter | None = None,
        share_times: GroupTimesGetter | None = None,
        create_states: CreateStates = create_no_states,
        streams_configs: StreamsConfigsGetter = default_streams_configs,
        read_topic_names: TopicNamesReader | None = None,
        group_count: Callable[[], int] | None = None,
    ) -> None:
        """`steady_ms` is the clock of deadlines, by default the event loop's.

        `read_topic_names` is called by a load that finds offsets of unknown topics; None keeps these offsets.

        `group_count` returns the number of groups that count towards the limit, by default those of the shard.
        """
        self.writer = writer
        self.loaded = False
        self.unreadable = False
        """The log cannot be read: its groups stay unavailable, and nothing is written over it."""
        self.damage = ""
        self._settings = settings
        self._kinds = GroupKinds(settings, topics, consumer_times, share_times, create_states, streams_configs)
        self._groups = GroupTable(
            settings,
            self._kinds,
            now_ms,
            steady_ms or _loop_ms,
            self._deadline_reached,
            group_count or self.group_count,
        )
        self.membership = MembershipManager(self._groups, writer, self._kinds)
        self.offsets = OffsetManager(self._groups, writer)
        self._foreign_records: dict[bytes, bytes] = {}
        self._topics = topics
        self._read_topic_names = read_topic_names
        self.existing_topics: Collection[str] | None = None
        """Names of all topics when this node began to lead the shard, if they were read then."""
        self._forgotten: set[str] = set()
        """Topics deleted before the shard was loaded."""
        self._forgotten_done: list[WriteDone] = []
        self._closed = False

    @property
    def wake_ms(self) -> int:
        """Time on the steady clock at which a group is woken next; NEVER_MS: none is waiting."""
        return self._groups.wake_ms

    @property
    def is_settled(self) -> bool:
        """True if all deadlines that have passed were noticed, and all writes have ended."""
        return self._groups.wake_ms > self._groups.now().steady_ms and self.writer.is_idle

    def reset_timers(self) -> None:
        """Set the timers anew, after the steady clock was moved forward: what has become due happens soon."""
        self._groups.reset_timers()

    def _deadline_reached(self, group: ShardGroup, now: Now) -> None:
        self.membership.deadline_reached(group, now)

    # -- Life --------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log. Until this is done callers must respond COORDINATOR_LOAD_IN_PROGRESS.

        Raises StorageError, WalError, MalformedMessage, KafkaError.
        """
        known = self._topics().by_name
        replay = Replay()
        async for batch in self.writer.log.replay():
            replay.add(batch)
            self.writer.written_bytes += sum(record.size_bytes for record in batch.records)
        deleted = await self._deleted_topics(replay, known)
        if self._closed:
            return
        now = self._groups.now()
        for group_id in replay.group_ids():
            stored = replay.groups.get(group_id, {})
            machine = self._kinds.restore(group_id, stored, now)
            entry = self._groups.add(ShardGroup(machine, replay.offsets.get(group_id, GroupOffsets()), stored))
            self._groups.schedule(entry)
        self._foreign_records = replay.unknown_records
        self.offsets.load(replay.open_transactions)
        self.loaded = True
        # Deletions whose records a crash has lost, or whose news came when no node led the shard.
        self._forget_topics(deleted)
        waiting, self._forgotten_done = self._forgotten_done, []
        self._forget_topics(self._forgotten, lambda error: _call_all(waiting, error))
        self._forgotten = set()

    async def _deleted_topics(self, replay: Replay, known: Collection[str]) -> Collection[str]:
        """Return the topics with offsets that have been deleted. Raises StorageError.

        A topic that is not among the known ones may be detached, or have been created through another node just now.
        """
        named = {key.topic for offsets in replay.offsets.values() for key in offsets.all_partitions()}
        if self.existing_topics is not None:
            return named.difference(self.existing_topics)
        unknown = named.difference(known)
        if not unknown or self._read_topic_names is None:
            return ()
        return unknown.difference(await self._read_topic_names())

    def close(self) -> None:
        """Stop coordinating: cancel timers, respond NOT_COORDINATOR to requests that wait, write nothing more."""
        self._closed = True
        self.loaded = False
        for entry in self._groups:
            self.membership.resign(entry)
        self._groups.clear()
        self.writer.close()
        self.offsets.unload()
        waiting, self._forgotten_done = self._forgotten_done, []
        _call_all(waiting, ErrorCode.NOT_COORDINATOR)

    async def rewrite(self) -> None:
        """Rewrite the log to its live records. Raises StorageError."""
        await self.writer.rewrite(self.live_records, self.offsets.open_transactions)

    def live_records(self) -> Iterator[KeyValue]:
        """Yield the records that a rewritten log must hold: the durable state and nothing else."""
        for entry in self._groups:
            yield from (KeyValue(*item) for item in entry.stored.items())
            for key, committed in entry.offsets.items():
                yield offset_record(entry.group_id, key, committed)
        for foreign_key, value in self._foreign_records.items():
            yield KeyValue(foreign_key, value)

    def forget_topics(self, topics: Collection[str], done: WriteDone) -> None:
        """Delete the offsets of deleted topics, once the shard is loaded; call `done` when that is durable.

        `done` gets an error at once if the shard is closed or damaged: its next load deletes them.
        """
        if self.loaded:
            self._forget_topics(topics, done)
        elif self._closed:
            done(ErrorCode.NOT_COORDINATOR)
        else:
            self._forgotten.update(topics)
            if self.unreadable or self.damage:
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                self._forgotten_done.append(done)

    def _forget_topics(self, topics: Collection[str], done: WriteDone | None = None) -> None:
        writes = JointWrites(2, done)
        self.offsets.forget_topics(topics.__contains__, writes.ended)
        self.membership.forget_topics(topics.__contains__, writes.ended)

    # -- Groups ------------------------------------------------------------------------------------------------------

    def group_count(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def group(self, group_id: str) -> Group | None:
        """Return the state of a group, for reading only."""
        entry = self._groups.get(group_id)
        return entry.group if entry is not None else None

    def groups(self) -> list[Group]:
        """Return the states of all groups, for reading only."""
        return [entry.group for entry in self._groups]

    def entries(self) -> Iterator[ShardGroup]:
        """Iterate over all groups with their offsets, for reading only."""
        return iter(self._groups)

    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""
        return self._groups.ids()

    def delete(self, group_id: str, done: WriteDone) -> None:
        """Delete an empty group and its offsets; call `done` when that is durable."""
        entry = self._groups.require(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if error := entry.group.check_delete():
            raise KafkaError(error)
        self._delete(entry, done)

    def _delete(self, entry: ShardGroup, done: WriteDone | None = None) -> None:
        assert not entry.group.members, "only an empty group is deleted"
        tombstones = entry.machine.retire()
        self._groups.remove(entry)
        # Commits on their way to the log come before these records, so they are deleted too.
        parts = list(deleted_at_once(list(entry.offsets.all_partitions())))
        writes = JointWrites(len(parts) + 1, done)
        for part in parts:
            self.writer.write([offset_record(entry.group_id, key, None) for key in part], writes.ended)
        self.writer.write(tombstones, writes.ended)

    def expire(self, group_id: str, now_ms: int) -> None:
        """Delete the offsets of a group that have outlived their retention, and the group if it is empty then."""
        entry = self._groups.get(group_id)
        if entry is None:
            return
        expired = entry.offsets.expired(now_ms, self._settings.offsets_retention_ms, entry.group.unused_since())
        if entry.group.is_unused and entry.offsets.all_partitions() == set(expired):
            self._delete(entry)
        else:
            self.offsets.drop(entry, expired)
