"""Named listeners: formats, defaults, and slips."""

import socket
from typing import Any

import pytest

from anabranch.addresses import is_loopback
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.listeners import Listener, SecurityProtocol
from anabranch.broker.node.settings.sources import load

PLAINTEXT, SSL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL


def listeners(**values: str) -> list[Listener]:
    area = {f"listener.{name}": value for name, value in values.items()}
    return list(load({**area, "admin.enabled": "false"}, {}).listeners)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Listener("PLAINTEXT", PLAINTEXT, "127.0.0.1", 9092, "127.0.0.1", 0)),
        (
            {"host": "0.0.0.0", "port": "1", "advertised_host": "a", "advertised_port": "2"},
            Listener("PLAINTEXT", PLAINTEXT, "0.0.0.0", 1, "a", 2),
        ),
        ({"host": "0.0.0.0"}, Listener("PLAINTEXT", PLAINTEXT, "0.0.0.0", 9092, "0.0.0.0", 0)),
    ],
)
def test_without_names_a_node_has_one_listener(values: dict[str, str], expected: Listener) -> None:
    assert listeners(**values) == [expected]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"listeners": " PLAINTEXT://127.0.0.1:0 , IN://[::1]:7", "security_protocol_map": "in:plaintext"},
            [
                Listener("PLAINTEXT", PLAINTEXT, "127.0.0.1", 0, "127.0.0.1", 0),
                Listener("IN", PLAINTEXT, "::1", 7, "::1", 0),
            ],
        ),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:1", "advertised_listeners": "PLAINTEXT://a.example:0"},
            [Listener("PLAINTEXT", PLAINTEXT, "0.0.0.0", 1, "a.example", 0)],
        ),
        (
            {"listeners": "PLAINTEXT://:1"},
            [Listener("PLAINTEXT", PLAINTEXT, "0.0.0.0", 1, socket.gethostname(), 0)],
        ),
        (
            {"listeners": "PLAINTEXT://b:1", "host": "a", "port": "2", "advertised_host": "c"},
            [Listener("PLAINTEXT", PLAINTEXT, "b", 1, "b", 0)],
        ),
    ],
)
def test_listeners_are_named_as_in_kafka(values: dict[str, str], expected: list[Listener]) -> None:
    assert listeners(**values) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"listeners": "127.0.0.1:9092"}, "listener.listeners: expected NAME://HOST:PORT, such as"),
        ({"listeners": "A://h:99999"}, "found 'A://h:99999'"),
        ({"listeners": "A://[::1:1"}, "found 'A://[::1:1'"),
        (
            {"listeners": "SECURE://h:1"},
            "no protocol for listener SECURE: add SECURE:SSL, or another of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "PLAINTEXT is named twice"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "cannot connect to 0.0.0.0: announce PLAINTEXT://HOST:PORT"),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised_listeners": "OTHER://h:1"},
            "advertised_listeners: OTHER is not among listener.listeners",
        ),
        ({"advertised_listeners": "PLAINTEXT://h:1"}, "set without listener.listeners"),
        (
            {"security_protocol_map": "A"},
            "expected NAME:PROTOCOL with a protocol of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, found 'A'",
        ),
        ({"security_protocol_map": "A:SASL"}, "found 'A:SASL'"),
        (
            {"listeners": "PLAINTEXT://h:1,B://h:1", "security_protocol_map": "B:PLAINTEXT"},
            "setting listener.listeners (B): 1 is also listener.listeners (PLAINTEXT), at the same address (h)",
        ),
    ],
)
def test_a_slip_is_named_in_one_line(values: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        listeners(**values)
    assert expected in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_loopback_is_known(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "127.0.0.1"),
        ({"cluster.internal_port": 2}, "192.0.2.1"),
        ({"catalog.url": "postgresql://db.example/anabranch"}, "192.0.2.1"),
        ({"cluster.internal_host": "192.0.2.2"}, "192.0.2.2"),
    ],
)
def test_address_for_other_nodes_is_loopback_on_one_machine_and_the_first_listeners_elsewhere(
    values: dict[str, Any], expected: str
) -> None:
    assert load({"listener.listeners": "PLAINTEXT://192.0.2.1:1"} | values, {}).internal_host == expected
