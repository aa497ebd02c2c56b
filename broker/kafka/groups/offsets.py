"""The committed offsets of a group, and their expiry.

Only durable commits are visible. Commits on their way to the log are counted separately, so that neither expiry nor
deletion misses them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition


class CommittedOffset(NamedTuple):
    """A committed offset with the metadata of its commit."""

    offset: int
    leader_epoch: int
    """Leader epoch of the last record consumed, or -1."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """Set only by requests of old versions, which carry a retention time; else -1."""


class TransactionalOffset(NamedTuple):
    """An offset of an open transaction."""

    committed: CommittedOffset
    order: int
    """Position in the order of the group's writes."""


class GroupOffsets:
    """Committed offsets of one group, by topic and partition."""

    __slots__ = ("_in_flight", "_order", "topics", "transactional")

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, CommittedOffset]] = {}
        self._in_flight: dict[TopicPartition, int] = {}
        self._order = 0
        self.transactional: dict[int, dict[TopicPartition, TransactionalOffset]] = {}
        """Offsets of open transactions by producer id. They are in the log, and apply once a marker commits them."""

    def __bool__(self) -> bool:
        """True if anything is committed or about to be."""
        return bool(self.topics or self._in_flight or self.transactional)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """Return the durable offset of a partition."""
        return self.topics.get(topic, {}).get(partition)

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Add a durable offset."""
        self.topics.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> None:
        """Remove an offset if there is one."""
        partitions = self.topics.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self.topics[topic]

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Iterate over the durable offsets."""
        for topic, partitions in self.topics.items():
            for partition, committed in partitions.items():
                yield TopicPartition(topic, partition), committed

    def all_partitions(self) -> set[TopicPartition]:
        """Return all partitions with an offset in the log, or on its way to it."""
        return {key for key, _ in self.items()}.union(self._in_flight, *self.transactional.values())

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Return whether an open transaction may still change the offset of a partition."""
        key = TopicPartition(topic, partition)
        return any(key in offsets for offsets in self.transactional.values())

    def put_transactional(self, producer_id: int, key: TopicPartition, committed: CommittedOffset) -> None:
        """Add an offset of an open transaction."""
        self._order += 1
        self.transactional.setdefault(producer_id, {})[key] = TransactionalOffset(committed, self._order)

    def supersede(self, key: TopicPartition, order: int | None = None) -> None:
        """Drop the offsets of open transactions for a partition, as the log has a later record outside of them.

        `order` is the value that `write_started` returned for that record; None stands for the latest position.
        """
        for producer_id, offsets in list(self.transactional.items()):
            if key in offsets and (order is None or offsets[key].order < order):
                del offsets[key]
                if not offsets:
                    del self.transactional[producer_id]

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply or drop the offsets of a transaction whose marker is durable."""
        offsets = self.transactional.pop(producer_id, {})
        if committed:
            for key, offset in offsets.items():
                self.put(*key, offset.committed)

    def write_started(self, keys: Iterable[TopicPartition]) -> int:
        """Count records of these partitions as on their way; return their position in the order of writes."""
        for key in keys:
            self._in_flight[key] = self._in_flight.get(key, 0) + 1
        self._order += 1
        return self._order

    def write_ended(self, keys: Iterable[TopicPartition]) -> None:
        """Count records of these partitions as durable or failed."""
        for key in keys:
            count = self._in_flight.pop(key) - 1
            if count:
                self._in_flight[key] = count

    def expired(
        self, now_ms: int, retention_ms: int, unused_since: Callable[[TopicPartition, CommittedOffset], int | None]
    ) -> list[TopicPartition]:
        """Return the partitions whose offset is past its retention.

        `unused_since` returns the time from which an offset's retention counts, None while the offset is in use.
        """
        found = []
        for key, committed in self.items():
            since_ms = unused_since(key, committed)
            if since_ms is None or key in self._in_flight or self.is_unstable(*key):
                continue
            deadline_ms = committed.expire_timestamp_ms
            if now_ms >= (deadline_ms if deadline_ms != -1 else since_ms + retention_ms):
                found.append(key)
        return found
