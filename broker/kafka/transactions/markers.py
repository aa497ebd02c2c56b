"""Writes the markers that end a transaction in the partitions of this node, and applies its offsets to groups.

A marker does not name its transaction, only the producer and its epoch, and with transaction.version 1 the producer's
next transaction has the same epoch. A marker must therefore never be appended after its transaction is complete: it
would end the next one. A coordinator completes a transaction when each partition has reported the marker. Its request
may be repeated, though, and an earlier copy may still be under way when a later one is answered. Such a copy is
refused:

- by the epoch of the coordinator, if a newer coordinator has written the marker;
- by the leader epoch, if the partition was opened again, here or elsewhere, since the copy was sent;
- by its place in the order of the sender's requests, if the partition is the same. The sender has one request at a time
  under way to a node, so an older request than the newest one received is one that it has given up.
"""

from collections.abc import Callable
from typing import NamedTuple

from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.write_txn_markers import MarkerSender
from anabranch.protocol.records import ControlType
from anabranch.wal.interface import WalError

MarkerDone = Callable[[WalError | KafkaError | None], None]
"""Called when the marker is durable and its effect visible, or could not be written. Must not raise.

A WalError is the failure of this node's log; a KafkaError comes from another node, and the marker may be there.
"""
NOT_CHECKED = -1
"""Leader epoch of a marker whose sender knows none."""
SENDERS_MAX = 10_000
"""Nodes whose newest request is remembered. Others are refused from then on."""


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
        self._newest: dict[int, tuple[int, int]] = {}
        """Node epoch and sequence of the newest request, by the id of the node that sent it."""

    def admit(self, sender: MarkerSender) -> bool:
        """Return whether a request is newer than all received from its sender. If so, append its markers at once."""
        place, newest = (sender.node_epoch, sender.sequence), self._newest.get(sender.node_id)
        if len(self._newest) >= SENDERS_MAX if newest is None else place <= newest:
            return False
        self._newest[sender.node_id] = place
        return True

    def write(
        self,
        where: TopicPartition,
        marker: Marker,
        done: Callable[[WalError | None], None],
        *,
        leader_epoch: int = NOT_CHECKED,
    ) -> None:
        """Append a marker. Raises KafkaError or StorageError, and then does not call `done`.

        Raises NOT_LEADER_OR_FOLLOWER while the topic is being removed: it may be served again.
        """
        if self._topics.is_being_removed(where.topic):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = self._topics.partition(*where)
        partition.check_leader_epoch(leader_epoch)
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
