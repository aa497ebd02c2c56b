"""Every message in every version, against an independent implementation and against itself."""

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from anabranch.protocol import codec
from anabranch.protocol.registry import APIS
from tests.protocol.values import assert_same, message_versions, messages, peer_of

ALL = message_versions()
EXAMPLES = 12


def name_of(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"v{value}"


@pytest.mark.parametrize(("message_type", "version"), [pair for pair in ALL if peer_of(*pair)], ids=name_of)
def test_message_agrees_with_an_independent_implementation(message_type: type, version: int) -> None:
    peer: Any = peer_of(message_type, version)
    read, write = entity_reader(peer), entity_writer(peer)

    @settings(max_examples=EXAMPLES)
    @given(messages(message_type, version))
    def check(message: Any) -> None:
        data = codec.encode(message, version)
        theirs, size = read(data, 0)
        assert size == len(data)
        assert_same(message, theirs, version)
        buffer = io.BytesIO()
        write(buffer, theirs)
        assert buffer.getvalue() == data
        assert codec.decode_exact(message_type, buffer.getvalue(), version) == message

    check()


@pytest.mark.parametrize(("message_type", "version"), [pair for pair in ALL if not peer_of(*pair)], ids=name_of)
def test_message_survives_a_round_trip(message_type: type, version: int) -> None:
    @settings(max_examples=EXAMPLES)
    @given(messages(message_type, version), st.binary(max_size=3))
    def check(message: Any, before: bytes) -> None:
        data = before + codec.encode(message, version)
        assert codec.decode(message_type, data, version, len(before)) == (message, len(data))

    check()


def test_only_records_of_coordinators_and_messages_between_nodes_have_no_independent_implementation() -> None:
    modules = {message_type.__module__ for message_type, version in ALL if not peer_of(message_type, version)}
    assert modules == {
        "anabranch.protocol.messages.embedded.consumer_offsets",
        "anabranch.protocol.messages.embedded.transaction_state",
        "anabranch.protocol.messages.internal.authenticate",
        "anabranch.protocol.messages.internal.describe_node",
        "anabranch.protocol.messages.internal.describe_runs",
        "anabranch.protocol.messages.internal.hand_over",
        "anabranch.protocol.messages.internal.hello",
        "anabranch.protocol.messages.internal.prepare_move",
        "anabranch.protocol.messages.internal.registry_call",
        "anabranch.protocol.messages.internal.relay",
    }


def test_every_registered_message_is_among_those_checked() -> None:
    checked = {message_type for message_type, _ in ALL}
    apis = APIS.values()
    assert {api.request for api in apis} | {api.response for api in apis} <= checked
