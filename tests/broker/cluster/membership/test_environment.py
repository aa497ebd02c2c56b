"""Ids that a node makes."""

from collections.abc import Iterator

from anabranch.broker.cluster.membership.environment import Environment
from anabranch.protocol.ids import uuid_text


def test_no_topic_id_begins_with_a_dash() -> None:
    """One of 64 would, and be taken for an option by `topic attach` and Kafka's tools."""
    drawn: Iterator[bytes] = iter([b"\xfb" + bytes(15), b"\xf8" + bytes(15), b"\x01" * 16])
    environment = Environment(random_bytes=lambda _size: next(drawn))
    assert not uuid_text(environment.new_topic_id()).startswith("-")
    assert next(drawn, None) is None
