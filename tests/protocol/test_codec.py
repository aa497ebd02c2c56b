"""Guarantees of the codec: golden bytes, named errors for bad bytes and bad values, unknown tags, parts for a send."""

import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.protocol import codec
from anabranch.protocol.api import Api
from anabranch.protocol.decoder import ELEMENTS_MAX, TAGS_MAX
from anabranch.protocol.errors import MalformedMessage, UnencodableMessage, UnsupportedVersion
from anabranch.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from anabranch.protocol.messages.create_topics import CreateTopicsRequest
from anabranch.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from anabranch.protocol.messages.embedded.consumer_offsets import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from anabranch.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.write_txn_markers import (
    MarkerSender,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from anabranch.protocol.registry import APIS
from anabranch.protocol.varint import uvarint
from tests.fuzz.messages import random_message
from tests.protocol.values import message_versions, messages
from tests.support.soak import SOAK

ALL = message_versions()

PRODUCE = ProduceRequest(
    acks=-1,
    timeout_ms=1500,
    topic_data=(TopicProduceData(name="flights", partition_data=(PartitionProduceData(index=2, records=b"batch"),)),),
)

GOLDEN: list[tuple[Any, int, str]] = [
    (ApiVersionsRequest(), 0, ""),
    (
        ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7"),
        3,
        "05 6b636174 04 312e37 00",
    ),
    (
        ApiVersionsResponse(api_keys=(ApiVersion(api_key=18, min_version=0, max_version=4),), throttle_time_ms=7),
        1,
        "0000 00000001 0012 0000 0004 00000007",
    ),
    (
        ApiVersionsResponse(
            api_keys=(ApiVersion(api_key=18, min_version=0, max_version=4),),
            supported_features=(SupportedFeatureKey(name="f", min_version=0, max_version=2),),
            finalized_features_epoch=9,
        ),
        3,
        "0000 02 0012 0000 0004 00 00000000 02  00 08 02 02 66 0000 0002 00  01 08 0000000000000009",
    ),
    (
        PRODUCE,
        3,
        "ffff ffff 000005dc 00000001 0007 666c6967687473 00000001 00000002 00000005 6261746368",
    ),
    (PRODUCE, 9, "00 ffff 000005dc 02 08 666c6967687473 02 00000002 06 6261746368 00 00 00"),
    (MetadataRequest(topics=None), 1, "ffffffff"),
    (MetadataRequest(topics=()), 1, "00000000"),
    (MetadataRequest(topics=None), 9, "00 01 00 00 00"),
    (
        MetadataRequest(topics=(MetadataRequestTopic(name=None, topic_id=bytes(range(16))),)),
        12,
        "02 000102030405060708090a0b0c0d0e0f 00 00 01 00 00",
    ),
    (DescribeTopicPartitionsRequest(response_partition_limit=3), 0, "01 00000003 ff 00"),
    (
        DescribeTopicPartitionsRequest(response_partition_limit=3, cursor=Cursor(topic_name="t", partition_index=1)),
        0,
        "01 00000003 01 02 74 00000001 00 00",
    ),
    (OffsetCommitKey(group="g", topic="t", partition=5), 1, "0001 67 0001 74 00000005"),
    (GroupMetadataKey(group="g"), 2, "0001 67"),
    (
        OffsetCommitValue(offset=42, leader_epoch=1, metadata="m", commit_timestamp=1000),
        3,
        "000000000000002a 00000001 0001 6d 00000000000003e8",
    ),
    (
        OffsetCommitValue(offset=42, metadata="", commit_timestamp=1000, expire_timestamp=2000),
        1,
        "000000000000002a 0000 00000000000003e8 00000000000007d0",
    ),
    (
        # A structure in a tagged field is null by a varint, not by an int8.
        ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="h",
            instance_id=None,
            rack_id=None,
            subscribed_topic_regex=None,
            server_assignor=None,
            classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=5),
        ),
        0,
        "00 00 02 63 02 68 01 00 ffffffff 00  01 00 07 01 00000005 01 00",
    ),
    (
        ConsumerGroupMemberMetadataValue(client_id="c", client_host="h", classic_member_metadata=None),
        0,
        "01 01 02 63 02 68 01 01 ffffffff 01  01 00 01 00",
    ),
]


