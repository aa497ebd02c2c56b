"""Table of the types of resources that have configs."""

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
"""Resource types by Kafka's type codes."""
