"""Configs of subscriptions to client metrics (KIP-714)."""

from collections.abc import Mapping

from anabranch.broker.api.resources.stored import StoredResource
from anabranch.broker.api.resources.values import ConfigValue
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.cluster import CLIENT_METRICS
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigSource
from anabranch.broker.kafka.telemetry.subscriptions import SUBSCRIPTION_CONFIGS, check_subscription
from anabranch.protocol.errors import ErrorCode, KafkaError


class ClientMetricsResource(StoredResource):
    """Subscriptions by their names."""

    kind = CLIENT_METRICS
    table = SUBSCRIPTION_CONFIGS

    def check_described(self, name: str) -> None:
        """Raise INVALID_REQUEST for an empty name."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")

    def check_altered(self, name: str) -> None:
        """Raise INVALID_REQUEST for an empty name."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")

    def unknown(self, key: str) -> KafkaError:
        """Build Kafka's error for an unknown config."""
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")

    def check_values(self, serving: Serving, values: Mapping[str, str]) -> None:
        """Check the limits of the interval, and the patterns."""
        del serving
        check_subscription(values)

    def value(self, serving: Serving, row: ConfigDef, own: Mapping[str, str]) -> ConfigValue:
        """Return the subscription's value, or the default, which has no synonym because brokers have no such config."""
        del serving
        if row.name not in own:
            return ConfigValue(row.name, row.default, ConfigSource.DEFAULT_CONFIG, row.type, row.documentation)
        value, source = own[row.name], ConfigSource.CLIENT_METRICS_CONFIG
        synonyms = ((row.name, value, source),)
        return ConfigValue(row.name, value, source, row.type, row.documentation, synonyms=synonyms)
