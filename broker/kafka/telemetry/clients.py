"""Metrics that clients push (KIP-714), by the rules of Apache Kafka's ClientMetricsManager.

A client requests its subscription, receives an id for it, and pushes with this id once per interval. Requests that come
too early are refused with THROTTLING_QUOTA_EXCEEDED. An outdated id is refused with UNKNOWN_SUBSCRIPTION_ID, after
which the client may request its subscription at once. A push marked as the last is accepted at any time, and nothing
after it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.kafka.configs.cluster import CLIENT_METRICS, ClusterConfigs
from anabranch.broker.kafka.telemetry.otlp import OtlpError, parse_metrics
from anabranch.broker.kafka.telemetry.series import SeriesTable
from anabranch.broker.kafka.telemetry.subscriptions import (
    ClientSubscription,
    Subscription,
    parse_subscription,
    subscription_for_client,
)
from anabranch.broker.node.settings.client_areas import TelemetrySettings
from anabranch.protocol.compression import Compression, decompress
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.wire import ZERO_UUID
from anabranch.wal.interface import Buffer

ACCEPTED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""Codecs that a client may use, in Apache Kafka's order of preference."""
POINTS_MAX: Final = 2_000
"""Points decoded from one push, about 10 ms of work. Kafka's clients send a few hundred."""
RESERVED_IDS: Final = frozenset({ZERO_UUID, b"\0" * 15 + b"\1"})


@dataclass(slots=True)
class _ClientInstance:
    subscription: ClientSubscription
    version: int
    """Version of the cluster configs that `subscription` was computed from."""
    requested_ms: int | None = None
    pushed_ms: int | None = None
    has_requested_since: bool = False
    """True if it has requested its subscription since its last push."""
    last_error: ErrorCode = ErrorCode.NONE
    is_terminating: bool = False

    def may_request(self, now_ms: int) -> bool:
        last = [at for at in (self.requested_ms, self.pushed_ms) if at is not None]
        return not last or now_ms - max(last) >= self.subscription.interval_ms

    def may_push(self, now_ms: int) -> bool:
        if self.pushed_ms is None or self.has_requested_since:
            return True
        return now_ms - self.pushed_ms >= self.subscription.interval_ms


@dataclass(frozen=True, slots=True)
class Push:
    """A push of a client."""

    instance_id: bytes
    subscription_id: int
    is_terminating: bool
    compression: int
    metrics: Buffer


@dataclass(slots=True)
class ClientMetrics:
    """All clients, with the metrics that they have pushed."""

    configs: ClusterConfigs
    settings: TelemetrySettings
    now_ms: Callable[[], int]
    new_id: Callable[[], bytes]
    log: FilteringBoundLogger = field(default_factory=lambda: structlog.get_logger("telemetry"))
    series: SeriesTable = field(init=False)
    throttled: int = 0
    _clients: OrderedDict[bytes, _ClientInstance] = field(default_factory=OrderedDict)
    _subscriptions: Sequence[Subscription] = ()
    _version: int = -1

    def __post_init__(self) -> None:
        self.series = SeriesTable(self.settings.series_max)

    def __len__(self) -> int:
        return len(self._clients)

    def subscribe(self, instance_id: bytes, attributes: Mapping[str, str]) -> tuple[bytes, ClientSubscription]:
        """Return the client's id, a new one if it has none, and its subscription. Raises THROTTLING_QUOTA_EXCEEDED."""
        if instance_id == ZERO_UUID:
            instance_id = self.new_id()
        client = self._client(instance_id, attributes)
        now_ms = self.now_ms()
        retries = client.last_error in {ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
        if not client.may_request(now_ms) and not retries:
            self.throttled += 1
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.requested_ms, client.has_requested_since = now_ms, True
        client.last_error = ErrorCode.NONE
        return instance_id, client.subscription

    def push(self, push: Push, attributes: Mapping[str, str]) -> None:
        """Accept metrics. Raises KafkaError with the code for the answer."""
        if push.instance_id in RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        client = self._client(push.instance_id, attributes)
        try:
            self._check(client, push)
            client.is_terminating = push.is_terminating
            self._export(client, push, attributes)
        except KafkaError as error:
            client.last_error = error.code
            raise
        client.last_error = ErrorCode.NONE

    def _check(self, client: _ClientInstance, push: Push) -> None:
        now_ms = self.now_ms()
        if client.is_terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if client.may_push(now_ms):
            client.pushed_ms, client.has_requested_since = now_ms, False
        elif not push.is_terminating:
            self.throttled += 1
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if push.subscription_id != client.subscription.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if push.compression not in set(Compression):
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if len(push.metrics) > self.settings.push_bytes_max:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)

    def _export(self, client: _ClientInstance, push: Push, attributes: Mapping[str, str]) -> None:
        if not push.metrics:
            return
        try:
            data = decompress(Compression(push.compression), push.metrics, bytes_max=self.settings.push_bytes_max)
            found = parse_metrics(data, points_max=POINTS_MAX)
        except (KafkaError, OtlpError) as error:
            self.log.debug("metrics of a client cannot be decoded", client=attributes["client_id"], reason=str(error))
            raise KafkaError(ErrorCode.INVALID_RECORD) from None
        self.series.stats.dropped_points += found.dropped
        labels = {name: attributes[name] for name in ("client_id", "client_instance_id")}
        self.series.put(
            push.instance_id, labels, found.points, now_ms=self.now_ms(), interval_ms=client.subscription.interval_ms
        )

    def _client(self, instance_id: bytes, attributes: Mapping[str, str]) -> _ClientInstance:
        """Return the client with its current subscription. After a change it may request that at once."""
        if self._version != self.configs.version:
            self._version = self.configs.version
            self._subscriptions = [
                parse_subscription(self.configs.get(CLIENT_METRICS, name))
                for name in self.configs.names(CLIENT_METRICS)
            ]
        client = self._clients.get(instance_id)
        if client is None or client.version != self._version:
            subscription = subscription_for_client(self._subscriptions, attributes, instance_id)
            if client is None or client.subscription != subscription:
                client = self._clients[instance_id] = _ClientInstance(subscription, self._version)
            client.version = self._version
        self._clients.move_to_end(instance_id)
        if len(self._clients) > self.settings.clients_max:
            self._clients.popitem(last=False)
        return client
