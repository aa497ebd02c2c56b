"""Subscriptions to client metrics: metrics, clients and interval, and the combination of all for one client.

Patterns have the syntax of RE2, which matches in linear time: no subscription can stall the node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from crc32c import crc32c

from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigType
from anabranch.broker.kafka.coordination.patterns import Pattern
from anabranch.protocol.errors import ErrorCode, KafkaError

INTERVAL, MATCH, METRICS = "interval.ms", "match", "metrics"
INTERVAL_DEFAULT_MS: Final = 300_000
INTERVAL_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 3_600_000
ALL_METRICS: Final = "*"
ATTRIBUTES: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""Attributes that a pattern can match."""
SUBSCRIPTION_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {
        row.name: row
        for row in (
            ConfigDef(
                INTERVAL, ConfigType.INT, str(INTERVAL_DEFAULT_MS), "Interval at which clients push their metrics."
            ),
            ConfigDef(
                MATCH,
                ConfigType.LIST,
                "",
                "Clients that push: a list of `attribute=regular expression`, all must match fully. Attributes: "
                f"{', '.join(sorted(ATTRIBUTES))}. Empty: all clients.",
            ),
            ConfigDef(METRICS, ConfigType.LIST, "", "Metrics to push, by prefixes of their names; `*` for all."),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription, parsed."""

    interval_ms: int
    metrics: tuple[str, ...]
    match: Mapping[str, Pattern]

    def applies_to(self, attributes: Mapping[str, str]) -> bool:
        """Return whether the subscription applies to a client with these attributes."""
        return all(pattern.matches(attributes.get(name, "")) for name, pattern in self.match.items())


@dataclass(frozen=True, slots=True)
class ClientSubscription:
    """All subscriptions that apply to one client, combined."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


def check_subscription(values: Mapping[str, str]) -> None:
    """Raise Kafka's error for values that a subscription cannot have."""
    for name in (METRICS, MATCH):
        given = values.get(name, "")
        if given and not all(item.strip() for item in given.split(",")):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
    if INTERVAL in values:
        interval_ms = int(values[INTERVAL])
        if not INTERVAL_MIN_MS <= interval_ms <= INTERVAL_MAX_MS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {interval_ms} for interval.ms, interval must be between {INTERVAL_MIN_MS} and "
                f"{INTERVAL_MAX_MS} (1 hour)",
            )
    parse_match(values.get(MATCH, ""))


def parse_match(text: str) -> Mapping[str, Pattern]:
    """Parse the patterns of a `match`, by attribute. Raises INVALID_CONFIG."""
    patterns: dict[str, Pattern] = {}
    for item in _items(text):
        name, equals, pattern = (part.strip() for part in item.partition("="))
        if not equals or name not in ATTRIBUTES or not pattern or "=" in pattern:
            raise _illegal(item)
        try:
            patterns[name] = Pattern(pattern)
        except KafkaError:
            raise _illegal(item) from None
    return patterns


def parse_subscription(values: Mapping[str, str]) -> Subscription:
    """Parse a subscription whose values were checked before."""
    return Subscription(
        interval_ms=int(values.get(INTERVAL, INTERVAL_DEFAULT_MS)),
        metrics=tuple(_items(values.get(METRICS, ""))),
        match=parse_match(values.get(MATCH, "")),
    )


def subscription_for_client(
    subscriptions: Iterable[Subscription], attributes: Mapping[str, str], instance_id: bytes
) -> ClientSubscription:
    """Combine the subscriptions that apply to a client: all their metrics, at the shortest interval."""
    interval_ms, metrics = INTERVAL_DEFAULT_MS, dict[str, None]()
    for subscription in subscriptions:
        if subscription.applies_to(attributes):
            interval_ms = min(interval_ms, subscription.interval_ms)
            metrics.update(dict.fromkeys(subscription.metrics))
    names = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(metrics)
    # The id changes with the content: a client that pushes with an old id must request its subscription again.
    digest = crc32c(f"{sorted(names)} {interval_ms}".encode() + instance_id)
    return ClientSubscription(digest - (1 << 31), interval_ms, names)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _illegal(pattern: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")
