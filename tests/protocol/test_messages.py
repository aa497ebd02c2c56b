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
from tests.support.soak import SOAK

ALL = message_versions()
WITHOUT_PEER = frozenset(
    f"anabranch.protocol.messages.{name}"
    for name in (
        "embedded.consumer_offsets",
        "embedded.share_group_state",
        "embedded.streams_groups",
        "embedded.transaction_state",
        "internal.authenticate",
        "internal.commit_table",
        "internal.describe_balance",
        "internal.describe_loads",
        "internal.describe_metrics",
        "internal.describe_node",
        "internal.describe_runs",
        "internal.describe_shares",
        "internal.stop_node",
        "internal.describe_tables",
        "internal.describe_usage",
        "internal.describe_zones",
        "internal.follow_tail",
        "internal.hand_over",
        "internal.hello",
        "internal.invite_follower",
        "internal.prepare_move",
        "internal.registry_call",
        "internal.relay",
        "streams_group_topology_description_update",
    )
)
"""Modules without an independent implementation: records of coordinators, messages between nodes, and an API of 4.4."""
ALONE = [pair for pair in ALL if not peer_of(*pair)]
"""Those, and versions that are newer than the other implementation, which `test_definitions.py` compares."""
BESIDE_PEER = [pair for pair in ALL if peer_of(*pair)]
EXAMPLES = 100 if SOAK else 5


def name_of(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"v{value}"


@pytest.mark.parametrize(("message_type", "version"), BESIDE_PEER, ids=name_of)
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


@pytest.mark.parametrize(("message_type", "version"), ALONE, ids=name_of)
def test_message_survives_a_round_trip(message_type: type, version: int) -> None:
    @settings(max_examples=EXAMPLES)
    @given(messages(message_type, version), st.binary(max_size=3))
    def check(message: Any, before: bytes) -> None:
        data = before + codec.encode(message, version)
        assert codec.decode(message_type, data, version, len(before)) == (message, len(data))

    check()


def test_all_other_messages_have_an_independent_implementation() -> None:
    with_peer = {message_type.__module__ for message_type, _ in BESIDE_PEER}
    assert {message_type.__module__ for message_type, _ in ALL} - with_peer == WITHOUT_PEER


def test_every_registered_message_is_among_those_checked() -> None:
    checked = {message_type for message_type, _ in ALL}
    apis = APIS.values()
    assert {api.request for api in apis} | {api.response for api in apis} <= checked
