"""The API table, the error codes and the small integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as TheirCode

from anabranch.protocol.errors import CorruptBatch, ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from anabranch.protocol.registry import APIS, INTERNAL_APIS
from anabranch.protocol.varint import read_uvarint, read_varlong, uvarint, varlong
from anabranch.protocol.wire import Versions

# Key, name and versions of the APIs, as Apache Kafka 4.4 has them.
TABLE = """
0 Produce 0-13; 1 Fetch 4-18; 2 ListOffsets 1-11; 3 Metadata 0-13; 8 OffsetCommit 2-10; 9 OffsetFetch 1-10;
10 FindCoordinator 0-6; 11 JoinGroup 0-9; 12 Heartbeat 0-4; 13 LeaveGroup 0-5; 14 SyncGroup 0-5; 15 DescribeGroups 0-6;
16 ListGroups 0-5; 17 SaslHandshake 0-1; 18 ApiVersions 0-5; 19 CreateTopics 2-7; 20 DeleteTopics 1-6;
21 DeleteRecords 0-2; 22 InitProducerId 0-5; 23 OffsetForLeaderEpoch 2-4; 24 AddPartitionsToTxn 0-5;
25 AddOffsetsToTxn 0-4; 26 EndTxn 0-5; 27 WriteTxnMarkers 1-2; 28 TxnOffsetCommit 0-6; 29 DescribeAcls 1-3;
30 CreateAcls 1-3; 31 DeleteAcls 1-3; 32 DescribeConfigs 1-4; 33 AlterConfigs 0-2; 34 AlterReplicaLogDirs 1-2;
35 DescribeLogDirs 1-5; 36 SaslAuthenticate 0-2; 37 CreatePartitions 0-3; 38 CreateDelegationToken 1-3;
39 RenewDelegationToken 1-2; 40 ExpireDelegationToken 1-2; 41 DescribeDelegationToken 1-3; 42 DeleteGroups 0-3;
43 ElectLeaders 0-2; 44 IncrementalAlterConfigs 0-1; 45 AlterPartitionReassignments 0-1;
46 ListPartitionReassignments 0-0; 47 OffsetDelete 0-0; 48 DescribeClientQuotas 0-1; 49 AlterClientQuotas 0-1;
50 DescribeUserScramCredentials 0-0; 51 AlterUserScramCredentials 0-0; 55 DescribeQuorum 0-2; 57 UpdateFeatures 0-2;
60 DescribeCluster 0-2; 61 DescribeProducers 0-0; 64 UnregisterBroker 0-0; 65 DescribeTransactions 0-0;
66 ListTransactions 0-2; 68 ConsumerGroupHeartbeat 0-1; 69 ConsumerGroupDescribe 0-1;
71 GetTelemetrySubscriptions 0-0; 72 PushTelemetry 0-0; 74 ListConfigResources 0-1; 75 DescribeTopicPartitions 0-0;
76 ShareGroupHeartbeat 1-1; 77 ShareGroupDescribe 1-1; 78 ShareFetch 1-2; 79 ShareAcknowledge 1-2;
83 InitializeShareGroupState 0-0; 84 ReadShareGroupState 0-0; 85 WriteShareGroupState 0-1; 86 DeleteShareGroupState 0-0;
87 ReadShareGroupStateSummary 0-1; 88 StreamsGroupHeartbeat 0-1; 89 StreamsGroupDescribe 0-1;
90 DescribeShareGroupOffsets 0-1; 91 AlterShareGroupOffsets 0-0; 92 DeleteShareGroupOffsets 0-0;
93 StreamsGroupTopologyDescriptionUpdate 0-0
"""


NEWER_ERRORS = {
    "GROUP_DELETION_FAILED",
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED",
    "CONTROLLER_ID_NOT_REGISTERED",
}
"""Errors of Apache Kafka 4.4, which are newer than the other list."""


def test_the_table_is_apache_kafkas() -> None:
    rows = [row.split() for row in TABLE.replace("\n", " ").split(";")]
    expected = {(int(key), name, versions) for key, name, versions in rows}
    found = {(api.key, api.name, f"{api.advertised_min_version}-{api.max_version}") for api in APIS.values()}
    assert found == expected


def test_produce_advertises_versions_it_does_not_serve() -> None:
    produce = APIS[0]
    assert (produce.advertised_min_version, produce.min_version, produce.max_version) == (0, 3, 13)
    assert all(api.advertised_min_version == api.min_version for api in APIS.values() if api.key != 0)


def test_flexibility_begins_at_a_version_or_never() -> None:
    assert [APIS[0].is_flexible(v) for v in (8, 9)] == [False, True]
    assert not APIS[17].is_flexible(1)
    assert not APIS[47].is_flexible(0)


def test_error_codes_agree_with_an_independent_list() -> None:
    ours = {(code.name, int(code), code.retriable) for code in ErrorCode}
    theirs = {(code.name.upper(), int(code), code.retriable) for code in TheirCode}
    assert theirs <= ours
    assert {name for name, _, _ in ours - theirs} == NEWER_ERRORS
    assert all(code.message for code in ErrorCode if code is not ErrorCode.NONE)


def test_errors_carry_code_and_message() -> None:
    error = KafkaError(ErrorCode.NOT_COORDINATOR)
    assert (error.code, error.message) == (16, "This is not the correct coordinator.")
    assert str(error) == "NOT_COORDINATOR: This is not the correct coordinator."
    assert KafkaError(ErrorCode.INVALID_CONFIG, "why").message == "why"
    assert CorruptBatch().code is ErrorCode.CORRUPT_MESSAGE
    assert UnsupportedVersion("v").code is ErrorCode.UNSUPPORTED_VERSION


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_round_trip(n: int) -> None:
    assert read_uvarint(b"x" + uvarint(n) + b"\xff", 1) == (n, 1 + len(uvarint(n)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_varints_round_trip(n: int) -> None:
    assert read_varlong(b"x" + varlong(n) + b"\xff", 1) == (n, 1 + len(varlong(n)))


@pytest.mark.parametrize(
    ("n", "data"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")]
)
def test_unsigned_varints_have_the_bytes_of_the_specification(n: int, data: str) -> None:
    assert uvarint(n) == bytes.fromhex(data)


@pytest.mark.parametrize(("n", "data"), [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (150, "ac02")])
def test_signed_varints_have_the_bytes_of_the_specification(n: int, data: str) -> None:
    assert varlong(n) == bytes.fromhex(data)


def test_varints_are_bounded() -> None:
    for data in ("ffffffffff00", "ffffffff1f"):
        with pytest.raises(MalformedMessage):
            read_uvarint(bytes.fromhex(data), 0)
    for data in ("ff" * 10 + "00", "ff" * 9 + "02"):
        with pytest.raises(MalformedMessage):
            read_varlong(bytes.fromhex(data), 0)
    with pytest.raises(IndexError):
        read_uvarint(b"\x80", 0)


def test_versions_read_kafkas_notation() -> None:
    assert [v for v in range(20) if v in Versions.parse("3-5")] == [3, 4, 5]
    assert 32767 in Versions.parse("7+")
    assert 6 not in Versions.parse("7+")
    assert [v for v in range(9) if v in Versions.parse("4")] == [4]
    assert 0 not in Versions.parse("none")
    assert 0 not in Versions.parse(None)


def test_apis_between_nodes_have_keys_that_apache_kafka_will_never_use() -> None:
    names = [
        "Hello",
        "Authenticate",
        "PrepareMove",
        "HandOver",
        "Relay",
        "DescribeRuns",
        "RegistryCall",
        "DescribeNode",
        "DescribeTables",
        "CommitTable",
        "DescribeShares",
        "DescribeLoads",
        "DescribeBalance",
        "DescribeMetrics",
        "StopNode",
        "DescribeUsage",
        "FollowTail",
        "InviteFollower",
        "DescribeZones",
    ]
    assert {key: api.name for key, api in INTERNAL_APIS.items()} == dict(enumerate(names, 32_000))
    assert not INTERNAL_APIS.keys() & APIS.keys()
