"""Counts what requests use against the quotas of their clients, and throttles clients (KIP-219).

While no client has a quota, none of this runs: the server calls the dispatcher, and creates exchanges, without it.

The answer is sent at once, with the throttle time in it. Then the connection is muted: it reads nothing, and starts no
request, until the time is over. Bytes of Produce are counted when a request arrives, so that requests behind it are not
started before its answer.

The time of a request is the time of the event loop's thread from its dispatch on: in its handler, in each step of a
handler that waits, and in encoding and writing the answer. Work of other threads is not counted.
"""

import dataclasses
from collections.abc import Callable, Coroutine, Generator, Mapping
from enum import Enum, auto
from typing import Any

from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import ClientConnection, Exchange, MutationQuota
from anabranch.broker.node.net.server import Server
from anabranch.wal.interface import Buffer

Dispatch = Callable[[Exchange, Buffer], None]
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Metered(Enum):
    """Resources that requests of an API use up of their clients' quotas."""

    TIME = auto()
    BYTES_AND_TIME = auto()
    """Also the bytes of each request, against the quota of producers."""
    NOTHING = auto()


class Metering:
    """Meters the requests of a server while clients have quotas.

    `kinds` has what is counted of each API that is served. `make_dispatch` returns a dispatcher that runs coroutines by
    the function that it gets.
    """

    def __init__(
        self,
        server: Server,
        quotas: ClientQuotas,
        kinds: Mapping[int, Metered],
        make_dispatch: Callable[[Spawn], Dispatch],
        spawn: Spawn,
        *,
        take: Callable[[Connection, Buffer], bool] | None = None,
    ) -> None:
        """`take` handles frames before there is a request to be metered."""
        self._server = server
        self._take = take
        self._spawn = spawn
        self._plain = make_dispatch(spawn)
        self._metered = make_dispatch(self._spawn_step)
        self._running: MeteredExchange | None = None
        """The request whose time passes now."""
        self.quotas = quotas
        self.kinds = kinds
        server.dispatch, server.take = self._plain, take

    def update(self) -> None:
        """Begin or cease to meter. Requests under way continue as they were."""
        server = self._server
        if self.quotas.is_active:
            server.new_exchange, server.dispatch, server.take = self._new_exchange, self._dispatch, None
        else:
            server.new_exchange, server.dispatch, server.take = Exchange, self._plain, self._take

    def _new_exchange(
        self, connection: ClientConnection, api_key: int, api_version: int, correlation_id: int, client_id: str | None
    ) -> Exchange:
        return MeteredExchange(self, connection, api_key, api_version, correlation_id, client_id)

    def _dispatch(self, exchange: Exchange, frame: Buffer) -> None:
        assert isinstance(exchange, MeteredExchange), "exchanges are created and dispatched in one turn"
        if exchange.kind is Metered.BYTES_AND_TIME:
            exchange.throttle(self.quotas.produced(exchange.user, exchange.client_name, len(frame)))
        outer = self.begin_step(exchange)
        try:
            self._metered(exchange, frame)
        finally:
            self.end_step(exchange, outer)

    # time

    def begin_step(self, exchange: "MeteredExchange") -> "MeteredExchange | None":
        """Count the time from now on for a request; return the request that is interrupted by it."""
        outer = self._running
        if outer is not exchange:
            if outer is not None:
                outer.pause()
            exchange.resume()
            self._running = exchange
        return outer

    def end_step(self, exchange: "MeteredExchange", outer: "MeteredExchange | None") -> None:
        """Count the time for the interrupted request again, if there is one."""
        if outer is not exchange:
            exchange.pause()
            self._running = outer
            if exchange.done:
                exchange.settle()
            if outer is not None:
                outer.resume()

    def _spawn_step(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._running is not None, "a dispatcher spawns while it dispatches"
        self._spawn(self._run(work, self._running))

    async def _run(self, work: Coroutine[Any, Any, None], exchange: "MeteredExchange") -> None:
        await _Steps(work, exchange, self)


class _Steps:
    """Awaits a coroutine, and counts the time of its steps for a request."""

    def __init__(self, work: Coroutine[Any, Any, None], exchange: "MeteredExchange", metering: Metering) -> None:
        self._work = work
        self._exchange = exchange
        self._metering = metering

    def __await__(self) -> Generator[Any, Any, None]:
        work, exchange, metering = self._work, self._exchange, self._metering
        raised: BaseException | None = None
        while True:
            outer = metering.begin_step(exchange)
            try:
                waits_for = work.send(None) if raised is None else work.throw(raised)
            except StopIteration:
                return
            finally:
                metering.end_step(exchange, outer)
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - cancellations too: it belongs to the coroutine
                raised = error
            else:
                raised = None


class MeteredExchange(Exchange):
    """A request whose client may have quotas."""

    __slots__ = (
        "_charged",
        "_metering",
        "_mutations",
        "_resumed_s",
        "_spent_s",
        "_throttle_ms",
        "client_name",
        "kind",
        "user",
    )

    def __init__(
        self,
        metering: Metering,
        connection: ClientConnection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
    ) -> None:
        super().__init__(connection, api_key, api_version, correlation_id, client_id)
        self._metering = metering
        self.user = connection.principal.partition(":")[2]
        self.client_name = client_id or ""
        """Client id; empty if there is none."""
        self._throttle_ms = 0
        self._mutations: MutationQuota | None = None
        self.kind = metering.kinds.get(api_key, Metered.TIME)
        self._charged = self.kind is Metered.NOTHING
        """True if the request's time can no longer throttle its client."""
        self._spent_s = self._resumed_s = 0.0

    # time

    def resume(self) -> None:
        """Let the request's time pass."""
        self._resumed_s = self.connection.clock()

    def pause(self) -> None:
        """Let it pass no longer."""
        self._spent_s += self.connection.clock() - self._resumed_s

    def settle(self) -> None:
        """Count the time that was spent since the last count. It does not throttle the client at once."""
        if self.kind is not Metered.NOTHING:
            self._count(may_throttle=False)
        self._spent_s = 0.0

    def _count(self, *, may_throttle: bool) -> int:
        spent_s, self._spent_s = self._spent_s, 0.0
        return self._metering.quotas.spent(self.user, self.client_name, spent_s, may_throttle=may_throttle)

    def _charge(self) -> int:
        """Count the time spent so far, once; return the throttle time."""
        if self._charged:
            return 0
        self._charged = True
        self.pause()
        self.resume()
        return self._count(may_throttle=True)

    # quotas

    def throttle(self, throttle_ms: int) -> None:
        """Mute the connection, now and for that time."""
        if throttle_ms > self._throttle_ms:
            self._throttle_ms = throttle_ms
            self.connection.mute(throttle_ms / 1000)

    def fetch_bytes_max(self, wanted: int) -> int:
        """Return how many bytes a Fetch may read."""
        return min(wanted, self._metering.quotas.fetch_bytes_max(self.user, self.client_name))

    def throttle_fetch(self, size_bytes: int) -> int:
        """Count the bytes that are about to be answered; return the throttle time if the answer must be empty."""
        metering = self._metering
        outer = metering.begin_step(self)
        try:
            request_ms = self._charge()
            self.throttle(metering.quotas.fetched(self.user, self.client_name, size_bytes, at_least_ms=request_ms))
        finally:
            metering.end_step(self, outer)
        return self._throttle_ms

    def mutation_quota(self, *, strict_since: int) -> MutationQuota | None:
        """Return the quota for the topics that the request changes; None if there is none."""
        self._mutations = self._metering.quotas.mutation_quota(
            self.user, self.client_name, is_strict=self.api_version >= strict_since
        )
        return self._mutations

    def complete(self, response: Any | None, *, version: int | None = None) -> None:
        """Respond, with the throttle time."""
        metering = self._metering
        outer = metering.begin_step(self)
        try:
            if response is None:
                self._charged = True  # as in Apache Kafka, Produce with acks=0 is not throttled for its time
            self.throttle(self._charge())
            if self._mutations is not None:
                self.throttle(self._mutations.throttle())
            throttle_ms = self._throttle_ms
            if throttle_ms and response is not None and hasattr(response, "throttle_time_ms"):
                response = dataclasses.replace(response, throttle_time_ms=throttle_ms)
            super().complete(response, version=version)
        finally:
            metering.end_step(self, outer)
