"""Records of consumer groups against bytes written down from Apache Kafka's schemas, for its tools to read."""

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, MemberState
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.records import GroupRecord, parse_record
from anabranch.broker.kafka.groups.requests import MemberProtocol
from anabranch.protocol.errors import MalformedMessage

TOPIC = bytes(range(16))
OTHER = bytes(range(1, 17))
MEMBER = ConsumerMember(
    member_id="m",
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=300_000,
    topic_names=("t", "u"),
    topic_regex="",
    assignor="range",
    epoch=7,
    previous_epoch=6,
    state=MemberState.UNREVOKED,
    assigned={TopicIdPartition(OTHER, 3): 7, TopicIdPartition(TOPIC, 2): 5},
    revoking={TopicIdPartition(TOPIC, 0): 4},
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (RecordKey(records.EPOCH, "g"), "0003 0001 67"),
        (RecordKey(records.TOPICS, "g"), "0004 0001 67"),
        (RecordKey(records.MEMBER, "g", "m"), "0005 0001 67 0001 6d"),
        (RecordKey(records.TARGET_EPOCH, "g"), "0006 0001 67"),
        (RecordKey(records.TARGET, "g", "m"), "0007 0001 67 0001 6d"),
        (RecordKey(records.CURRENT, "g", "m"), "0008 0001 67 0001 6d"),
        (RecordKey(records.PATTERN, "g", "t.*"), "0010 0001 67 0003 742e2a"),
    ],
)
def test_keys(key: RecordKey, expected: str) -> None:
    raw = records.KINDS.key_bytes(key)
    assert raw == bytes.fromhex(expected)
    assert records.KINDS.parse_key(raw) == key
    assert parse_record(KeyValue(raw, b"v")) == GroupRecord("g", b"v")
    assert parse_record(KeyValue(raw, None)) == GroupRecord("g", None)


def test_keys_of_other_records_are_none_of_these() -> None:
    assert records.KINDS.parse_key(bytes.fromhex("0002 0001 67")) is None
    with pytest.raises(MalformedMessage):
        records.KINDS.parse_key(bytes.fromhex("0003 0009 67"))


def test_epochs() -> None:
    value = records.epoch_value(9, -2)
    # Version 0, epoch, one tagged field: tag 0, 8 bytes.
    assert value == bytes.fromhex("0000 00000009 01 00 08 fffffffffffffffe")
    assert records.parse_epoch(value) == (9, -2)
    value = records.KINDS.target_epoch_value(9, 1)
    assert value == bytes.fromhex("0000 00000009 01 00 08 0000000000000001")
    assert records.KINDS.parse_target_epoch(value) == (9, 1)
    assert records.parse_epoch(bytes.fromhex("0000 00000009 00")) == (9, 0), "as older versions of Kafka write it"


def test_a_target() -> None:
    target = frozenset({TopicIdPartition(TOPIC, 1), TopicIdPartition(TOPIC, 0)})
    value = records.target_value(target)
    assert value == bytes.fromhex("0000 02") + TOPIC + bytes.fromhex("03 00000000 00000001 00 00")
    assert records.parse_target(value) == target


def test_a_member() -> None:
    subscription = records.member_value(MEMBER)
    head = bytes.fromhex("0000 0269 00 0263 032f68 03 0274 0275 01 000493e0 06") + b"range"
    # One tagged field: tag 0, 1 byte, null: it does not speak the classic protocol.
    assert subscription == head + bytes.fromhex("01 00 01 00")
    assert records.parse_member("m", head + b"\0", None).classic is None
    current = records.current_value(MEMBER)
    assert current == (
        bytes.fromhex("0000 00000007 00000006 01 03") + TOPIC + bytes.fromhex("02 00000002 01 00 05 02 00000005")
        + OTHER + bytes.fromhex("02 00000003 01 00 05 02 00000007")
        + bytes.fromhex("02") + TOPIC + bytes.fromhex("02 00000000 01 00 05 02 00000004 00")
    )  # fmt: skip
    assert records.parse_member("m", subscription, current) == MEMBER


def test_a_classic_member() -> None:
    member = ConsumerMember(
        "m", classic=ClassicMemberMetadata(10, (MemberProtocol("r", b"x"), MemberProtocol("s", b"yz")))
    )
    value = records.member_value(member)
    # Tag 0, 18 bytes: not null, session timeout, two protocols.
    assert value.endswith(bytes.fromhex("01 00 12 01 0000000a 03 0272 0278 00 0273 03797a 00 00"))
    assert records.parse_member("m", value, None) == member


def test_a_member_that_kafka_wrote_without_assignment_epochs_has_had_its_partitions_since_its_own() -> None:
    current = bytes.fromhex("0000 00000007 00000006 00 02") + TOPIC + bytes.fromhex("02 00000002 00 01 00")
    member = records.parse_member("m", records.member_value(MEMBER), current)
    assert member.assigned == {TopicIdPartition(TOPIC, 2): 7}
    assert (member.epoch, member.previous_epoch, member.state) == (7, 6, MemberState.STABLE)


def test_a_member_in_an_unknown_state_is_malformed() -> None:
    current = bytes.fromhex("0000 00000007 00000006 7f 01 01 00")
    with pytest.raises(MalformedMessage, match="state 127"):
        records.parse_member("m", records.member_value(MEMBER), current)


def test_a_member_without_an_assignment_is_new() -> None:
    member = records.parse_member("m", records.member_value(MEMBER), None)
    assert (member.epoch, member.assigned, member.topic_names) == (0, {}, ("t", "u"))


def test_a_pattern() -> None:
    value = records.pattern_value(["b", "a"], 5, 6)
    assert value == bytes.fromhex("0000 03 0261 0262 0000000000000005 0000000000000006 00")
    assert records.parse_pattern(value) == frozenset({"a", "b"})
