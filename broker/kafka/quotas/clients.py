"""Quotas of clients: bytes produced and fetched, time of requests, changes of topics.

Quotas are per node, as in Apache Kafka. Requests of other nodes are not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.quotas.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from anabranch.broker.kafka.quotas.limits import Client, Limits
from anabranch.broker.kafka.quotas.rates import Rate, TokenBucket, Windows
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.kafka.quotas.usage import ClientUsages, Usage
from anabranch.broker.node.net.exchange import MutationQuota
from anabranch.broker.node.settings.client_areas import QuotaSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class ClientUse:
    """A client's use of a quota, for people and monitoring."""

    limit: float
    used: float
    """Rate per second; for changes of topics, the remaining credit."""
    throttles: int
    throttled_ms: int


def _used(usage: Usage[Rate] | Usage[TokenBucket], now_ms: int) -> float:
    meter = usage.meter
    return meter.measure(now_ms) if isinstance(meter, Rate) else meter.tokens(usage.limit, now_ms)


class ClientQuotas:
    """The quotas of all clients of this node, and what they have used. `steady_ms` is a clock that never goes back."""

    def __init__(self, table: QuotaTable, settings: QuotaSettings, steady_ms: Callable[[], int]) -> None:
        self._table = table
        self._settings = settings
        self._steady_ms = steady_ms
        windows = Windows(settings.window_num, settings.window_size_seconds * 1000)
        buckets = Windows(settings.controller_window_num, settings.controller_window_size_seconds * 1000)
        self._windows = windows
        self.produce = ClientUsages(lambda: Rate(windows), clients_max=settings.clients_max)
        """Bytes of Produce requests."""
        self.fetch = ClientUsages(lambda: Rate(windows), clients_max=settings.clients_max)
        """Bytes of records in answers to Fetch."""
        self.request = ClientUsages(lambda: Rate(windows), clients_max=settings.clients_max)
        """Time of the event loop's thread, in per cent of a second."""
        self.mutation = ClientUsages(lambda: TokenBucket(buckets), clients_max=settings.clients_max)
        """Partitions created and deleted."""
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}

    @property
    def tables(self) -> Mapping[str, ClientUsages[Rate] | ClientUsages[TokenBucket]]:
        """Usage by the key of the quota."""
        return {
            PRODUCER_BYTE_RATE: self.produce,
            CONSUMER_BYTE_RATE: self.fetch,
            REQUEST_PERCENTAGE: self.request,
            CONTROLLER_MUTATION_RATE: self.mutation,
        }

    @property
    def is_active(self) -> bool:
        """True if any client has a quota."""
        return any(table.limits for table in self.tables.values())

    def drop_idle(self) -> None:
        """Drop what clients have used that were idle for an hour."""
        now_ms = self._steady_ms()
        for table in self.tables.values():
            table.drop_idle(now_ms)

    def describe(self, quota: str) -> Sequence[tuple[Client, ClientUse]]:
        """Return what each client has used of a quota, least recent use first."""
        now_ms = self._steady_ms()
        return [
            (client, ClientUse(usage.limit, _used(usage, now_ms), usage.throttles, usage.throttled_ms))
            for client, usage in self.tables[quota].items()
        ]

    def watch(self, configs: ClusterConfigs, changed: Callable[[], None]) -> None:
        """Take in the quotas, now and whenever they change, and call `changed` afterwards."""

        def follow() -> None:
            quotas = self._table.all()
            if quotas != self._quotas:
                self._quotas = quotas
                for key, table in self.tables.items():
                    table.set_limits(Limits({entity: each[key] for entity, each in quotas.items() if key in each}))
                changed()

        follow()
        configs.watch(follow)

    # what clients use. Each returns the throttle time in ms.

    def produced(self, user: str, client_id: str, size_bytes: int) -> int:
        """Count the bytes of a Produce request."""
        now_ms = self._steady_ms()
        usage = self.produce.find(user, client_id, now_ms)
        if usage is None:
            return 0
        usage.meter.record(size_bytes, now_ms)
        return usage.throttle(usage.meter.throttle_ms(usage.limit, now_ms))

    def fetched(self, user: str, client_id: str, size_bytes: int, *, at_least_ms: int) -> int:
        """Count the bytes of an answer to Fetch, unless they exceed the quota or the client is throttled anyway.

        In both cases the client gets an empty answer.
        """
        now_ms = self._steady_ms()
        usage = self.fetch.find(user, client_id, now_ms)
        if usage is None:
            return at_least_ms
        usage.meter.record(size_bytes, now_ms)
        throttle_ms = usage.meter.throttle_ms(usage.limit, now_ms)
        if max(throttle_ms, at_least_ms) > 0:
            usage.meter.record(-size_bytes, now_ms)
        return max(usage.throttle(throttle_ms), at_least_ms)

    def fetch_bytes_max(self, user: str, client_id: str) -> int:
        """Return the largest answer to Fetch that is not certain to exceed the quota."""
        if not self.fetch.limits:
            return UNLIMITED
        limit = self.fetch.limits.find(user, client_id)
        if limit is None:
            return UNLIMITED
        return int(min(limit.value * (self._windows.count - 1) * self._windows.window_ms / 1000, UNLIMITED))

    def spent(self, user: str, client_id: str, seconds: float, *, may_throttle: bool) -> int:
        """Count time of the event loop's thread. A throttle time is at most one window."""
        now_ms = self._steady_ms()
        usage = self.request.find(user, client_id, now_ms)
        if usage is None:
            return 0
        usage.meter.record(100 * seconds, now_ms)
        if not may_throttle:
            return 0
        return usage.throttle(min(usage.meter.throttle_ms(usage.limit, now_ms), self._windows.window_ms))

    def mutation_quota(self, user: str, client_id: str, *, is_strict: bool) -> MutationQuota | None:
        """Return the quota for the changes of one request; None if the client has none."""
        usage = self.mutation.find(user, client_id, self._steady_ms())
        return None if usage is None else RequestMutations(usage, self._steady_ms, is_strict=is_strict)


class RequestMutations:
    """The changes of topics of one request (KIP-599).

    A strict quota refuses changes while the client is over its rate, but accepts any number while it is not. An older
    version of the request does not know the error: its changes are accepted, and throttled afterwards.
    """

    def __init__(self, usage: Usage[TokenBucket], steady_ms: Callable[[], int], *, is_strict: bool) -> None:
        self._usage = usage
        self._steady_ms = steady_ms
        self._is_strict = is_strict
        self._throttled_until_ms = 0

    def record(self, partitions: int) -> None:
        """Count partitions that are created or deleted. Raises THROTTLING_QUOTA_EXCEEDED."""
        usage, now_ms = self._usage, self._steady_ms()
        if not self._is_strict:
            usage.meter.take(partitions, usage.limit, now_ms)
        throttle_ms = usage.meter.throttle_ms(usage.limit, now_ms)
        if throttle_ms > 0:
            self._throttled_until_ms = now_ms + throttle_ms
        if self._is_strict:
            if usage.meter.tokens(usage.limit, now_ms) < 0:
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            usage.meter.take(partitions, usage.limit, now_ms)

    def throttle(self) -> int:
        """Return the throttle time that is left, and count it."""
        return self._usage.throttle(max(0, self._throttled_until_ms - self._steady_ms()))
