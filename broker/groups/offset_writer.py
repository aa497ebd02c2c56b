"""Writes a group's offsets to the log of its shard, and shows them when they are durable."""

from collections.abc import Sequence

from broker.coordination.log import LogWriter, WriteDone
from broker.coordination.topic_partition import TopicPartition
from broker.groups.offsets import CommittedOffset, GroupOffsets
from broker.groups.records import offset_record
from broker.partitions.producers import Producer
from protocol.errors import ErrorCode

Commits = Sequence[tuple[TopicPartition, CommittedOffset]]


class OffsetWriter:
    """Of one shard. What it writes is in the order of calls, which decides between an offset and its deletion."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def commit(self, group_id: str, offsets: GroupOffsets, commits: Commits, done: WriteDone) -> None:
        """Write offsets; `done` when they are durable and visible, or have failed."""
        keys = [key for key, _ in commits]
        order = offsets.begin(keys)

        def written(error: ErrorCode) -> None:
            offsets.end(keys)
            if not error:
                for key, committed in commits:
                    offsets.put(*key, committed)
                    offsets.supersede(key, order)
            done(error)

        self._writer.write([offset_record(group_id, key, committed) for key, committed in commits], written)

    def commit_in(
        self, producer: Producer, group_id: str, offsets: GroupOffsets, commits: Commits, done: WriteDone
    ) -> bool:
        """Write offsets of an open transaction: they are visible once it commits. False, and `done`, if it fails."""
        records = [offset_record(group_id, key, committed) for key, committed in commits]
        if not self._writer.write_transactional(records, producer, done):
            return False
        for key, committed in commits:
            offsets.put_transactional(producer.producer_id, key, committed)
        return True

    def drop(
        self, group_id: str, offsets: GroupOffsets, keys: Sequence[TopicPartition], done: WriteDone | None = None
    ) -> None:
        """Delete offsets; `done` when that is durable, at once if there is nothing to delete."""
        if not keys:
            if done is not None:
                done(ErrorCode.NONE)
            return
        order = offsets.begin(keys)

        def dropped(error: ErrorCode) -> None:
            offsets.end(keys)
            if not error:
                for key in keys:
                    offsets.remove(*key)
                    offsets.supersede(key, order)
            if done is not None:
                done(error)

        self._writer.write([offset_record(group_id, key, None) for key in keys], dropped)
