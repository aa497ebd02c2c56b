"""Brings markers to the leaders of their partitions: this node's own writer, or WriteTxnMarkers to other nodes.

One request at a time is under way to a node, and it takes all markers that wait for the node, up to a number. While a
node does not answer, its markers are handed back, and the coordinator tries again after a pause. A request whose answer
was lost may have taken effect, or may still do so later; `broker.kafka.transactions.markers` makes that harmless.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

import structlog

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.kafka.transactions.markers import Marker, MarkerDone, MarkerWriter
from anabranch.broker.kafka.transactions.state_machine import VERSION_1, VERSION_2
from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.protocol.errors import ErrorCode, KafkaError, known_code
from anabranch.protocol.messages.write_txn_markers import (
    MarkerSender,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from anabranch.s3stream.catalog.values import PartitionInfo

API_VERSION: Final = 2
MARKERS_PER_REQUEST_MAX: Final = 1000
"""Bounds a request to about 300 KB, as names of topics have at most 249 bytes."""

_log = structlog.get_logger(__name__)


class _QueuedMarker(NamedTuple):
    where: TopicPartition
    leader_epoch: int
    marker: Marker
    done: MarkerDone


class MarkerRouter:
    """Writes markers to partitions of any node. `spawn` runs a coroutine as a task of the node."""

    def __init__(
        self,
        writer: MarkerWriter,
        topics: TopicMap,
        peers: Peers,
        *,
        node_id: int,
        node_epoch: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._writer = writer
        self._topics = topics
        self._peers = peers
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._spawn = spawn
        self._sequence = 0
        self._queues: dict[int, list[_QueuedMarker]] = {}
        """Markers that wait, by node. A node is in it while a task sends to it."""
        self._silent: set[int] = set()
        """Nodes that did not answer the last request."""

    def write(self, where: TopicPartition, marker: Marker, done: MarkerDone) -> None:
        """Append a marker, here or on the node that leads the partition.

        Raises KafkaError or StorageError, and then does not call `done`. Refusals of another node are passed to `done`.
        """
        info = self._led_elsewhere(where)
        if info is None:
            self._writer.write(where, marker, done)
            return
        queued = _QueuedMarker(where, info.leader_epoch, marker, done)
        queue = self._queues.get(info.leader)
        if queue is not None:
            queue.append(queued)
            return
        self._queues[info.leader] = [queued]
        self._spawn(self._send_all(info.leader))

    def _led_elsewhere(self, where: TopicPartition) -> PartitionInfo | None:
        """Return the partition if another node leads it; for the others this node's own writer answers."""
        topic = self._topics.get(where.topic)
        if topic is None or not 0 <= where.partition < len(topic.partitions):
            return None
        info = topic.info.partitions[where.partition]
        elsewhere = topic.partitions[where.partition] is None and info.leader not in {self._node_id, -1}
        return info if elsewhere else None

    async def _send_all(self, node_id: int) -> None:
        """Send until nothing waits for the node, or it does not answer."""
        while queue := self._queues[node_id]:
            sent = queue[:MARKERS_PER_REQUEST_MAX]
            del queue[:MARKERS_PER_REQUEST_MAX]
            try:
                codes = await self._send(node_id, sent)
            except PeerUnavailable as error:
                if node_id not in self._silent:
                    _log.warning("markers of transactions wait for a node", node_id=node_id, reason=str(error))
                self._silent.add(node_id)
                failed = KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error))
                del self._queues[node_id]  # an immediate retry begins a new queue
                for each in (*sent, *queue):
                    each.done(failed)
                return
            self._silent.discard(node_id)
            for each, code in zip(sent, codes, strict=True):
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    # The leader may not have heard of a new topic yet: only this node's map tells that one is gone.
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                each.done(None if code == ErrorCode.NONE else KafkaError(code))
        del self._queues[node_id]

    async def _send(self, node_id: int, sent: Sequence[_QueuedMarker]) -> Sequence[ErrorCode]:
        """Return a code for each marker. Raises PeerUnavailable."""
        by_marker: dict[Marker, dict[str, list[_QueuedMarker]]] = {}
        for each in sent:
            by_marker.setdefault(each.marker, {}).setdefault(each.where.topic, []).append(each)
        self._sequence += 1
        request = WriteTxnMarkersRequest(
            markers=[_message(marker, topics) for marker, topics in by_marker.items()],
            sender=MarkerSender(node_id=self._node_id, node_epoch=self._node_epoch, sequence=self._sequence),
        )
        response: WriteTxnMarkersResponse = await self._peers.call(node_id, request, API_VERSION)
        codes = {
            (marker, TopicPartition(topic.name, partition.partition_index)): partition.error_code
            for marker, result in zip(by_marker, response.markers, strict=False)
            if result.producer_id == marker.producer.producer_id
            for topic in result.topics
            for partition in topic.partitions
        }
        return [known_code(codes.get((each.marker, each.where))) for each in sent]


def _message(marker: Marker, topics: dict[str, list[_QueuedMarker]]) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=marker.producer.producer_id,
        producer_epoch=marker.producer.epoch,
        transaction_result=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=VERSION_2 if marker.bumped else VERSION_1,
        topics=[
            WritableTxnMarkerTopic(
                name=topic,
                partition_indexes=[each.where.partition for each in queued],
                leader_epochs=[each.leader_epoch for each in queued],
            )
            for topic, queued in topics.items()
        ],
    )
