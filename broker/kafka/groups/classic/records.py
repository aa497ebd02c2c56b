"""The record of a classic group in `__consumer_offsets`, byte for byte as Apache Kafka writes it.

`GroupMetadataKey` v2 -> `GroupMetadataValue` v3. A null value deletes.
"""

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot, MemberSnapshot
from anabranch.protocol.codec import decode_versioned, encode_versioned
from anabranch.protocol.messages.embedded.consumer_offsets import GroupMetadataKey, GroupMetadataValue, MemberMetadata

GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3


def group_record(group_id: str, snapshot: GroupSnapshot | None) -> KeyValue:
    """Return the record of a group, or of its deletion."""
    key = encode_versioned(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)
    if snapshot is None:
        return KeyValue(key, None)
    value = GroupMetadataValue(
        protocol_type=snapshot.protocol_type,
        generation=snapshot.generation,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader,
        current_state_timestamp=snapshot.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in snapshot.members
        ],
    )
    return KeyValue(key, encode_versioned(value, GROUP_VALUE_VERSION))


def parse_snapshot(data: bytes) -> GroupSnapshot:
    """Decode the value of a record. Raises MalformedMessage."""
    value = decode_versioned(GroupMetadataValue, data)
    members = tuple(
        MemberSnapshot(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # Version 0 had one timeout for both.
            rebalance_timeout_ms=(
                member.rebalance_timeout if member.rebalance_timeout != -1 else member.session_timeout
            ),
            session_timeout_ms=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    )
    return GroupSnapshot(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol_name=value.protocol,
        leader=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=members,
    )
