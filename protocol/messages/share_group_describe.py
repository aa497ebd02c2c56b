"""ShareGroupDescribe: state, epochs and members of share groups (KIP-932).

Versions:
    v0  early access in Kafka 4.0, served by no release
    v1  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 77


@message(versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    group_ids: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    include_authorized_operations: bool = wire.boolean("0+")


@message
class TopicPartitions:
    topic_id: bytes = wire.uuid("0+")
    topic_name: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class Assignment:
    topic_partitions: Sequence[TopicPartitions] = wire.array(TopicPartitions, "0+")


@message
class Member:
    member_id: str = wire.string("0+")
    rack_id: str | None = wire.string("0+", nullable="0+", default=None)
    member_epoch: int = wire.int32("0+")
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    subscribed_topic_names: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    assignment: Assignment = wire.struct(Assignment, "0+")


@message
class DescribedGroup:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    group_id: str = wire.string("0+")
    group_state: str = wire.string("0+")
    group_epoch: int = wire.int32("0+")
    assignment_epoch: int = wire.int32("0+")
    assignor_name: str = wire.string("0+")
    members: Sequence[Member] = wire.array(Member, "0+")
    authorized_operations: int = wire.int32("0+", default=-(2**31))


@message(versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    throttle_time_ms: int = wire.int32("0+")
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup, "0+")