@pytest.mark.parametrize(("message", "version", "expected"), GOLDEN)
def test_message_has_the_bytes_of_the_specification(message: Any, version: int, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert codec.encode(message, version) == data
    assert codec.decode_exact(type(message), data, version) == message


TYPES: list[type] = sorted({message_type for message_type, _ in ALL}, key=lambda m: str(m.__name__))


@pytest.mark.parametrize("message_type", TYPES, ids=lambda m: m.__name__)
def test_garbage_and_truncations_are_malformed_or_parse(message_type: type) -> None:
    versions = [v for m, v in ALL if m is message_type]
    strategy = messages(message_type, versions[-1])

    @settings(max_examples=60 if SOAK else 3, suppress_health_check=list(HealthCheck))
    @given(strategy, st.sampled_from(versions), st.randoms(use_true_random=False), st.binary(max_size=40))
    def check(message: Any, version: int, chance: random.Random, garbage: bytes) -> None:
        data = codec.encode(message, versions[-1])
        for cut in range(min(len(data), 300)):
            with pytest.raises(MalformedMessage):
                codec.decode(message_type, data[:cut], versions[-1])
        with pytest.raises(MalformedMessage):
            codec.decode_exact(message_type, data + b"\0", versions[-1])
        attempt(message_type, garbage, version)
        attempt(message_type, data, version)
        for _ in range(20):
            damaged = bytearray(data)
            for _ in range(chance.randint(1, 3)):
                if damaged:
                    damaged[chance.randrange(len(damaged))] = chance.choice(
                        (0, 1, 127, 128, 255, chance.randrange(256))
                    )
            attempt(message_type, bytes(damaged), versions[-1])

    check()


def attempt(message_type: type, data: bytes, version: int) -> None:
    """Decode; anything but a message or MalformedMessage is a failure."""
    try:
        decoded: tuple[Any, int] = codec.decode(message_type, data, version)
    except MalformedMessage:
        return
    assert isinstance(decoded[0], message_type)
    assert decoded[1] <= len(data)


@pytest.mark.parametrize(
    ("message_type", "version", "data"),
    [
        (MetadataRequest, 1, "fffffffe"),
        (MetadataRequest, 1, "7fffffff"),
        (MetadataRequest, 1, "00000001 ffff"),
        (MetadataRequest, 1, "00000001 8000"),
        (MetadataRequest, 1, "00000001 0002 ff80"),
        (MetadataRequest, 0, "ffffffff"),
        (MetadataRequest, 9, "ffffffff0f 00000000"),
        (MetadataRequest, 9, "ffffffff7f 00000000"),
        (MetadataRequest, 9, "8080808080 00"),
        (MetadataRequest, 9, "02 00 00 01 00 00 00"),
        (MetadataRequest, 9, "01 00 00 00 01 05"),
        (MetadataRequest, 9, "01 00 00 00 01 05 09 ff"),
        (MetadataRequest, 9, "01 00 00 00 ff7f"),
        (MetadataRequest, 9, "01 00 00 00 01 05 03 6162"),
        (FetchRequest, 12, "00000000 00000000 00000000 7fffffff 00 00000000 ffffffff 01 01 01 01 00 02 00 00"),
        (ProduceRequest, 3, "ffff ffff 00000000 00000001 0001 74 00000001 00000000 fffffffe"),
        (ProduceRequest, 3, "ffff ffff 00000000 00000001 0001 74 00000001 00000000 00000001"),
    ],
)
def test_bad_lengths_are_malformed(message_type: type, version: int, data: str) -> None:
    with pytest.raises(MalformedMessage):
        codec.decode(message_type, bytes.fromhex(data), version)


def test_errors_name_the_message_and_the_field() -> None:
    data = bytes.fromhex("00000001 0009 74")
    with pytest.raises(
        MalformedMessage, match=r"MetadataRequest v1: MetadataRequestTopic\.name before byte 6: length 9"
    ):
        codec.decode_exact(MetadataRequest, data, 1)
    with pytest.raises(MalformedMessage, match="MetadataRequest v1: truncated"):
        codec.decode_exact(MetadataRequest, data[:3], 1)
    with pytest.raises(MalformedMessage, match="not UTF-8"):
        codec.decode_exact(MetadataRequest, bytes.fromhex("00000001 0001 ff"), 1)
    with pytest.raises(MalformedMessage, match="2 bytes after its end"):
        codec.decode_exact(MetadataRequest, bytes.fromhex("ffffffff 0000"), 1)


def test_a_claimed_count_allocates_nothing() -> None:
    data = bytes.fromhex("7fffffff") + bytes(1000)
    codec.encode(MetadataRequest(), 1)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            codec.decode(MetadataRequest, data, 1)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_unknown_tagged_fields_are_stepped_over() -> None:
    known = FetchRequest(cluster_id="c", max_wait_ms=5, rack_id="r")
    data = codec.encode(known, 12)
    assert data.endswith(bytes.fromhex("01 00 02 02 63"))
    more = data[:-5] + bytes.fromhex("03 00 02 02 63") + uvarint(77) + uvarint(200) + bytes(200) + uvarint(300) + b"\0"
    assert codec.decode_exact(FetchRequest, more, 12) == known
    request = codec.encode(MetadataRequest(topics=()), 9)
    more = request[:-1] + b"\x01\x63\x02ab"
    assert codec.decode_exact(MetadataRequest, more, 9) == MetadataRequest(topics=())


def test_own_tagged_fields_are_for_readers_that_know_them() -> None:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=(1,), leader_epochs=(4,))
    sender = MarkerSender(node_id=1, node_epoch=2, sequence=3)
    request = WriteTxnMarkersRequest(markers=(WritableTxnMarker(topics=(topic,)),), sender=sender)
    assert codec.decode_exact(WriteTxnMarkersRequest, codec.encode(request, 2), 2) == request
    plain = codec.decode_exact(WriteTxnMarkersRequest, codec.encode(request, 1), 1)
    assert (plain.sender, plain.markers[0].topics[0].leader_epochs) == (None, ())
    known = codec.encode(WriteTxnMarkersRequest(markers=(WritableTxnMarker(topics=(WritableTxnMarkerTopic(),)),)), 2)
    assert known == b"\x02" + bytes(11) + b"\x02\x01\x01\0" + bytes(4) + b"\0\0\0", "without values they take no bytes"


