"""ConsumerGroupDescribe: the state and members of consumer groups (KIP-848).

Versions:
    v0  first version. flexible
    v1  response adds groups.members.member_type
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 69


@message(versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
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
    instance_id: str | None = wire.string("0+", nullable="0+", default=None)
    rack_id: str | None = wire.string("0+", nullable="0+", default=None)
    member_epoch: int = wire.int32("0+")
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    subscribed_topic_names: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    subscribed_topic_regex: str | None = wire.string("0+", nullable="0+", default=None)
    assignment: Assignment = wire.struct(Assignment, "0+")
    target_assignment: Assignment = wire.struct(Assignment, "0+")
    member_type: int = wire.int8("1+", default=-1, ignorable=True)


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


@message(versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = wire.int32("0+")
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup, "0+")
