"""Records compared with bytes written down from Apache Kafka's schemas, so that its tools can read them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.classic.member import subscribed_topics
from anabranch.broker.kafka.groups.classic.records import group_record, parse_snapshot
from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot, MemberSnapshot
from anabranch.broker.kafka.groups.consumer import records as consumer_records
from anabranch.broker.kafka.groups.modern.records import GroupRecords, RecordKey, RecordKinds
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.records import GroupRecord, OffsetRecord, UnknownRecord, offset_record, parse_record
from anabranch.broker.kafka.groups.share import records as share_records
from anabranch.broker.kafka.groups.streams import records as streams_records
from anabranch.protocol.codec import encode_versioned
from anabranch.protocol.messages.embedded.consumer_protocol import ConsumerProtocolSubscription

KEY = TopicPartition("flights", 3)
text = st.text(st.characters(codec="utf-8"), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


def test_an_offset_is_key_version_1_and_value_version_3() -> None:
    record = offset_record("group", KEY, CommittedOffset(42, 7, "where", 1_700_000_000_000))
    assert record.key == bytes.fromhex("0001 0005") + b"group" + bytes.fromhex("0007") + b"flights" + bytes(3) + b"\x03"
    assert record.value == (
        bytes.fromhex("0003 000000000000002a 00000007 0005") + b"where" + bytes.fromhex("0000018bcfe56800")
    )


def test_an_offset_with_an_expiry_time_is_value_version_1() -> None:
    record = offset_record("group", KEY, CommittedOffset(42, 7, "", 1, 2))
    assert record.value == bytes.fromhex("0001 000000000000002a 0000 0000000000000001 0000000000000002")


def test_a_group_is_key_version_2_and_value_version_3() -> None:
    member = MemberSnapshot("m-1", None, "client", "/127.0.0.1", 300_000, 45_000, b"sub", b"ass")
    record = group_record("group", GroupSnapshot("consumer", 5, "range", "m-1", 1_700_000_000_000, (member,)))
    assert record.key == bytes.fromhex("0002 0005") + b"group"
    assert record.value == (
        bytes.fromhex("0003 0008") + b"consumer" + bytes.fromhex("00000005 0005") + b"range" + bytes.fromhex("0003")
        + b"m-1" + bytes.fromhex("0000018bcfe56800 00000001 0003") + b"m-1" + bytes.fromhex("ffff 0006") + b"client"
        + bytes.fromhex("000a") + b"/127.0.0.1" + bytes.fromhex("000493e0 0000afc8 00000003") + b"sub"
        + bytes.fromhex("00000003") + b"ass"
    )  # fmt: skip


@given(text, text, int32, st.builds(CommittedOffset, int64, int32, text, int64, st.just(-1)))
def test_an_offset_reads_back(group: str, topic: str, partition: int, committed: CommittedOffset) -> None:
    key = TopicPartition(topic, partition)
    assert parse_record(offset_record(group, key, committed)) == OffsetRecord(group, key, committed)
    assert parse_record(offset_record(group, key, None)) == OffsetRecord(group, key, None)


members = st.builds(
    MemberSnapshot, text, st.none() | text, text, text, st.integers(0, 2**31 - 1), int32, st.binary(), st.binary()
)


@given(
    text,
    st.builds(GroupSnapshot, text, int32, st.none() | text, st.none() | text, int64, st.lists(members, max_size=3)),
)
def test_a_group_reads_back(group: str, snapshot: GroupSnapshot) -> None:
    found = parse_record(group_record(group, snapshot))
    assert isinstance(found, GroupRecord)
    assert found.value is not None
    parsed = parse_snapshot(found.value)
    assert list(parsed.members) == list(snapshot.members)
    assert group_record(group, parsed) == group_record(group, snapshot)
    assert parse_record(group_record(group, None)) == GroupRecord(group, None)


def test_versions_of_older_nodes_are_read() -> None:
    key = bytes.fromhex("0000 0001") + b"g" + bytes.fromhex("0001") + b"t" + bytes(4)
    value = bytes.fromhex("0000 0000000000000009 0001") + b"m" + bytes.fromhex("0000000000000001")
    assert parse_record(KeyValue(key, value)) == OffsetRecord(
        "g", TopicPartition("t", 0), CommittedOffset(9, -1, "m", 1)
    )
    value = bytes.fromhex("0000 0001") + b"c" + bytes.fromhex("00000001 ffff ffff 00000001 0001") + b"m"
    value += bytes.fromhex("0000 0000 00001770 00000000 00000000")
    assert parse_record(KeyValue(bytes.fromhex("0002 0001") + b"g", value)) == GroupRecord("g", value)
    assert parse_snapshot(value).members[0].rebalance_timeout_ms == 6_000


def test_other_kinds_of_records_are_kept_as_they_are() -> None:
    record = KeyValue(bytes.fromhex("0018 0001") + b"g", b"?")
    assert parse_record(record) == UnknownRecord(*record)


def test_subscribed_topics_are_read_from_every_version_and_not_guessed() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a", "b"])
    for version in range(4):
        assert subscribed_topics(encode_versioned(subscription, version)) == frozenset({"a", "b"})
    assert subscribed_topics(b"\x00\x09" + encode_versioned(subscription, 3)[2:] + b"more") == frozenset({"a", "b"})
    assert subscribed_topics(b"") is None
    assert subscribed_topics(b"\x00\x00\x00\x00\x00\x09") is None


@pytest.mark.parametrize("kinds", [consumer_records.KINDS, share_records.KINDS, streams_records.KINDS])
def test_a_group_with_records_of_several_kinds_can_be_deleted(kinds: RecordKinds[Any, Any]) -> None:
    others = group_record("group", None).key
    own = kinds.key_bytes(RecordKey(kinds.deletion_order[-1], "group"))
    records = GroupRecords("group", kinds, lambda _: None)
    records.load({own: b"", others: b""})
    assert records.tombstones() == [KeyValue(others, None), KeyValue(own, None)]
