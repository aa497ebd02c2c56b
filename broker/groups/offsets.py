"""The offsets a group has committed, and which of them have outlived their use.

Only durable commits are in here; those on their way to the log are counted apart, so that neither expiry nor deletion
overlooks them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class CommittedOffset(NamedTuple):
    """A committed position with what its committer attached to it."""

    offset: int
    leader_epoch: int
    """Of the last record consumed, or -1."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """Set only by requests of the old versions that carry a retention time."""


class TopicPartition(NamedTuple):
    """A partition by name and index."""

    topic: str
    partition: int


class GroupOffsets:
    """Committed offsets of one group, by topic and partition."""

    __slots__ = ("_in_flight", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, CommittedOffset]] = {}
        self._in_flight: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        """True if anything is committed or about to be."""
        return bool(self.topics or self._in_flight)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """Return the durable offset of a partition."""
        return self.topics.get(topic, {}).get(partition)

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Remember a durable offset."""
        self.topics.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> None:
        """Forget an offset, if there is one."""
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

    def known(self) -> set[TopicPartition]:
        """Return all partitions with a record in the log, or one on its way there."""
        return {key for key, _ in self.items()} | self._in_flight.keys()

    def begin(self, keys: Iterable[TopicPartition]) -> None:
        """Note that records of these partitions are on their way."""
        for key in keys:
            self._in_flight[key] = self._in_flight.get(key, 0) + 1

    def end(self, keys: Iterable[TopicPartition]) -> None:
        """Note that records of these partitions have arrived, or failed."""
        for key in keys:
            count = self._in_flight.pop(key) - 1
            if count:
                self._in_flight[key] = count

    def expired(
        self, now_ms: int, retention_ms: int, used_since: Callable[[TopicPartition, CommittedOffset], int | None]
    ) -> list[TopicPartition]:
        """Return the offsets past their retention, counted from `used_since`; None there means still in use."""
        found = []
        for key, committed in self.items():
            since_ms = used_since(key, committed)
            if since_ms is None or key in self._in_flight:
                continue
            deadline_ms = committed.expire_timestamp_ms
            if now_ms >= (deadline_ms if deadline_ms != -1 else since_ms + retention_ms):
                found.append(key)
        return found
