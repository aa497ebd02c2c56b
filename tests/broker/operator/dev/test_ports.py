"""Ports that a node keeps over its stops and starts."""

import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from anabranch.broker.operator.dev.ports import KeptPorts
from tests.support.node import settings_for


def test_a_client_that_connects_while_the_node_is_stopped_is_served_by_the_next_start(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with closing(KeptPorts()) as ports:
        with ExitStack() as stack:
            first = ports.reserve(settings, stack)
            address = first.clients[0].getsockname()
            first.clients[0].listen()
        assert first.clients[0].fileno() < 0
        with socket.create_connection(address) as client, ExitStack() as stack:
            again = ports.reserve(settings, stack)
            assert again.internal.getsockname()[1] > 0
            accepted, _ = again.clients[0].accept()
            with accepted:
                assert accepted.getpeername() == client.getsockname()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
        pass
