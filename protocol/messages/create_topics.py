"""CreateTopics: create topics with their partitions and configs (KIP-4, KIP-464, KIP-525).

Versions:
    v2  oldest version served
    v3  throttling is applied after the response
    v4  -1 partitions or replicas select the default (KIP-464)
    v5  flexible. response adds topics.topic_config_error_code (tagged), topics.num_partitions,
        topics.replication_factor, topics.configs
    v6  THROTTLING_QUOTA_EXCEEDED may be returned (KIP-599)
    v7  response adds topics.topic_id
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 19


@message
class CreatableReplicaAssignment:
    partition_index: int = wire.int32("0+")
    broker_ids: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class CreatableTopicConfig:
    name: str = wire.string("0+")
    value: str | None = wire.string("0+", nullable="0+")


@message
class CreatableTopic:
    name: str = wire.string("0+")
    num_partitions: int = wire.int32("0+")
    replication_factor: int = wire.int16("0+")
    assignments: Sequence[CreatableReplicaAssignment] = wire.array(CreatableReplicaAssignment, "0+")
    configs: Sequence[CreatableTopicConfig] = wire.array(CreatableTopicConfig, "0+")


@message(versions="2-7", flexible="5+")
class CreateTopicsRequest:
    topics: Sequence[CreatableTopic] = wire.array(CreatableTopic, "0+")
    timeout_ms: int = wire.int32("0+", default=60000)
    validate_only: bool = wire.boolean("1+")


@message
class CreatableTopicConfigs:
    name: str = wire.string("5+")
    value: str | None = wire.string("5+", nullable="5+")
    read_only: bool = wire.boolean("5+")
    config_source: int = wire.int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = wire.boolean("5+")


@message
class CreatableTopicResult:
    name: str = wire.string("0+")
    topic_id: bytes = wire.uuid("7+", ignorable=True)
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = wire.int16("5+", tag=0, ignorable=True)
    num_partitions: int = wire.int32("5+", default=-1, ignorable=True)
    replication_factor: int = wire.int16("5+", default=-1, ignorable=True)
    configs: Sequence[CreatableTopicConfigs] | None = wire.array(
        CreatableTopicConfigs, "5+", nullable="5+", ignorable=True
    )


@message(versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: int = wire.int32("2+", ignorable=True)
    topics: Sequence[CreatableTopicResult] = wire.array(CreatableTopicResult, "0+")
