"""The groups of one partition of `__consumer_offsets`: state machines, committed offsets, and the log they share.

A shard runs the effects of the state machines: answers go to futures, snapshots to the log, deadlines to the loop's
timers. It keeps true that memory shows what is durable: offsets and what is `stored` of a group change only when the
log has them, and nobody is answered before that. An id names a classic group or a consumer group
(`broker.groups.consumer.durable_group`), never both; it becomes the other kind when a member of that kind joins and it
is empty, or can take its members along (`broker.groups.migration`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from broker.coordination.log import BATCH_BYTES_MAX, KeyValue, LogWriter, WriteDone
from broker.coordination.topic_partition import TopicPartition
from broker.groups.classic.effects import Effect, Reply, Write
from broker.groups.classic.group import ClassicGroup
from broker.groups.consumer.durable_group import BeatDone, ConsumerShell
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.consumer.group_base import SessionTimeout
from broker.groups.consumer.heartbeat import Beat
from broker.groups.consumer.topic_image import TopicIdPartition, TopicImage, Topics
from broker.groups.migration import downgraded, upgraded
from broker.groups.offset_writer import OffsetWriter
from broker.groups.offsets import CommittedOffset, GroupOffsets
from broker.groups.records import (
    group_record,
    offset_record,
)
from broker.groups.replay import OpenTransactions, Replay, note_open
from broker.groups.requests import NEVER_MS, Join, JoinAnswer, Leaver, Now, Sync, SyncAnswer
from broker.groups.shard_group import GroupEntry, is_unused, speaks_new_protocol, unused_since
from broker.partitions.producers import Producer
from broker.settings.model import GroupSettings
from protocol.errors import ErrorCode, KafkaError

Answer = JoinAnswer | SyncAnswer
NO_TOPICS = TopicImage(0)


class GroupShard:
    """Groups that hash to one partition. Methods raise KafkaError with the code for the whole request."""

    def __init__(
        self,
        writer: LogWriter,
        settings: GroupSettings,
        *,
        now_ms: Callable[[], int],
        topics: Topics = lambda: NO_TOPICS,
        session_timeout_ms: SessionTimeout | None = None,
    ) -> None:
        self.writer = writer
        self._offsets = OffsetWriter(writer)
        self.loaded = False
        self.broken = False
        """The log cannot be read; its groups stay unavailable, and nothing is written over it."""
        self.damage = ""
        self._settings = settings
        self._now_ms = now_ms
        self._topics = topics
        self._session_timeout_ms = session_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._entries: dict[str, GroupEntry] = {}
        self._foreign: dict[bytes, bytes] = {}
        self._open: OpenTransactions = {}

    # -- Life --------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log. Until this is done the shard answers COORDINATOR_LOAD_IN_PROGRESS (the caller checks)."""
        found = Replay()
        async for batch in self.writer.log.replay():
            found.add(batch)
            self.writer.written_bytes += sum(record.size_bytes for record in batch.records)
        now = self._now()
        for group_id in found.group_ids():
            stored = found.snapshots.get(group_id)
            machine: ClassicGroup | ConsumerShell
            if group_id in found.consumer:
                machine = self._new_shell(group_id, found.consumer[group_id])
                machine.restore(now)
            elif stored is None:
                machine = ClassicGroup(group_id, self._settings)
            else:
                machine = ClassicGroup.restore(group_id, self._settings, stored, now)
            entry = GroupEntry(machine, found.offsets.get(group_id, GroupOffsets()), stored)
            self._entries[group_id] = entry
            self._arm(entry)
        self._foreign, self._open = found.foreign, found.open
        self.loaded = True

    def close(self) -> None:
        """Stop coordinating: cancel timers, tell those who wait to look for another coordinator."""
        self.loaded = False
        self.writer.close()
        for entry in self._entries.values():
            if isinstance(entry.machine, ClassicGroup):
                self._run(entry, entry.machine.resign(self._now()))
            if entry.timer is not None:
                entry.timer.cancel()
        self._entries.clear()
        self._open.clear()

    async def rewrite(self) -> None:
        """Rewrite the log to what is live. Raises StorageError."""
        await self.writer.rewrite(self.live_records, self.open_transactions)

    def live_records(self) -> Iterator[KeyValue]:
        """Yield what the log must hold: the durable state and nothing else."""
        for group_id, entry in self._entries.items():
            if entry.stored is not None:
                yield group_record(group_id, entry.stored)
            if isinstance(entry.machine, ConsumerShell):
                yield from (KeyValue(*item) for item in entry.machine.stored.items())
            for key, committed in entry.offsets.items():
                yield offset_record(group_id, key, committed)
        for foreign_key, value in self._foreign.items():
            yield KeyValue(foreign_key, value)

    def open_transactions(self) -> Iterator[tuple[Producer, Sequence[KeyValue]]]:
        """Yield what the log must hold besides: offsets whose transactions have no marker yet."""
        for producer_id, (epoch, group_ids) in self._open.items():
            records = [
                offset_record(group_id, key, committed)
                for group_id in sorted(group_ids)
                if group_id in self._entries
                for key, (committed, _) in self._entries[group_id].offsets.transactional.get(producer_id, {}).items()
            ]
            if records:
                yield Producer(producer_id, epoch), records

    # -- Members -----------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: Join) -> None:
        """Handle JoinGroup; the ticket must be a future of a JoinAnswer."""
        entry = self._entries.get(group_id)
        if entry is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry = self._create(group_id)
        group = entry.group
        if isinstance(entry.machine, ConsumerShell) and group.members:
            entry.machine.join(request, self._topics(), self._now(), partial(_hand_back, request.ticket))
            # A static member may have taken the place of the last that spoke the new protocol.
            self._settle(entry, rebalance=entry.machine.group.is_behind)
            return
        if isinstance(group, ConsumerGroup):
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry, group = self._to_classic(entry, group)
        self._run(entry, group.join(request, self._now()))

    def sync(self, group_id: str, request: Sync) -> None:
        """Handle SyncGroup; the ticket must be a future of a SyncAnswer."""
        entry = self._existing(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(entry.machine, ConsumerShell):
            entry.machine.sync(request, self._topics(), self._now(), partial(_hand_back, request.ticket))
            self._arm(entry)
        else:
            self._run(entry, entry.machine.sync(request, self._now()))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        """Handle Heartbeat."""
        entry = self._entries.get(group_id)
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        group = entry.group
        if isinstance(group, ConsumerGroup):
            error = group.heartbeat_classic(member_id, group_instance_id, generation, self._now())
        else:
            error = group.heartbeat(member_id, group_instance_id, generation, self._now())
        self._arm(entry)
        return error

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ErrorCode]:
        """Handle LeaveGroup: an error code for each. An administrator may remove members of consumer groups too."""
        entry = self._entries.get(group_id)
        if entry is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            errors = group.remove(leavers)
            self._settle(entry, rebalance=True)
            return errors
        errors, effects = group.leave(leavers, self._now())
        self._run(entry, effects)
        return errors

    def consumer_heartbeat(self, group_id: str, beat: Beat, done: BeatDone) -> None:
        """Handle ConsumerGroupHeartbeat: `done` with the answer once what it says is durable, or with the error."""
        entry = self._entries.get(group_id)
        if entry is None or isinstance(entry.machine, ClassicGroup):
            self._arm(self._join_as_consumer(group_id, entry, beat, done))
        else:
            entry.machine.heartbeat(beat, self._topics(), self._now(), done)
            self._settle(entry, rebalance=True)

    def _join_as_consumer(self, group_id: str, entry: GroupEntry | None, beat: Beat, done: BeatDone) -> GroupEntry:
        """Make a consumer group of nothing, or of a classic group with its members, if this heartbeat may do that."""
        if beat.epoch != 0:
            problem = f"{'Group' if beat.epoch < 0 else 'Consumer group'} {group_id} not found."
            if entry is not None:
                problem = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, problem)
        shell = self._new_shell(group_id)
        now = self._now()
        classic = entry.machine if entry is not None and entry.group.members else None
        if isinstance(classic, ClassicGroup):
            shell.group = upgraded(classic, self._settings, self._topics(), now, self._session_timeout_ms)
        before = [] if entry is None else [group_record(group_id, None)]
        shell.heartbeat(beat, self._topics(), now, done, before=before)
        # It was not refused: from here on this is a consumer group.
        if isinstance(classic, ClassicGroup) and entry is not None:
            self._run(entry, classic.resign(now, ErrorCode.REBALANCE_IN_PROGRESS))
        created = self._replace(entry, shell)
        if isinstance(classic, ClassicGroup) and entry is not None:
            shell.unborn = partial(self._put_back, created, entry)
        return created

    def _new_shell(self, group_id: str, stored: Mapping[bytes, bytes] | None = None) -> ConsumerShell:
        return ConsumerShell(group_id, self._settings, self.writer, stored, self._session_timeout_ms)

    def _settle(self, entry: GroupEntry, *, rebalance: bool) -> None:
        """Write what has changed in a consumer group; when only classic members are left, make it a classic one."""
        assert isinstance(entry.machine, ConsumerShell), "classic groups say what they write"
        entry.machine.write()
        if entry.machine.group.should_downgrade and self._downgrade(entry, entry.machine.group, rebalance=rebalance):
            return
        self._arm(entry)

    def _downgrade(self, entry: GroupEntry, group: ConsumerGroup, *, rebalance: bool) -> bool:
        """Turn a consumer group of classic members into a classic group; False if that is too large to store."""
        now = self._now()
        classic = downgraded(group, self._settings, self._topics(), now)
        snapshot = classic.snapshot()
        record = group_record(group.group_id, snapshot)
        if record.size_bytes > BATCH_BYTES_MAX:
            return False
        created = self._replace(entry, classic)

        def written(error: ErrorCode) -> None:
            if error:
                self._put_back(created, entry)
            else:
                created.stored = snapshot

        self.writer.write([*group.dissolve(), record], written)
        self._run(created, classic.rebalance(now) if rebalance else ())
        return True

    def _put_back(self, entry: GroupEntry, former: GroupEntry) -> None:
        """What made a group one of the other kind did not get into the log: it is again what it was."""
        if self._entries.get(entry.group.group_id) is not entry:
            return
        now, machine = self._now(), former.machine
        if isinstance(machine, ConsumerShell):
            machine.restore(now)
        elif former.stored is not None:
            machine = ClassicGroup.restore(machine.group_id, self._settings, former.stored, now)
        else:
            machine = ClassicGroup(machine.group_id, self._settings)
        restored = self._replace(entry, machine)
        restored.stored = former.stored
        self._arm(restored)

    def _to_classic(self, entry: GroupEntry, group: ConsumerGroup) -> tuple[GroupEntry, ClassicGroup]:
        """Turn an empty consumer group into a classic one."""
        self.writer.write(group.kill())
        classic = ClassicGroup(group.group_id, self._settings)
        return self._replace(entry, classic), classic

    def _replace(self, entry: GroupEntry | None, machine: ClassicGroup | ConsumerShell) -> GroupEntry:
        """Put a group of the other kind in the place of an empty one; its offsets stay."""
        if entry is not None and entry.timer is not None:
            entry.timer.cancel()
        created = GroupEntry(machine, GroupOffsets() if entry is None else entry.offsets)
        self._entries[created.group.group_id] = created
        return created

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        done: WriteDone,
        producer: Producer | None = None,
        *,
        speaks_epochs: bool = True,
    ) -> None:
        """Write offsets and call `done` when they are durable and visible, or have failed.

        With a producer they are part of its transaction: `done` when they are durable, visible once that commits.
        """
        entry = self._entries.get(group_id)
        if entry is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            entry = self._create(group_id)
        if not speaks_epochs and producer is None and speaks_new_protocol(entry, member_id):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if error := self._check_commit(entry, member_id, group_instance_id, generation, offsets, producer):
            raise KafkaError(error)
        if not offsets:
            done(ErrorCode.NONE)
            return
        if producer is None:
            self._offsets.commit(group_id, entry.offsets, offsets, done)
        elif self._offsets.commit_in(producer, group_id, entry.offsets, offsets, done):
            note_open(self._open, producer, group_id)

    def _check_commit(
        self,
        entry: GroupEntry,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        producer: Producer | None,
    ) -> ErrorCode:
        group = entry.group
        if isinstance(group, ConsumerGroup):
            if producer is not None and generation < 0 and not member_id and group_instance_id is None:
                return ErrorCode.NONE  # before KIP-447: the transaction alone fences
            topics = self._topics().by_name
            known = all(key.topic in topics for key, _ in offsets)
            partitions = [TopicIdPartition(topics[key.topic].topic_id, key.partition) for key, _ in offsets if known]
            return group.check_commit(member_id, generation, frozenset(partitions) if known else None)
        error = group.check_commit(
            member_id, group_instance_id, generation, self._now(), transactional=producer is not None
        )
        self._arm(entry)
        return error

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A transaction's marker is durable in the log: its offsets hold now, or never."""
        _, group_ids = self._open.pop(producer_id, (0, set[str]()))
        for group_id in group_ids:
            if (entry := self._entries.get(group_id)) is not None:
                entry.offsets.end_transaction(producer_id, committed=committed)

    def offsets(self, group_id: str) -> GroupOffsets | None:
        """Return the durable offsets of a group."""
        entry = self._entries.get(group_id)
        return entry.offsets if entry is not None else None

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return why offsets may not be read on behalf of a member, or NONE; classic groups do not ask."""
        group = self.group(group_id)
        return group.check_fetch(member_id, epoch) if isinstance(group, ConsumerGroup) else ErrorCode.NONE

    def delete_offsets(self, group_id: str, keys: Sequence[TopicPartition], done: WriteDone) -> list[ErrorCode]:
        """Delete offsets of topics that nobody in the group reads: an error code for each, `done` when durable."""
        entry = self._existing(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(entry.group, ClassicGroup) and (error := entry.group.check_delete_offsets()):
            raise KafkaError(error)
        in_use = entry.topics_in_use()
        errors = [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use is None or key.topic in in_use else ErrorCode.NONE
            for key in keys
        ]
        known = entry.offsets.known()
        gone = [key for key, error in zip(keys, errors, strict=True) if not error and key in known]
        self._offsets.drop(group_id, entry.offsets, gone, done)
        return errors

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Drop the offsets of deleted topics: one created later under the same name starts afresh."""
        deleted = frozenset(topics)
        for group_id, entry in self._entries.items():
            gone = [key for key in entry.offsets.known() if key.topic in deleted]
            self._offsets.drop(group_id, entry.offsets, gone)

    # -- Groups ------------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """Return a group to look at."""
        entry = self._entries.get(group_id)
        return entry.group if entry is not None else None

    def groups(self) -> list[ClassicGroup | ConsumerGroup]:
        """Return all groups."""
        return [entry.group for entry in self._entries.values()]

    def delete(self, group_id: str, done: WriteDone) -> None:
        """Delete an empty group and its offsets; `done` when that is durable."""
        entry = self._existing(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if error := entry.group.check_delete():
            raise KafkaError(error)
        self._delete(entry, done)

    def _delete(self, entry: GroupEntry, done: WriteDone | None = None) -> None:
        group = entry.group
        group_id = group.group_id
        if isinstance(group, ConsumerGroup):
            gone = group.kill()
        else:
            group.kill()
            gone = [group_record(group_id, None)]
        if entry.timer is not None:
            entry.timer.cancel()
        del self._entries[group_id]
        # Commits still on their way to the log come before these records, so they are deleted too.
        records = [offset_record(group_id, key, None) for key in entry.offsets.known()]
        self.writer.write(records + gone, done)

    def expire(self, group_id: str, now_ms: int) -> None:
        """Drop the offsets of a group that have outlived their retention, and the group if it is empty then."""
        entry = self._entries.get(group_id)
        if entry is None:
            return
        since = unused_since(entry)
        expired = entry.offsets.expired(now_ms, self._settings.offsets_retention_ms, since)
        if is_unused(entry) and entry.offsets.known() == set(expired):
            self._delete(entry)
        else:
            self._offsets.drop(group_id, entry.offsets, expired)

    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""
        return list(self._entries)

    # -- Effects and time --------------------------------------------------------------------------------------------

    def _existing(self, group_id: str, error: ErrorCode) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            raise KafkaError(error, f"Group {group_id} not found.")
        return entry

    def _create(self, group_id: str) -> GroupEntry:
        entry = GroupEntry(ClassicGroup(group_id, self._settings))
        self._entries[group_id] = entry
        return entry

    def _now(self) -> Now:
        return Now(int(self._loop.time() * 1000), self._now_ms())

    def _run(self, entry: GroupEntry, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(ticket, answer):
                    _hand_back(ticket, answer)
                case Write(snapshot, _):
                    record = group_record(entry.group.group_id, snapshot)
                    self.writer.write([record], partial(self._stored, entry, effect))
        self._arm(entry)

    def _stored(self, entry: GroupEntry, write: Write, error: ErrorCode) -> None:
        if not error:
            entry.stored = write.snapshot
        if error == ErrorCode.MESSAGE_TOO_LARGE:
            error = ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka says it to members of a group that is too big to store
        if write.then is not None and isinstance(entry.group, ClassicGroup):
            self._run(entry, entry.group.written(write.then, error, self._now()))

    def _arm(self, entry: GroupEntry) -> None:
        """Make sure the group is woken at its next deadline; a timer that comes early only looks and sets the next."""
        wake_ms = entry.group.wake_ms
        if wake_ms >= entry.timer_ms:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer_ms = wake_ms
        entry.timer = self._loop.call_at(wake_ms / 1000, self._wake, entry)

    def _wake(self, entry: GroupEntry) -> None:
        now = self._now()
        # The loop may call up to its clock's resolution early.
        now = Now(max(now.loop_ms, entry.timer_ms), now.wall_ms)
        entry.timer, entry.timer_ms = None, NEVER_MS
        if self._entries.get(entry.group.group_id) is not entry:
            return
        if isinstance(entry.group, ConsumerGroup):
            entry.group.tick(now)
            self._settle(entry, rebalance=True)
        else:
            self._run(entry, entry.group.tick(now))


def _hand_back(ticket: object, answer: Answer) -> None:
    assert isinstance(ticket, asyncio.Future), "tickets are futures"
    if not ticket.done():  # its connection may be gone
        ticket.set_result(answer)
