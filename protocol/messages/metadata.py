"""Metadata: the brokers, the topics, and the leader of each partition (KIP-4, KIP-516).

Versions:
    v0  first version
    v1  request lets topics be null. response adds brokers.rack, controller_id, topics.is_internal
    v2  response adds cluster_id
    v3  response adds throttle_time_ms
    v4  request adds allow_auto_topic_creation
    v5  response adds topics.partitions.offline_replicas
    v6  throttling is applied after the response
    v7  response adds topics.partitions.leader_epoch
    v8  request adds include_cluster_authorized_operations, include_topic_authorized_operations. response adds
        topics.topic_authorized_operations, cluster_authorized_operations
    v9  flexible
    v10 request adds topics.topic_id; lets topics.name be null. response adds topics.topic_id
    v11 request drops include_cluster_authorized_operations. response drops cluster_authorized_operations
    v12 response lets topics.name be null. a topic may be requested by its id alone
    v13 response adds error_code
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 3


@message
class MetadataRequestTopic:
    topic_id: bytes = wire.uuid("10+", ignorable=True)
    name: str | None = wire.string("0+", nullable="10+")


@message(versions="0-13", flexible="9+")
class MetadataRequest:
    topics: Sequence[MetadataRequestTopic] | None = wire.array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = wire.boolean("4+", default=True)
    include_cluster_authorized_operations: bool = wire.boolean("8-10")
    include_topic_authorized_operations: bool = wire.boolean("8+")


@message
class MetadataResponseBroker:
    node_id: int = wire.int32("0+")
    host: str = wire.string("0+")
    port: int = wire.int32("0+")
    rack: str | None = wire.string("1+", nullable="1+", default=None, ignorable=True)


@message
class MetadataResponsePartition:
    error_code: int = wire.int16("0+")
    partition_index: int = wire.int32("0+")
    leader_id: int = wire.int32("0+")
    leader_epoch: int = wire.int32("7+", default=-1, ignorable=True)
    replica_nodes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    isr_nodes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    offline_replicas: Sequence[int] = wire.array(wire.Kind.INT32, "5+", ignorable=True)


@message
class MetadataResponseTopic:
    error_code: int = wire.int16("0+")
    name: str | None = wire.string("0+", nullable="12+")
    topic_id: bytes = wire.uuid("10+", ignorable=True)
    is_internal: bool = wire.boolean("1+", ignorable=True)
    partitions: Sequence[MetadataResponsePartition] = wire.array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = wire.int32("8+", default=-(2**31))


@message(versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: int = wire.int32("3+", ignorable=True)
    brokers: Sequence[MetadataResponseBroker] = wire.array(MetadataResponseBroker, "0+")
    cluster_id: str | None = wire.string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = wire.int32("1+", default=-1, ignorable=True)
    topics: Sequence[MetadataResponseTopic] = wire.array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = wire.int32("8-10", default=-(2**31))
    error_code: int = wire.int16("13+", ignorable=True)
