"""Clients over their quotas are answered at once and muted afterwards, on virtual time; others are not affected."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.kafka.quotas.entities import QuotaEntity
from anabranch.broker.kafka.quotas.metering import Dispatch, Metered, Metering, Spawn
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.settings.client_areas import NetworkSettings, QuotaSettings
from anabranch.broker.node.settings.memory import memory_for
from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.messages.fetch import FetchRequest, FetchResponse
from anabranch.protocol.messages.produce import ProduceRequest, ProduceResponse
from anabranch.wal.interface import Buffer
from tests.broker.node.net.test_connection import FakeTransport
from tests.support.raw_client import API_OF, decode_response, request_frame
from tests.support.virtual_time import run_virtual

PRODUCE, FETCH, API_VERSIONS, CREATE_TOPICS = 0, 1, 18, 19
VERSION = {PRODUCE: 9, FETCH: 11, API_VERSIONS: 1, CREATE_TOPICS: 6}
Handler = Callable[[Exchange], None]


class FakeConfigs:
    """Quotas as the cluster's configs have them."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, str]] = {}
        self.changed: Callable[[], None] = lambda: None

    def get(self, _kind: str, name: str) -> dict[str, str]:
        return self.entries[name]

    def names(self, _kind: str) -> list[str]:
        return sorted(self.entries)

    def watch(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def set(self, names: dict[str, str | None], **quotas: float) -> None:
        self.entries[QuotaEntity.of(names).key] = {key: str(value) for key, value in quotas.items()}
        self.changed()

    def clear(self) -> None:
        self.entries.clear()
        self.changed()


class SocketlessServer(Server):
    """A server that does not look for closed sockets."""

    def reading_changed(self, connection: Connection, *, paused: bool) -> None:
        pass


class Rig:
    """A server without sockets, whose requests are handled by a function."""

    def __init__(self, handler: Handler) -> None:
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.handler = handler
        self.server = SocketlessServer(NetworkSettings(), memory_for(Settings()).sizes, pipelined=frozenset({PRODUCE}))
        self.server.clock = loop.time
        self.configs = FakeConfigs()
        configs: Any = self.configs
        table = QuotaTable(configs)
        self.quotas = ClientQuotas(table, QuotaSettings(), lambda: int(loop.time() * 1000))
        self.tasks: list[asyncio.Task[None]] = []
        self.metering = Metering(
            self.server, self.quotas, {PRODUCE: Metered.BYTES_AND_TIME}, self._dispatcher, self._spawn
        )
        self.quotas.watch(configs, self.metering.update)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def _dispatcher(self, spawn: Spawn) -> Dispatch:
        self.spawn = spawn

        def dispatch(exchange: Exchange, _frame: Buffer) -> None:
            if exchange.api_key != PRODUCE:
                exchange.connection.release(exchange)
            self.handler(exchange)

        return dispatch

    def client(self, client_id: str = "c", principal: str = "User:u") -> "Client":
        """Connect a client."""
        return Client(self, client_id, principal)


class WatchedTransport(FakeTransport):
    """A transport without a socket that tells when it is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = asyncio.Event()
        self.resumed.set()

    def pause_reading(self) -> None:
        super().pause_reading()
        self.resumed.clear()

    def resume_reading(self) -> None:
        super().resume_reading()
        self.resumed.set()


class Client:
    """A client that the node reads from while it may."""

    def __init__(self, rig: Rig, client_id: str, principal: str) -> None:
        self.rig, self.client_id = rig, client_id
        self.transport = WatchedTransport()
        self.connection = Connection(rig.server, 1)
        self.connection.connection_made(self.transport)
        self.connection.principal = principal
        self.seen = 0

    def reads(self) -> bool:
        """True if the node reads what it sends."""
        return self.transport.reading

    def send(self, key: int, size: int = 0) -> int:
        frame = request_frame(key, VERSION[key], bytes(size), client_id=self.client_id)
        data = memoryview(frame)
        while data:
            assert self.reads(), "the loop reads only while it may"
            into = self.connection.get_buffer(-1)
            count = min(len(into), len(data))
            into[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]
        return len(frame) - 4

    async def until_read(self) -> float:
        """Wait until the node reads again; return the time."""
        await self.transport.resumed.wait()
        return self.rig.loop.time()

    async def answers(self, request_type: type) -> list[Any]:
        """Take the answers that were sent, all of one type."""
        await asyncio.sleep(0)
        frames = b"".join(part for write in self.transport.writes[self.seen :] for part in write)
        self.seen = len(self.transport.writes)
        found = []
        while frames:
            size = int.from_bytes(frames[:4], "big")
            version = VERSION[API_OF[request_type].key]
            found.append(decode_response(request_type, version, frames[4 : 4 + size])[1])
            frames = frames[4 + size :]
        return found


def answer(exchange: Exchange) -> None:
    """Answer at once."""
    exchange.complete({PRODUCE: ProduceResponse(), FETCH: FetchResponse()}.get(exchange.api_key, ApiVersionsResponse()))


def test_a_producer_has_its_rate_and_knows_the_throttle_times() -> None:
    async def check() -> None:
        rig = Rig(answer)
        rig.configs.set({"user": "u"}, producer_byte_rate=100_000)
        client, other = rig.client(), rig.client(principal="User:other")
        accepted = 0
        throttled = []
        while (now_s := await client.until_read()) < 1200:
            accepted += client.send(PRODUCE, 50_000)
            (found,) = await client.answers(ProduceRequest)
            throttled.append(found.throttle_time_ms)
            other.send(PRODUCE, 50_000)
            assert (await other.answers(ProduceRequest))[0].throttle_time_ms == 0
            assert other.reads()
        assert accepted / now_s == pytest.approx(100_000, rel=0.02)
        assert throttled[0] == 0
        assert sum(throttled) == pytest.approx(1000 * now_s, rel=0.02), "it waited for as long as it was told"
        (usage,) = (usage for _, usage in rig.quotas.produce.items())
        assert usage.throttled_ms == sum(throttled)

    run_virtual(check())


def test_a_muted_connection_is_answered_but_starts_nothing() -> None:
    async def check() -> None:
        started: list[Exchange] = []
        rig = Rig(started.append)
        rig.configs.set({"client-id": None}, producer_byte_rate=1000)
        client = rig.client()
        frames = [request_frame(PRODUCE, 9, bytes(size), client_id="c") for size in (19_000, 100, 100_000)]
        data = memoryview(b"".join(frames))
        while data and client.reads():
            into = client.connection.get_buffer(-1)
            count = min(len(into), len(data))
            into[:count] = data[:count]
            client.connection.buffer_updated(count)
            data = data[count:]
        assert len(started) == 1
        assert not client.reads()
        assert not client.connection.idle
        assert rig.server.bytes_held < 64 << 10, "nothing is reserved for the large frame"
        started[0].complete(ProduceResponse())
        (found,) = await client.answers(ProduceRequest)
        assert 9000 <= found.throttle_time_ms <= 9100
        assert len(started) == 1
        await asyncio.sleep(found.throttle_time_ms / 1000 - 0.01)
        assert (len(started), client.reads()) == (1, False)
        await asyncio.sleep(0.02)
        assert [len(exchange.client_id or "") for exchange in started] == [1, 1]
        client.connection.mute(500)
        client.connection.mute(1)
        await asyncio.sleep(499)
        muted = [client.connection.is_muted]
        client.connection.connection_lost(None)
        assert [*muted, client.connection.is_muted] == [True, False], "the longest time, unless the connection ends"
        await asyncio.sleep(1000)
        assert len(started) == 2

    run_virtual(check())


def test_a_fetch_over_the_quota_is_answered_without_records() -> None:
    async def check() -> None:
        sizes = [9_000, 4_000, 1_000]
        answered: list[int] = []

        def fetch(exchange: Exchange) -> None:
            assert exchange.fetch_bytes_max(1 << 30) == 10_000
            throttle_ms = exchange.throttle_fetch(sizes[len(answered)])
            answered.append(throttle_ms)
            exchange.complete(FetchResponse())

        rig = Rig(fetch)
        rig.configs.set({"user": None}, consumer_byte_rate=1000)
        client = rig.client()
        client.send(FETCH)
        client.send(FETCH)
        assert answered == [0, 3000]
        assert [each.throttle_time_ms for each in await client.answers(FetchRequest)] == [0, 3000]
        assert not client.reads()
        assert await client.until_read() == pytest.approx(3, abs=0.01)
        client.send(FETCH)
        assert answered[2:] == [0], "what was not sent does not count"

    run_virtual(check())


def test_time_of_requests_is_counted_in_each_step_and_throttles_for_a_window_at_most() -> None:
    async def check() -> None:
        worked_s = 0.0

        def busy(seconds: float) -> None:
            nonlocal worked_s
            worked_s += seconds

        async def slow(exchange: Exchange) -> None:
            busy(0.2)
            await asyncio.sleep(5)
            busy(0.3)
            exchange.complete(ApiVersionsResponse())
            busy(0.1)

        def handle(exchange: Exchange) -> None:
            busy(0.1)
            exchange.connection.hold(exchange)
            rig.spawn(slow(exchange))

        rig = Rig(handle)
        rig.server.clock = lambda: worked_s
        rig.configs.set({"client-id": "c"}, request_percentage=1)
        client, other = rig.client(), rig.client("d")
        client.send(API_VERSIONS)
        other.send(API_VERSIONS)
        await asyncio.gather(*rig.tasks)
        assert [each.throttle_time_ms for each in await client.answers(ApiVersionsRequest)] == [1000], "60 per cent"
        assert [each.throttle_time_ms for each in await other.answers(ApiVersionsRequest)] == [0]
        assert not client.reads()
        assert other.reads()
        ((sharers, usage),) = rig.quotas.request.items()
        assert sharers.client_id == "c"
        now_ms = int(rig.loop.time() * 1000)
        total = usage.meter.measure(now_ms) * usage.meter.measured_ms(now_ms) / 1000
        assert total == pytest.approx(70)

    run_virtual(check())


def test_a_cancelled_step_is_cancelled_within_the_handler() -> None:
    async def check() -> None:
        seen = []

        async def slow(_exchange: Exchange) -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        def handle(exchange: Exchange) -> None:
            rig.spawn(slow(exchange))

        rig = Rig(handle)
        rig.configs.set({"client-id": "c"}, request_percentage=1)
        rig.client().send(API_VERSIONS)
        await asyncio.sleep(1)
        rig.tasks[0].cancel()
        await asyncio.gather(*rig.tasks, return_exceptions=True)
        assert seen == ["cancelled"]

    run_virtual(check())


def mutate(exchange: Exchange, strict_since: int, partitions: int) -> str:
    """Count a change and answer; returns the error."""
    quota = exchange.mutation_quota(strict_since=strict_since)
    assert quota is not None
    try:
        quota.record(partitions)
    except KafkaError as error:
        return error.code.name
    finally:
        exchange.complete(ApiVersionsResponse())
    return ""


def test_a_strict_quota_of_changes_refuses_them_and_another_throttles() -> None:
    async def check() -> None:
        outcomes = []

        def handle(exchange: Exchange) -> None:
            outcomes.append(mutate(exchange, strict_since, 60))

        rig = Rig(handle)
        rig.configs.set({"user": "u"}, controller_mutation_rate=5)
        client, strict_since = rig.client(), 0
        client.send(API_VERSIONS)
        assert (await client.answers(ApiVersionsRequest))[0].throttle_time_ms == 0
        client.send(API_VERSIONS)
        assert outcomes == ["", "THROTTLING_QUOTA_EXCEEDED"]
        assert (await client.answers(ApiVersionsRequest))[0].throttle_time_ms == 1000
        assert await client.until_read() == pytest.approx(1, abs=0.01)
        strict_since = 99
        client.send(API_VERSIONS)
        assert outcomes[2:] == [""]
        assert (await client.answers(ApiVersionsRequest))[0].throttle_time_ms == pytest.approx(12_000, abs=10)

    run_virtual(check())


def test_without_quotas_requests_are_not_metered() -> None:
    async def check() -> None:
        seen: list[str] = []

        def handle(exchange: Exchange) -> None:
            seen.append(type(exchange).__name__)
            answer(exchange)

        rig = Rig(handle)
        client = rig.client()
        client.send(API_VERSIONS)
        rig.configs.set({"client-id": "c"}, request_percentage=1)
        client.send(API_VERSIONS)
        rig.configs.clear()
        client.send(API_VERSIONS)
        assert seen == ["Exchange", "MeteredExchange", "Exchange"]
        assert len(rig.quotas.request) == 0

    run_virtual(check())


def test_acks_0_is_throttled_for_its_bytes_but_not_for_its_time() -> None:
    async def check() -> None:
        worked_s = 0.0

        def handle(exchange: Exchange) -> None:
            nonlocal worked_s
            worked_s += 10
            exchange.complete(None)

        rig = Rig(handle)
        rig.server.clock = lambda: worked_s
        rig.configs.set({"client-id": "c"}, request_percentage=0.000001, producer_byte_rate=1000)
        client = rig.client()
        client.send(PRODUCE, 5000)
        assert client.reads()
        client.send(PRODUCE, 7000)
        assert not client.reads()
        assert await client.answers(ProduceRequest) == []

    run_virtual(check())
