"""A network in memory: streams of bytes between simulated processes, with delays, splits, resets and partitions."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimLoop

DELAY_S = (0.00005, 0.001)
SLOW_SHARE = 0.01
"""Share of the pieces that take `SLOW_S` instead."""
SLOW_S = (0.01, 0.3)
SPLIT_SHARE = 0.2
"""Share of the pieces that arrive in two parts."""
RECEIVE_BYTES = 64 << 10
"""Bytes that the receiving side buffers while its process does not read."""
FIRST_DESCRIPTOR = 1_000_000
NODE_PORT = 9092
INTERNAL_PORT = 9093
"""Port that every node listens on."""


class Port:
    """A listening address: stands for the socket that a node binds."""

    def __init__(self, network: "Network", host: str, port: int) -> None:
        self._network = network
        self.address = (host, port)
        self._factory: Callable[[], asyncio.BaseProtocol] | None = None
        self._context: Context | None = None
        network.bound += 1
        self._number = network.bound

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def listen(self, factory: Callable[[], asyncio.BaseProtocol]) -> "Port":
        """Accept connections; also stands for the `asyncio.Server`.

        A twin that another process has followed on another machine is not found at the address, even when that ends.
        """
        self._factory, self._context = factory, copy_context()
        if self._number > self._network.newest.get(self.address, 0):
            self._network.newest[self.address] = self._number
            self._network.ports[self.address] = self
        process = PROCESS.get()
        if process is not None:
            process.ended.append(self.close)
        return self

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._network.ports.get(self.address) is self:
            del self._network.ports[self.address]

    def accept(self) -> tuple[asyncio.BaseProtocol, Context]:
        """Make the protocol of a new connection, in the context of the listening process."""
        assert self._factory is not None
        assert self._context is not None
        context = self._context.copy()
        return context.run(self._factory), context


class Network:
    """All connections."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.ports: dict[tuple[str, int], Port] = {}
        self.newest: dict[tuple[str, int], int] = {}
        """Number of the newest port that has listened, by address."""
        self.bound = 0
        """Number of ports so far."""
        self.ends: dict[int, End] = {}
        """Open ends by their descriptors, in the order in which they were opened."""
        self.cuts: dict[frozenset[str], float] = {}
        """Cuts, and when each began. One host: its packets are lost at the moment. Two: those between them."""
        self._descriptors = FIRST_DESCRIPTOR

    async def connect(self, host: str, address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from a host. Raises ConnectionRefusedError, and OSError when packets are lost."""
        await asyncio.sleep(self.delay_s())
        if self.separated(host, address[0]):
            await asyncio.sleep(self.random.uniform(1, 5))
            raise TimeoutError("no route")
        port = self.ports.get(address)
        if port is None:
            raise ConnectionRefusedError(f"nothing listens on {address}")
        reader = asyncio.StreamReader(loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        server_protocol, server_context = port.accept()
        ours = End(self, protocol, copy_context(), host, peer=address)
        theirs = End(self, server_protocol, server_context, address[0], peer=(host, ours.descriptor))
        ours.other, theirs.other = theirs, ours
        protocol.connection_made(ours)
        self.loop.call_soon(server_protocol.connection_made, theirs, context=server_context)
        return reader, asyncio.StreamWriter(ours, protocol, reader, self.loop)

    def delay_s(self) -> float:
        """Time that a piece is under way."""
        slow = self.random.random() < SLOW_SHARE
        return self.random.uniform(*(SLOW_S if slow else DELAY_S))

    def opened(self, end: "End") -> int:
        """Register an end; returns its descriptor."""
        self._descriptors += 1
        self.ends[self._descriptors] = end
        return self._descriptors

    def reset(self, host: str, share: float) -> int:
        """Reset connections of a host. Returns how many."""
        chosen = [end for end in self.ends.values() if end.host == host and self.random.random() < share]
        for end in chosen:
            end.reset()
        return len(chosen)

    def cut(self, *hosts: str) -> None:
        """Lose the packets of a host, or those between two."""
        self.cuts.setdefault(frozenset(hosts), self.loop.time())

    def is_cut(self, *hosts: str) -> bool:
        """Return whether there is such a cut."""
        return frozenset(hosts) in self.cuts

    def cut_s(self, *hosts: str) -> float:
        """Return for how long there has been such a cut; 0.0 if there is none."""
        return self.loop.time() - self.cuts.get(frozenset(hosts), self.loop.time())

    def separated(self, host: str, other: str) -> bool:
        """Return whether the packets between two hosts are lost."""
        return bool(self.cuts) and (self.is_cut(host) or self.is_cut(other) or self.is_cut(host, other))

    def join(self, *hosts: str) -> None:
        """End a cut, and deliver what was held back."""
        self.cuts.pop(frozenset(hosts), None)
        self._deliver_all()

    def heal(self) -> None:
        """End all cuts."""
        self.cuts.clear()
        self._deliver_all()

    def _deliver_all(self) -> None:
        for end in list(self.ends.values()):
            end.deliver_soon()

    def closed_peers(self, descriptors: Any) -> set[int]:
        """Return the descriptors whose peers have closed, as `broker.node.net.closed_peers` does."""
        return {each for each in descriptors if each not in self.ends or self.ends[each].other is None}


class _Socket:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


class End(asyncio.Transport):
    """One end of a connection: the transport of its process."""

    def __init__(self, network: Network, protocol: Any, context: Context, host: str, *, peer: tuple[str, int]) -> None:
        self.network = network
        self.host = host
        self.other: End | None = None
        self.descriptor = network.opened(self)
        super().__init__({"peername": peer, "socket": _Socket(self.descriptor)})
        self._protocol = protocol
        self._context = context
        self._process: Process | None = context.get(PROCESS)
        self._arriving: deque[bytes | None] = deque()
        """Pieces on their way to this end, None is the end of the stream."""
        self._arriving_bytes = 0
        self._reading = True
        self._delivery: asyncio.TimerHandle | None = None
        self._closing = False
        self._lost = False
        self._high, self._low = 64 << 10, 16 << 10
        self._protocol_paused = False
        if self._process is not None:
            self._process.ended.append(self.reset)

    # the transport, called by its own process

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        other = self.other
        return 0 if other is None else max(0, other._arriving_bytes - RECEIVE_BYTES)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.deliver_soon()

    def write(self, data: Any) -> None:
        if self._closing or self.other is None or not data:
            return
        self.other._receive(bytes(data))
        if self.get_write_buffer_size() > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def write_eof(self) -> None:
        if self.other is not None:
            self.other._receive(None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self.other is not None:
                self.other._receive(None)
            self._lose(None)

    def abort(self) -> None:
        self.reset()

    # the network

    def reset(self) -> None:
        """End the connection at once, on both sides."""
        other, self.other = self.other, None
        self._lose(None)
        if other is not None:
            other.other = None
            other._arriving.clear()
            self.network.loop.call_later(
                self.network.delay_s(), other._lose, ConnectionResetError("reset"), context=Context()
            )

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self.network.ends.pop(self.descriptor, None)
        if self._process is not None and self.reset in self._process.ended:
            self._process.ended.remove(self.reset)
        self.network.loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def _receive(self, data: bytes | None) -> None:
        if self._lost:
            return
        random = self.network.random
        if data is not None:
            self._arriving_bytes += len(data)
        if data is not None and len(data) > 1 and random.random() < SPLIT_SHARE:
            cut = random.randrange(1, len(data))
            self._arriving.append(data[:cut])
            data = data[cut:]
        self._arriving.append(data)
        self.deliver_soon()

    def deliver_soon(self) -> None:
        """Deliver the next piece after its time on the way, unless one is under way already."""
        if self._delivery is None and self._arriving and not self._lost:
            self._delivery = self.network.loop.call_later(self.network.delay_s(), self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._delivery = None
        other = self.other
        if self._lost or not self._reading or not self._arriving:
            return
        if self.network.separated(self.host, self.host if other is None else other.host):
            return
        data = self._arriving.popleft()
        if data is None:
            if other is not None:
                other.other = None
                self.other = None
            if not self._protocol.eof_received():
                self._closing = True
                self._lose(None)
            return
        if hasattr(self._protocol, "buffer_updated"):
            buffer = self._protocol.get_buffer(len(data))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            if count < len(data):
                self._arriving.appendleft(data[count:])
            self._arriving_bytes -= count
            self._protocol.buffer_updated(count)
        else:
            self._arriving_bytes -= len(data)
            self._protocol.data_received(data)
        if other is not None:
            other._resume_writing()
        self.deliver_soon()

    def _resume_writing(self) -> None:
        if self._protocol_paused and self.get_write_buffer_size() <= self._low:
            self._protocol_paused = False
            self.network.loop.call_soon(self._protocol.resume_writing, context=self._context)
