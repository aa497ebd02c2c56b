"""Request and response headers, for every API and version."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as PlainHeader
from kio.schema.request_header.v2.header import RequestHeader as FlexibleHeader
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from anabranch.protocol import codec
from anabranch.protocol.api import Api
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.header import (
    RequestHeader,
    parse_request_header,
    response_frame,
    response_header,
)
from anabranch.protocol.messages.api_versions import ApiVersionsResponse
from anabranch.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from anabranch.protocol.registry import APIS, INTERNAL_APIS
from anabranch.protocol.requests import request_frame

EVERY = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize("client_id", [None, "", "client-7", "Kästchen"])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_headers_of_another_implementation_parse(api: Api, client_id: str | None) -> None:
    for version in range(api.min_version, api.max_version + 1):
        kind = FlexibleHeader if api.is_flexible(version) else PlainHeader
        theirs = kind(
            request_api_key=i16(api.key),
            request_api_version=i16(version),
            correlation_id=i32(77),
            client_id=client_id,
        )
        buffer = io.BytesIO()
        entity_writer(kind)(buffer, theirs)
        data = b"size" + buffer.getvalue()
        assert parse_request_header(data, 4) == RequestHeader(api.key, version, 77, client_id, len(data))
        for cut in range(4, len(data)):
            with pytest.raises(MalformedMessage):
                parse_request_header(data[:cut], 4)


@pytest.mark.parametrize(("api", "version"), EVERY, ids=str)
def test_response_headers_have_tags_where_the_version_is_flexible(api: Api, version: int) -> None:
    tags = b"\0" if api.is_flexible(version) and api.name != "ApiVersions" else b""
    assert response_header(api.key, version, 5) == struct.pack(">i", 5) + tags


@pytest.mark.parametrize("api", [*APIS.values(), *INTERNAL_APIS.values()], ids=lambda api: api.name)
def test_request_frames_are_size_header_and_body(api: Api) -> None:
    for version in range(api.min_version, api.max_version + 1):
        frame = b"".join(request_frame(version, 7, b"me", api.request()))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = parse_request_header(frame, 4)
        assert header[:4] == (api.key, version, 7, "me")
        assert codec.decode_exact(api.request, frame, version, header.body_offset) == api.request()


def test_tagged_fields_of_the_header_are_stepped_over() -> None:
    plain = bytes.fromhex("0001 000c 00000007 0001 63")
    assert parse_request_header(plain + b"\0") == RequestHeader(1, 12, 7, "c", 12)
    assert parse_request_header(plain + bytes.fromhex("01 05 03 aabbcc ff")).body_offset == 17
    with pytest.raises(MalformedMessage):
        parse_request_header(plain + bytes.fromhex("01 05 09 aabbcc"))


@pytest.mark.parametrize(
    "data", ["0001 0004 00000007 fffe", "0001 0004 00000007 0005 61", "0001 0004 00000007 0001 ff"]
)
def test_bad_client_ids_are_malformed(data: str) -> None:
    with pytest.raises(MalformedMessage):
        parse_request_header(bytes.fromhex(data))


def test_keys_and_versions_nobody_knows_still_have_a_header() -> None:
    assert parse_request_header(bytes.fromhex("03e7 0005 00000007 ffff"))[:4] == (999, 5, 7, None)
    assert parse_request_header(bytes.fromhex("0012 7fff 00000007 ffff 00"))[:4] == (18, 32767, 7, None)


@given(st.binary(max_size=40))
def test_garbage_is_malformed_or_parses(data: bytes) -> None:
    try:
        header = parse_request_header(data)
    except MalformedMessage:
        return
    assert 10 <= header.body_offset <= len(data)


@pytest.mark.parametrize("records", [None, b"few", bytes(10_000)])
def test_response_frames_are_size_header_and_body(records: bytes | None) -> None:
    partitions = (PartitionData(records=records),)
    response = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=partitions),))
    frame = b"".join(response_frame(1, 12, 5, response))
    assert frame == struct.pack(">iix", len(frame) - 4, 5) + codec.encode(response, 12)


def test_the_answer_to_a_version_too_new_is_readable_by_anyone() -> None:
    frame = b"".join(response_frame(18, 0, 5, ApiVersionsResponse(error_code=35)))
    assert frame == bytes.fromhex("0000000a 00000005 0023 00000000")
