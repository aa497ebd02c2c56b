"""Subscriptions to metrics of clients (KIP-714): each asks some clients for some metrics, every so often."""

from collections.abc import Mapping

from broker.configs.cluster import CLIENT_METRICS
from broker.configs.definitions import ConfigDef, ConfigSource
from broker.node import Node
from broker.resources.stored import StoredResource
from broker.resources.values import ConfigValue
from broker.telemetry.subscriptions import SUBSCRIPTION_CONFIGS, check_subscription
from protocol.errors import ErrorCode, KafkaError


class ClientMetricsResource(StoredResource):
    """Subscriptions by their names."""

    kind = CLIENT_METRICS
    table = SUBSCRIPTION_CONFIGS

    def check_described(self, name: str) -> None:
        """Every name but none."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")

    def check_altered(self, name: str) -> None:
        """Every name but none."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")

    def unknown(self, key: str) -> KafkaError:
        """Kafka's words."""
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")

    def check_values(self, node: Node, values: Mapping[str, str]) -> None:
        """Limits of the interval, and a pattern that can be read."""
        del node
        check_subscription(values)

    def value(self, node: Node, row: ConfigDef, own: Mapping[str, str]) -> ConfigValue:
        """Its own value, else the default, which is no broker's and so has no synonym."""
        del node
        if row.name not in own:
            return ConfigValue(row.name, row.default, ConfigSource.DEFAULT_CONFIG, row.type, row.documentation)
        value, source = own[row.name], ConfigSource.CLIENT_METRICS_CONFIG
        synonyms = ((row.name, value, source),)
        return ConfigValue(row.name, value, source, row.type, row.documentation, synonyms=synonyms)
