"""Requests that wait for what this node is about to serve: a partition that it is opening, groups that it is loading.

A leader is named to clients before it serves, so that a change of leaders costs them a slow request and no error. The
leader keeps early requests for a short time, and refuses them afterwards, with an error that clients retry.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.broker.node.net.exchange import Exchange

PARKED_S: Final = 2.0
"""Longest wait of a request."""
PARKED_BYTES_MAX: Final = 32 << 20
"""Bound of all requests that wait at a node: further ones are refused at once."""
REQUEST_BYTES: Final = 4096
"""Size that a request counts for in addition to its frame."""


class Parking:
    """The requests that wait, in the memory of their frames. Components that make progress call `wake`."""

    def __init__(self, bytes_max: int = PARKED_BYTES_MAX) -> None:
        self.opening: set[object] = set()
        """Topics and shards that this node is about to serve. Without any, requests are not inspected."""
        self.bytes_held = 0
        """Bytes of the requests that wait."""
        self._bytes_max = bytes_max
        self._parked: dict[Callable[[], None], int] = {}

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._parked)

    # what is waited for

    def begin(self, what: object) -> None:
        """Note that requests may wait for `what`."""
        self.opening.add(what)

    def end(self, what: object) -> None:
        """Note that it is served now, or will not be. Unknown ones are ignored."""
        if what in self.opening:
            self.opening.remove(what)
            self.wake()

    def wake(self) -> None:
        """Let all requests look again."""
        for look in list(self._parked):
            look()

    # who waits

    def enter(self, look: Callable[[], None], frame_bytes: int) -> bool:
        """Call `look` at each `wake`, until `leave`; it must not raise. Returns False if there is no room."""
        size_bytes = frame_bytes + REQUEST_BYTES
        if self.bytes_held + size_bytes > self._bytes_max:
            return False
        self.bytes_held += size_bytes
        self._parked[look] = size_bytes
        return True

    def leave(self, look: Callable[[], None]) -> None:
        """Stop calling `look`."""
        self.bytes_held -= self._parked.pop(look, 0)

    async def wait_while(self, is_pending: Callable[[], bool], exchange: Exchange, until_s: float) -> bool:
        """Return True once `is_pending` returns False; it is asked again at each `wake`.

        Returns False if a request must not wait for that, or not any longer: there is no room, its time is over (at
        `until_s` of the loop's clock), its client has disconnected, or the node stops.
        """
        woken = asyncio.Event()
        look = woken.set
        if not self.enter(look, exchange.frame_bytes):
            return not is_pending()
        exchange.on_close = exchange.on_drain = look
        try:
            async with asyncio.timeout_at(until_s):
                while is_pending():
                    if exchange.closed or exchange.connection.draining:
                        return False
                    woken.clear()
                    await woken.wait()
        except TimeoutError:
            return False
        else:
            return True
        finally:
            exchange.on_close = exchange.on_drain = None
            self.leave(look)


def parked_until_s() -> float:
    """Return the time of the loop's clock until which a request that begins to wait now may wait."""
    return asyncio.get_running_loop().time() + PARKED_S