def test_a_known_tagged_field_must_fill_its_size() -> None:
    data = codec.encode(FetchRequest(cluster_id="c"), 12)
    with pytest.raises(MalformedMessage, match="cluster_id"):
        codec.decode_exact(FetchRequest, data[:-5] + bytes.fromhex("01 00 03 02 63 00"), 12)


def test_fields_a_version_lacks_are_dropped_or_refused() -> None:
    topic = MetadataRequestTopic(name="t", topic_id=bytes(range(16)))
    assert codec.encode(MetadataRequest(topics=(topic,)), 1) == bytes.fromhex("00000001 0001 74")
    with pytest.raises(UnencodableMessage, match="allow_auto_topic_creation is False, but version 3"):
        codec.encode(MetadataRequest(topics=(), allow_auto_topic_creation=False), 3)
    with pytest.raises(UnencodableMessage, match="require_stable"):
        codec.encode(OffsetFetchRequest(group_id="g", topics=(), require_stable=True), 5)
    with pytest.raises(UnencodableMessage, match="node_endpoints"):
        codec.encode(FetchResponse(node_endpoints=(NodeEndpoint(node_id=1),)), 15)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (MetadataRequest(topics=None), 0),
        (MetadataRequest(topics=(MetadataRequestTopic(name=None),)), 1),
        (MetadataRequest(topics=(MetadataRequestTopic(name="x" * 40_000),)), 1),
        (MetadataRequest(topics=(MetadataRequestTopic(name="x" * 40_000),)), 9),
        (MetadataRequest(topics=(MetadataRequestTopic(name="\ud800"),)), 1),
        (ProduceRequest(acks=2**15), 3),
        (CreateTopicsRequest(timeout_ms="soon"), 5),  # type: ignore[arg-type]  # the point of the case
        (CreateTopicsRequest(topics=3), 5),  # type: ignore[arg-type]  # the point of the case
    ],
)
def test_values_that_do_not_fit_are_refused(message: Any, version: int) -> None:
    with pytest.raises(UnencodableMessage):
        codec.encode(message, version)


