"""WriteTxnMarkers: write commit or abort markers into partitions (KIP-98).

Versions:
    v1  oldest version served. flexible
    v2  request adds markers.transaction_version

Apache Kafka has no `sender` and no `leader_epochs`: nodes of this project send them to each other, so that a request
that arrives late cannot end a later transaction (see `broker.kafka.transactions.markers`).
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 27


@message
class WritableTxnMarkerTopic:
    name: str = wire.string("0+")
    partition_indexes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    leader_epochs: Sequence[int] = wire.array(wire.Kind.INT32, "2+", tag=wire.OWN_TAGS_FROM, ignorable=True)
    """Leader epochs that the sender knows, one for each partition; empty: not checked."""


@message
class WritableTxnMarker:
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int16("0+")
    transaction_result: bool = wire.boolean("0+")
    topics: Sequence[WritableTxnMarkerTopic] = wire.array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = wire.int32("0+")
    transaction_version: int = wire.int8("2+", ignorable=True)


@message
class MarkerSender:
    """The node that sends a request, and the request's place in the order of those that the node sends."""

    node_id: int = wire.int32("2+")
    node_epoch: int = wire.int64("2+")
    sequence: int = wire.int64("2+")


@message(versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    markers: Sequence[WritableTxnMarker] = wire.array(WritableTxnMarker, "0+")
    sender: MarkerSender | None = wire.struct(
        MarkerSender, "2+", tag=wire.OWN_TAGS_FROM, nullable="2+", default=None, ignorable=True
    )


@message
class WritableTxnMarkerPartitionResult:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class WritableTxnMarkerTopicResult:
    name: str = wire.string("0+")
    partitions: Sequence[WritableTxnMarkerPartitionResult] = wire.array(WritableTxnMarkerPartitionResult, "0+")


@message
class WritableTxnMarkerResult:
    producer_id: int = wire.int64("0+")
    topics: Sequence[WritableTxnMarkerTopicResult] = wire.array(WritableTxnMarkerTopicResult, "0+")


@message(versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    markers: Sequence[WritableTxnMarkerResult] = wire.array(WritableTxnMarkerResult, "0+")
