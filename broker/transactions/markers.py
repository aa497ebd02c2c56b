"""Writes the markers that end a transaction in its partitions, and applies its offsets to groups."""

from collections.abc import Callable
from typing import NamedTuple

from broker.coordination.internal_topics import OFFSETS_TOPIC
from broker.coordination.topic_partition import TopicPartition
from broker.groups.coordinator import GroupCoordinator
from broker.partitions.producers import Producer
from broker.topics.manager import TopicManager
from protocol.errors import ErrorCode, KafkaError
from protocol.records import ControlType
from wal.interface import WalError

MarkerDone = Callable[[WalError | None], None]
"""Called when the marker is durable and its effect visible, or the log has failed. Must not raise."""


class Marker(NamedTuple):
    """Contents of a marker, the same for all partitions of a transaction."""

    producer: Producer
    committed: bool
    coordinator_epoch: int
    bumped: bool
    """True if the end of the transaction raised the epoch (transaction.version 2)."""


class MarkerWriter:
    """Writes markers to the partitions that this node leads."""

    def __init__(self, topics: TopicManager, groups: GroupCoordinator) -> None:
        self._topics = topics
        self._groups = groups

    def write(self, where: TopicPartition, marker: Marker, done: MarkerDone) -> None:
        """Append a marker. Raises KafkaError or StorageError, and then does not call `done`.

        Raises NOT_LEADER_OR_FOLLOWER while the topic is being removed: it may be served again.
        """
        if self._topics.is_being_removed(where.topic):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = self._topics.partition(*where)
        # A shard that is being loaded is refused: its replay may already be past the marker's offset.
        shard = self._groups.shard_at(where.partition) if where.topic == OFFSETS_TOPIC else None
        durable = partition.append_marker(
            ControlType.COMMIT if marker.committed else ControlType.ABORT,
            producer_id=marker.producer.producer_id,
            producer_epoch=marker.producer.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            bumped=marker.bumped,
        )
        producer_id, committed = marker.producer.producer_id, marker.committed

        def written(error: WalError | None) -> None:
            if shard is not None and error is None:
                shard.offsets.end_transaction(producer_id, committed=committed)
            done(error)

        if durable is None:
            written(None)
        else:
            durable.add_done_callback(written)
            if shard is not None:
                shard.writer.track_marker(durable)
