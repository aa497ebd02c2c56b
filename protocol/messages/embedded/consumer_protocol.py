"""Metadata and assignments that members of a classic consumer group exchange through the coordinator.

The metadata of JoinGroup and the assignment of SyncGroup contain these messages, each after an int16 version
(`codec.encode_versioned`). The broker reads them only to describe a group, to migrate one, and to find its topics.
    v1  consumer_protocol_subscription adds owned_partitions
    v2  consumer_protocol_subscription adds generation_id
    v3  consumer_protocol_subscription adds rack_id
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message


@message
class TopicPartition:
    topic: str = wire.string("1+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "1+")


@message(versions="0-3", flexible=None)
class ConsumerProtocolSubscription:
    """Topics that a member subscribes to and, in cooperative groups, the partitions it owns."""

    topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    user_data: bytes | None = wire.bytes_("0+", nullable="0+", default=None)
    owned_partitions: Sequence[TopicPartition] = wire.array(TopicPartition, "1+", ignorable=True)
    generation_id: int = wire.int32("2+", default=-1, ignorable=True)
    rack_id: str | None = wire.string("3+", nullable="3+", default=None, ignorable=True)


@message
class TopicPartitionResponse:
    topic: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0-3", flexible=None)
class ConsumerProtocolAssignment:
    """Partitions that the leader assigned to a member."""

    assigned_partitions: Sequence[TopicPartitionResponse] = wire.array(TopicPartitionResponse, "0+")
    user_data: bytes | None = wire.bytes_("0+", nullable="0+", default=None)
