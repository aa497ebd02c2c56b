"""The address that a node registers for others."""

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.membership.join import NO_ADDRESS, internal_address
from broker.settings.sources import load

BOUND = cast("socket.socket", SimpleNamespace(getsockname=lambda: ("192.0.2.9", 7000)))


@pytest.mark.parametrize(
    ("values", "host"),
    [
        ({}, "127.0.0.1"),
        ({"listener.host": "192.0.2.1"}, "192.0.2.1"),
        ({"listener.advertised_host": "for.clients"}, "for.clients"),
        ({"listener.advertised_host": "for.clients", "cluster.internal_host": "192.0.2.2"}, "192.0.2.2"),
        ({"cluster.internal_host": "0.0.0.0", "cluster.internal_advertised_host": "for.nodes"}, "for.nodes"),
        ({"listener.host": "0.0.0.0"}, socket.gethostname()),
        ({"cluster.internal_host": "::"}, socket.gethostname()),
    ],
)
def test_other_nodes_get_the_nearest_address_that_is_set(values: dict[str, Any], host: str) -> None:
    assert internal_address(load(values, {}), BOUND) == (host, 7000)


def test_a_node_without_an_internal_port_registers_none() -> None:
    assert internal_address(load({}, {}), None) == NO_ADDRESS
