"""Both ends of a connection between nodes end when the other machine has vanished: the kernel is asked for that."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import uvloop

from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.node.net.ports import reserve_ports
from anabranch.broker.node.net.vanished import KEEPALIVE_COUNT, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, USER_TIMEOUT_MS
from anabranch.broker.node.settings.sources import load

WANTED = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): KEEPALIVE_IDLE_S,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): KEEPALIVE_INTERVAL_S,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): KEEPALIVE_COUNT,
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): USER_TIMEOUT_MS,
}


def options_of(writer: asyncio.StreamWriter) -> dict[tuple[int, int], int]:
    """The options of a connection's socket."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as bare:
        return {option: bare.getsockopt(*option) for option in WANTED}


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_between_nodes(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def body() -> None:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        with ExitStack() as stack:
            ports = reserve_ports(load({"listener.port": 0, "admin.enabled": False}, {}), stack)
            server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), sock=ports.internal)
            _, opened = await Environment().open_connection(*ports.internal.getsockname())
            other = await accepted.get()
            assert options_of(opened) == options_of(other) == WANTED
            for each in (opened, other):
                each.close()
                await each.wait_closed()
            server.close()
            await server.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(body())
