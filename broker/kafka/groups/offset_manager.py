"""Committed offsets of the groups of one shard: OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Records are written in the order of calls, which decides between an offset and its deletion. An offset becomes visible
when its record is durable, and an offset of a transaction when the transaction's commit marker is (KIP-447).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from anabranch.broker.kafka.coordination.log import JointWrites, KeyValue, LogWriter, WriteDone
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.group_table import GroupTable
from anabranch.broker.kafka.groups.offsets import CommittedOffset, GroupOffsets
from anabranch.broker.kafka.groups.records import offset_record
from anabranch.broker.kafka.groups.replay import OpenTransactions, add_open_transaction
from anabranch.broker.kafka.groups.requests import CommitRequest
from anabranch.broker.kafka.groups.shard_group import ShardGroup
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.protocol.errors import ErrorCode, KafkaError

Commits = Sequence[tuple[TopicPartition, CommittedOffset]]
DELETED_AT_ONCE_MAX = 32
"""Offsets that one write deletes: with the longest names, too, it fits the smallest log."""


def deleted_at_once(keys: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """Yield the offsets that one write deletes each: all may be too many for one, and need not go together."""
    for first in range(0, len(keys), DELETED_AT_ONCE_MAX):
        yield keys[first : first + DELETED_AT_ONCE_MAX]


class OffsetManager:
    """Requests about offsets. Methods raise KafkaError with the code for the whole request."""

    def __init__(self, groups: GroupTable, writer: LogWriter) -> None:
        self._groups = groups
        self._writer = writer
        self._open_transactions: OpenTransactions = {}

    def load(self, open_transactions: OpenTransactions) -> None:
        """Take over the open transactions that a replay of the log has found."""
        self._open_transactions = open_transactions

    def unload(self) -> None:
        """Forget the open transactions."""
        self._open_transactions.clear()

    def of(self, group_id: str) -> GroupOffsets | None:
        """Return the offsets of a group, None if it does not exist."""
        entry = self._groups.get(group_id)
        return entry.offsets if entry is not None else None

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return why offsets may not be read on behalf of a member, or NONE."""
        entry = self._groups.get(group_id)
        return ErrorCode.NONE if entry is None else entry.group.check_fetch(member_id, epoch)

    # -- Commits -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        offsets: Commits,
        done: WriteDone,
        producer: Producer | None = None,
        *,
        knows_member_epochs: bool = True,
    ) -> None:
        """Write offsets and call `done` when they are durable and visible, or have failed.

        With a producer they are part of its open transaction: `done` is called when they are durable, and they become
        visible when the transaction commits. `knows_member_epochs` is False for request versions without member epochs.
        """
        entry = self._groups.get(group_id)
        if entry is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if knows_member_epochs else ErrorCode.ILLEGAL_GENERATION)
            entry = self._groups.create(group_id)
        commit = CommitRequest(
            member_id,
            group_instance_id,
            generation,
            [key for key, _ in offsets],
            transactional=producer is not None,
            knows_member_epochs=knows_member_epochs,
        )
        error = entry.machine.check_commit(commit, self._groups.now())
        self._groups.schedule(entry)
        if error:
            raise KafkaError(error)
        if not offsets:
            done(ErrorCode.NONE)
        elif producer is None:
            self._write(entry, offsets, done)
        else:
            self._write_transactional(entry, offsets, producer, done)

    def _write(self, entry: ShardGroup, commits: Commits, done: WriteDone) -> None:
        offsets = entry.offsets
        keys = [key for key, _ in commits]
        order = offsets.write_started(keys)

        def written(error: ErrorCode) -> None:
            offsets.write_ended(keys)
            if not error:
                for key, committed in commits:
                    offsets.put(*key, committed)
                    offsets.supersede(key, order)
            done(error)

        records = [offset_record(entry.group_id, key, committed) for key, committed in commits]
        self._writer.write(records, written, refusable=True)

    def _write_transactional(self, entry: ShardGroup, commits: Commits, producer: Producer, done: WriteDone) -> None:
        records = [offset_record(entry.group_id, key, committed) for key, committed in commits]
        if not self._writer.write_transactional(records, producer, done):
            return
        for key, committed in commits:
            entry.offsets.put_transactional(producer.producer_id, key, committed)
        add_open_transaction(self._open_transactions, producer, entry.group_id)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply or drop the offsets of a transaction whose marker is durable in the log."""
        _, group_ids = self._open_transactions.pop(producer_id, (0, set[str]()))
        for group_id in group_ids:
            if (entry := self._groups.get(group_id)) is not None:
                entry.offsets.end_transaction(producer_id, committed=committed)

    def open_transactions(self) -> Iterator[tuple[Producer, Sequence[KeyValue]]]:
        """Yield the offsets of transactions without a marker, as records that a rewritten log must hold."""
        for producer_id, (epoch, group_ids) in self._open_transactions.items():
            records = [
                offset_record(group_id, key, committed)
                for group_id in sorted(group_ids)
                if (entry := self._groups.get(group_id)) is not None
                for key, (committed, _) in entry.offsets.transactional.get(producer_id, {}).items()
            ]
            if records:
                yield Producer(producer_id, epoch), records

    # -- Deletion ----------------------------------------------------------------------------------------------------

    def delete(self, group_id: str, keys: Sequence[TopicPartition], done: WriteDone) -> list[ErrorCode]:
        """Delete offsets of topics that no member reads: return an error code for each, call `done` when durable."""
        entry = self._groups.require(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if error := entry.group.check_delete_offsets():
            raise KafkaError(error)
        in_use = entry.group.topics_in_use()
        errors = [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use is None or key.topic in in_use else ErrorCode.NONE
            for key in keys
        ]
        known = entry.offsets.all_partitions()
        deleted = [key for key, error in zip(keys, errors, strict=True) if not error and key in known]
        self.drop(entry, deleted, done)
        return errors

    def forget_topics(self, is_deleted: Callable[[str], bool], done: WriteDone | None = None) -> None:
        """Delete the offsets of deleted topics: a topic created later under the same name begins without any.

        Calls `done` when that is durable, or has failed.
        """
        self._drop(
            [
                (entry, [key for key in entry.offsets.all_partitions() if is_deleted(key.topic)])
                for entry in self._groups
            ],
            done,
        )

    def drop(self, entry: ShardGroup, keys: Sequence[TopicPartition], done: WriteDone | None = None) -> None:
        """Delete offsets of a group; call `done` when that is durable, or has failed."""
        self._drop([(entry, keys)], done)

    def _drop(self, found: Sequence[tuple[ShardGroup, Sequence[TopicPartition]]], done: WriteDone | None) -> None:
        parts = [(entry, part) for entry, keys in found for part in deleted_at_once(keys)]
        writes = JointWrites(len(parts), done)
        for entry, part in parts:
            order = entry.offsets.write_started(part)
            dropped = partial(self._dropped, entry.offsets, part, order, writes.ended)
            self._writer.write([offset_record(entry.group_id, key, None) for key in part], dropped)

    @staticmethod
    def _dropped(
        offsets: GroupOffsets, keys: Sequence[TopicPartition], order: int, done: WriteDone, error: ErrorCode
    ) -> None:
        offsets.write_ended(keys)
        if not error:
            for key in keys:
                offsets.remove(*key)
                offsets.supersede(key, order)
        done(error)
