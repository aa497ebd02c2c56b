"""ShareGroupDescribe: the state and members of share groups (KIP-932).

Versions:
    v1  oldest version served
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 77


@message(versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    """Request of the ShareGroupDescribe API."""

    group_ids: Sequence[str] = wire.array(wire.Kind.STRING, "1+")
    include_authorized_operations: bool = wire.boolean("1+")


@message
class TopicPartitions:
    """An element of `Assignment.topic_partitions`."""

    topic_id: bytes = wire.uuid("1+")
    topic_name: str = wire.string("1+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "1+")


@message
class Assignment:
    """The value of `Member.assignment`."""

    topic_partitions: Sequence[TopicPartitions] = wire.array(TopicPartitions, "1+")


@message
class Member:
    """An element of `DescribedGroup.members`."""

    member_id: str = wire.string("1+")
    rack_id: str | None = wire.string("1+", nullable="1+", default=None)
    member_epoch: int = wire.int32("1+")
    client_id: str = wire.string("1+")
    client_host: str = wire.string("1+")
    subscribed_topic_names: Sequence[str] = wire.array(wire.Kind.STRING, "1+")
    assignment: Assignment = wire.struct(Assignment, "1+")


@message
class DescribedGroup:
    """An element of `ShareGroupDescribeResponse.groups`."""

    error_code: int = wire.int16("1+")
    error_message: str | None = wire.string("1+", nullable="1+", default=None)
    group_id: str = wire.string("1+")
    group_state: str = wire.string("1+")
    group_epoch: int = wire.int32("1+")
    assignment_epoch: int = wire.int32("1+")
    assignor_name: str = wire.string("1+")
    members: Sequence[Member] = wire.array(Member, "1+")
    authorized_operations: int = wire.int32("1+", default=-(2**31))


@message(versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    """Response of the ShareGroupDescribe API."""

    throttle_time_ms: int = wire.int32("1+")
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup, "1+")
