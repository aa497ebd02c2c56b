"""Connections between nodes that the kernel ends when the other machine has vanished without closing them."""

import asyncio
import os
import socket
import ssl
from typing import Final

from anabranch import platform

USER_TIMEOUT_MS: Final = 10_000
"""Time within which the other machine must acknowledge what is sent."""
KEEPALIVE_IDLE_S: Final = 4
KEEPALIVE_INTERVAL_S: Final = 2
KEEPALIVE_COUNT: Final = 3
"""Probes of an idle connection without an answer, after which it ends."""


def notice_vanishing(bare: socket.socket) -> None:
    """Let the kernel end the connection within ten seconds, or those that a listening socket accepts."""
    platform.notice_vanishing(
        bare,
        idle_s=KEEPALIVE_IDLE_S,
        interval_s=KEEPALIVE_INTERVAL_S,
        probes=KEEPALIVE_COUNT,
        unsent_ms=USER_TIMEOUT_MS,
    )


async def open_connection(
    host: str, port: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to another node. Raises OSError."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    # A transport may show a socket that takes no options: its descriptor does.
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as bare:
        notice_vanishing(bare)
    return reader, writer
