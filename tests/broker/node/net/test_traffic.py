"""Counts of traffic by rack: where the rack comes from, and that they are bounded."""

import pytest

from anabranch.broker.node.net.traffic import DELETED, RACK_CHARS_MAX, RACKS_MAX, UNKNOWN_RACK, ClientTraffic, rack_in


@pytest.mark.parametrize(
    ("client_id", "rack"),
    [
        ("rack=eu-1a", "eu-1a"),
        ("orders,rack=eu-1a,team=x", "eu-1a"),
        ("orders;rack=use1-az2", "use1-az2"),
        ("a service rack=b/c.d:1", "b/c.d:1"),
        ("orders", UNKNOWN_RACK),
        ("crack=eu-1a", UNKNOWN_RACK),
        ("rack=", UNKNOWN_RACK),
        ("", UNKNOWN_RACK),
        (None, UNKNOWN_RACK),
    ],
)
def test_a_client_id_may_name_a_rack(client_id: str | None, rack: str) -> None:
    assert rack_in(client_id) == rack


def test_racks_are_told_apart_up_to_a_limit() -> None:
    traffic = ClientTraffic()
    for number in range(2 * RACKS_MAX):
        traffic.of(f"rack-{number}").note_received(1, 10)
    assert len(traffic.racks) == RACKS_MAX + 1
    assert traffic.of("rack-0").received == {1: 10}
    assert traffic.of(UNKNOWN_RACK).received == {1: 10 * RACKS_MAX}


def test_a_rack_that_is_too_long_is_not_known() -> None:
    """All racks are in one answer to other nodes, and in labels of metrics."""
    traffic = ClientTraffic()
    assert traffic.of("r" * (RACK_CHARS_MAX + 1)).rack == UNKNOWN_RACK
    assert traffic.of("r" * RACK_CHARS_MAX).rack == "r" * RACK_CHARS_MAX


def test_streams_that_are_deleted_count_together() -> None:
    traffic = ClientTraffic()
    rack = traffic.of("a")
    for stream_id in range(4):
        rack.note_received(stream_id, 1 << stream_id)
        rack.note_sent(stream_id, 10)
    for _ in range(2):
        traffic.forget_deleted({3})
    assert rack.received == {DELETED: 0b111, 3: 0b1000}
    assert rack.sent == {DELETED: 30, 3: 10}
    assert (rack.received_bytes, rack.sent_bytes, traffic.counts) == (0b1111, 40, 4)
