"""What has configs: one module per type of resource, each with the same few functions, found by Kafka's type codes.

A resource says what its configs are (`describe`), changes some of them (`alter`) or all (`replace`), and which of its
type there are (`names`). Handlers know the messages, resources the rules. Errors are KafkaErrors in Kafka's words.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.resources.brokers import BrokerResource
from broker.resources.client_metrics import ClientMetricsResource
from broker.resources.groups import GroupResource
from broker.resources.loggers import LoggerResource
from broker.resources.topics import TopicResource
from broker.resources.values import Resource, ResourceType

RESOURCES: Final[Mapping[int, Resource]] = MappingProxyType(
    {
        ResourceType.TOPIC: TopicResource(),
        ResourceType.BROKER: BrokerResource(),
        ResourceType.BROKER_LOGGER: LoggerResource(),
        ResourceType.CLIENT_METRICS: ClientMetricsResource(),
        ResourceType.GROUP: GroupResource(),
    }
)
