"""TxnOffsetCommit: store offsets of a group as part of a transaction (KIP-98, KIP-447, KIP-1319).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  request adds topics.partitions.committed_leader_epoch
    v3  flexible. request adds generation_id, member_id, group_instance_id
    v4  TRANSACTION_ABORTABLE may be returned (KIP-890)
    v5  adds the group to the transaction as well (KIP-890, part 2)
    v6  request adds topics.topic_id; drops topics.name. response adds topics.topic_id; drops topics.name.
        UNKNOWN_TOPIC_ID, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH may be returned (KIP-1319)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 28


@message
class TxnOffsetCommitRequestPartition:
    partition_index: int = wire.int32("0+")
    committed_offset: int = wire.int64("0+")
    committed_leader_epoch: int = wire.int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = wire.string("0+", nullable="0+")


@message
class TxnOffsetCommitRequestTopic:
    name: str = wire.string("0-5", ignorable=True)
    topic_id: bytes = wire.uuid("6+", ignorable=True)
    partitions: Sequence[TxnOffsetCommitRequestPartition] = wire.array(TxnOffsetCommitRequestPartition, "0+")


@message(versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    transactional_id: str = wire.string("0+")
    group_id: str = wire.string("0+")
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int16("0+")
    generation_id_or_member_epoch: int = wire.int32("3+", default=-1)
    member_id: str = wire.string("3+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    topics: Sequence[TxnOffsetCommitRequestTopic] = wire.array(TxnOffsetCommitRequestTopic, "0+")


@message
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class TxnOffsetCommitResponseTopic:
    name: str = wire.string("0-5", ignorable=True)
    topic_id: bytes = wire.uuid("6+", ignorable=True)
    partitions: Sequence[TxnOffsetCommitResponsePartition] = wire.array(TxnOffsetCommitResponsePartition, "0+")


@message(versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: int = wire.int32("0+")
    topics: Sequence[TxnOffsetCommitResponseTopic] = wire.array(TxnOffsetCommitResponseTopic, "0+")