@pytest.mark.parametrize("version", [-1, 2, 14, 32767])
def test_versions_a_message_lacks_are_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match="ProduceRequest has no version"):
        codec.decode(ProduceRequest, b"", version)
    with pytest.raises(UnsupportedVersion):
        codec.encode(PRODUCE, version)
    with pytest.raises(UnsupportedVersion):
        codec.encode(PartitionProduceData(), 9)


def test_decoded_records_are_views_of_the_input() -> None:
    frame = bytearray(codec.encode(PRODUCE, 9))
    request, end = codec.decode(ProduceRequest, memoryview(frame), 9)
    records = request.topic_data[0].partition_data[0].records
    assert end == len(frame)
    assert isinstance(records, memoryview)
    assert records.obj is frame
    records[0:5] = b"BATCH"
    assert b"BATCH" in frame


def fetch_response(*records: Any) -> FetchResponse:
    partitions = tuple(PartitionData(partition_index=i, records=r) for i, r in enumerate(records))
    return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=partitions),))


@pytest.mark.parametrize("version", [4, 11, 12])
def test_parts_join_what_is_small_and_hand_on_what_is_big(version: int) -> None:
    big, views = bytes(5000), (memoryview(bytes(4000)), memoryview(b"tail" * 10))
    response = fetch_response(None, b"small", big, views, big)
    parts = codec.encode_parts(response, version, b"head")
    assert b"".join(parts) == b"head" + codec.encode(response, version)
    assert [part for part in parts if len(part) >= 4000] == [big, views[0], big]
    assert any(part is big for part in parts)
    assert any(part is views[0] for part in parts)
    # Head, big, between, two views, between, big, and in flexible versions the tags that end it.
    assert len(parts) == (8 if version >= 12 else 7)
    decoded = codec.decode_exact(FetchResponse, b"".join(parts), version, 4)
    found = [None if p.records is None else bytes(p.records) for p in decoded.responses[0].partitions]  # type: ignore[arg-type]  # decoded records are one buffer
    assert found == [None, b"small", big, b"".join(views), big]


def test_tagged_structures_are_written_only_when_set() -> None:
    plain = codec.encode(fetch_response(b""), 12)
    partition = PartitionData(records=b"", current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=4))
    response = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),))
    data = codec.encode(response, 12)
    assert data == plain[:-3] + bytes.fromhex("01 01 09 00000003 00000004 00 00 00")
    assert codec.decode_exact(FetchResponse, data, 12) == response


def test_small_messages_are_one_part() -> None:
    assert codec.encode_parts(PRODUCE, 3, b"head") == [b"head" + codec.encode(PRODUCE, 3)]


@pytest.mark.parametrize("records", [b"few", bytes(100_000)])
def test_frame_begins_with_the_size_of_the_rest(records: bytes) -> None:
    response = fetch_response(records)
    frame = b"".join(codec.encode_frame(response, 12, b"header"))
    assert frame == struct.pack(">i", len(frame) - 4) + b"header" + codec.encode(response, 12)


def test_versioned_messages_carry_their_version() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=1)
    data = codec.encode_versioned(key, 1)
    assert codec.read_version(data) == 1
    assert codec.decode_exact(OffsetCommitKey, data, 1, 2) == key
    with pytest.raises(MalformedMessage):
        codec.read_version(b"\0")


