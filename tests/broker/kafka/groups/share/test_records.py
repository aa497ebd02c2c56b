"""Records of share groups against bytes written down from Apache Kafka's schemas, for its tools to read."""

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.records import GroupRecord, parse_record
from anabranch.broker.kafka.groups.share import records
from anabranch.broker.kafka.groups.share.member import ShareMember
from anabranch.broker.kafka.groups.share.state_partitions import StatePartitions, TopicPartitionSet

TOPIC = bytes(range(16))
TOPIC_TEXT = TOPIC.hex()
MEMBER = ShareMember(
    "m",
    client_id="c",
    client_host="/h",
    topic_names=("t", "u"),
    epoch=7,
    previous_epoch=6,
    assigned=frozenset({TopicIdPartition(TOPIC, 2)}),
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (RecordKey(records.MEMBER, "g", "m"), "000a 0001 67 0001 6d"),
        (RecordKey(records.EPOCH, "g"), "000b 0001 67"),
        (RecordKey(records.TARGET_EPOCH, "g"), "000c 0001 67"),
        (RecordKey(records.TARGET, "g", "m"), "000d 0001 67 0001 6d"),
        (RecordKey(records.CURRENT, "g", "m"), "000e 0001 67 0001 6d"),
        (RecordKey(records.STATES, "g"), "000f 0001 67"),
    ],
)
def test_keys(key: RecordKey, expected: str) -> None:
    raw = records.KINDS.key_bytes(key)
    assert raw == bytes.fromhex(expected)
    assert records.KINDS.parse_key(raw) == key
    assert parse_record(KeyValue(raw, b"v")) == GroupRecord("g", b"v")
    assert parse_record(KeyValue(raw, None)) == GroupRecord("g", None)


def test_keys_of_other_records_are_none_of_these() -> None:
    assert records.KINDS.parse_key(bytes.fromhex("0003 0001 67")) is None
    assert records.KINDS.parse_key(bytes.fromhex("0010 0001 67 0001 74")) is None


def test_epochs() -> None:
    assert records.epoch_value(5, -2) == bytes.fromhex("0000 00000005 fffffffffffffffe 00")
    assert records.parse_epoch(records.epoch_value(5, -2)) == (5, -2)
    assert records.KINDS.target_epoch_value(5, 3) == bytes.fromhex("0000 00000005 01 00 08 0000000000000003")
    assert records.KINDS.parse_target_epoch(records.KINDS.target_epoch_value(5, 3)) == (5, 3)


def test_a_member_with_its_assignment() -> None:
    subscription, current = records.member_value(MEMBER), records.current_value(MEMBER)
    assert subscription == bytes.fromhex("0000 00 02 63 03 2f68 03 02 74 02 75 00")
    assert current == bytes.fromhex(f"0000 00000007 00000006 00 02 {TOPIC_TEXT} 02 00000002 00 00")
    assert records.parse_member("m", subscription, current) == MEMBER
    assert records.parse_member("m", subscription, None).epoch == 0
    target = records.target_value(MEMBER.assigned)
    assert target == bytes.fromhex(f"0000 02 {TOPIC_TEXT} 02 00000002 00 00")
    assert records.parse_target(target) == MEMBER.assigned


def test_states_of_partitions() -> None:
    states = StatePartitions(
        {TOPIC: TopicPartitionSet("t", frozenset({1, 0}))},
        {TOPIC: TopicPartitionSet("t", frozenset({2}))},
        {TOPIC: "t"},
    )
    value = records.states_value(states)
    assert value == bytes.fromhex(
        f"0000 02 {TOPIC_TEXT} 02 74 03 00000000 00000001 00"
        f"02 {TOPIC_TEXT} 02 74 02 00000002 00"
        f"02 {TOPIC_TEXT} 02 74 00 00"
    )
    assert records.parse_states(value) == states