def test_fixed_size_fields_in_a_row_are_one_struct_call() -> None:
    source = codec.generated_source(FetchRequest, 11)
    assert "o1.replica_id, o1.max_wait_ms, o1.min_bytes, o1.max_bytes, o1.isolation_level" in source
    assert "unpack_iiiibiii(b, p)" in source
    assert "pack_iiiibiii(o.replica_id, " in source


def test_messages_are_values() -> None:
    assert MetadataRequest(topics=()) == MetadataRequest(topics=())
    assert hash(PRODUCE) == hash(codec.decode_exact(ProduceRequest, codec.encode(PRODUCE, 3), 3))
    with pytest.raises(AttributeError):
        object.__setattr__(PRODUCE, "other", 1)


def test_messages_are_constructed_by_the_names_of_their_fields() -> None:
    for _ in range(2):  # the first construction of a class compiles its constructor
        with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
            Cursor(nothing=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="positional argument"):
            Cursor("t")  # type: ignore[call-arg]
        assert repr(Cursor(topic_name="t")) == "Cursor(topic_name='t', partition_index=0)"


def test_many_elements_are_decoded_and_more_are_refused_before_they_take_memory() -> None:
    element = struct.pack(">h1s", 1, b"a")

    def request(count: int) -> bytes:
        return struct.pack(">i", count) + element * count

    message, _ = codec.decode(MetadataRequest, request(ELEMENTS_MAX), 1)
    assert len(message.topics or ()) == ELEMENTS_MAX
    del message
    too_many = request(2 * ELEMENTS_MAX)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match=f"more than {ELEMENTS_MAX} elements in one message"):
            codec.decode(MetadataRequest, too_many, 1)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_elements_of_nested_arrays_count_together() -> None:
    outer = 1000
    inner = ELEMENTS_MAX // outer

    def request(count: int) -> bytes:
        partitions = [PartitionProduceData(index=0, records=None)] * count
        topics = [TopicProduceData(name="t", partition_data=partitions)] * outer
        return codec.encode(ProduceRequest(acks=1, timeout_ms=1, topic_data=topics), 9)

    codec.decode_exact(ProduceRequest, request(inner - 1), 9)
    with pytest.raises(
        MalformedMessage, match=r"ProduceRequest v9: TopicProduceData\.partition_data before byte .* more"
    ):
        codec.decode(ProduceRequest, request(inner), 9)


@pytest.mark.parametrize("count", [TAGS_MAX, TAGS_MAX + 1])
def test_the_number_of_unknown_tags_is_limited(count: int) -> None:
    tags = uvarint(count) + b"".join(uvarint(100 + at) + b"\0" for at in range(count))
    data = codec.encode(MetadataRequest(topics=()), 9)[:-1] + tags
    if count <= TAGS_MAX:
        codec.decode_exact(MetadataRequest, data, 9)
    else:
        with pytest.raises(MalformedMessage, match=f"tagged fields before byte .*: length {count} is not possible"):
            codec.decode(MetadataRequest, data, 9)


SMALL_FRAME_BYTES_MAX = 600
BOMBS = (b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff\xff\x03")
"""The largest lengths and counts, fixed or varint."""


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_no_length_in_a_small_request_takes_memory(api: Api) -> None:
    """Each length and count is replaced by the largest: they are at all positions, so all are overwritten in turn."""
    chance = random.Random(1)
    for version in range(api.min_version, api.max_version + 1):
        data = codec.encode(random_message(api.request, version, chance), version)[:SMALL_FRAME_BYTES_MAX]
        attempt(api.request, data, version)  # compiles the decoder
        tracemalloc.start()
        try:
            for at in range(len(data)):
                for bomb in BOMBS:
                    attempt(api.request, data[:at] + bomb + data[at + len(bomb) :], version)
            assert tracemalloc.get_traced_memory()[1] < 200_000
        finally:
            tracemalloc.stop()
